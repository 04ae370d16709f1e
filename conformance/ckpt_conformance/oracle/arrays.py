"""Arrays as they are stored: what a database holds, and every cell against its digest (spec: chapter 6, D-3)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorstore as ts

from ckpt_conformance.oracle import digests, keys, layouts
from ckpt_conformance.oracle.elements import logical_bytes
from ckpt_conformance.oracle.evidence import Delivery
from ckpt_conformance.oracle.layouts import Cell, Leaf
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.place import Place

_TIMEOUT = 60.0
_CONFIG = {"max_inline_value_bytes": 512, "max_decoded_node_bytes": 1_048_576, "version_tree_arity_log2": 4, "compression": None}
"""A-19."""


class Databases:
    """The databases of a run, read with a context of their own, so that nothing is remembered from an earlier look."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._context = ts.Context()

    def keys(self, folder: str, config: Mapping[str, Any] | None = None) -> set[str]:
        """The keys in a database; none if there is none. Raises `ValueError` where it cannot be read, or has not `config`."""
        return {key.decode() for key in self._open(folder, config).list().result(timeout=_TIMEOUT)}

    def values(self, folder: str, wanted: Collection[str]) -> dict[str, bytes]:
        """The values of keys, of those that are there."""
        database = self._open(folder)
        reads = {key: database.read(key) for key in wanted}
        found = {key: read.result(timeout=_TIMEOUT) for key, read in reads.items()}
        return {key: bytes(result.value) for key, result in found.items() if result.state == "value"}

    def arrays(self, folder: str, paths: Collection[str]) -> dict[str, ts.TensorStore | ValueError]:
        """The arrays at `paths` in a database, or why they cannot be opened."""
        opening = {
            path: ts.open(
                {"driver": "zarr3", "fill_missing_data_reads": False, "kvstore": self._spec(folder, f"{path}/")},
                context=self._context,
                open=True,
                read=True,
            )
            for path in paths
        }
        return {path: _outcome(future) for path, future in opening.items()}

    def _open(self, folder: str, config: Mapping[str, Any] | None = None) -> ts.KvStore:
        spec = self._spec(folder, "") | ({"config": dict(config)} if config is not None else {})
        return ts.KvStore.open(spec, context=self._context).result(timeout=_TIMEOUT)

    def _spec(self, folder: str, path: str) -> dict[str, Any]:
        return {"driver": "ocdbt", "base": self._place.kvstore(folder), "path": path}


def _outcome(future: Any) -> Any:
    try:
        return future.result(timeout=_TIMEOUT)
    except ValueError as error:
        return error


def paths_of(name: str, leaf: Leaf) -> list[str]:
    """Where the zarr arrays of a stored array lie in a database (A-15)."""
    if leaf.get("cuts") is None:
        return [name]
    return [_piece(name, cell) for cell in layouts.cells(leaf)]


def keys_of_cell(name: str, leaf: Leaf, cell: Cell) -> tuple[str, str]:
    """The keys of the metadata and of the content of a cell (A-15)."""
    if leaf.get("cuts") is not None:
        path = _piece(name, cell)
        return f"{path}/zarr.json", "/".join([path, "c", *("0" for _ in cell.places)])
    return f"{name}/zarr.json", "/".join([name, "c", *map(str, cell.places)])


def _piece(name: str, cell: Cell) -> str:
    return f"{name}/{'.'.join(map(str, cell.places))}"


def metadata(leaf: Leaf, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    """The metadata of a zarr array (A-16)."""
    dtype = leaf["stored_dtype"]
    document = {
        "chunk_grid": {"configuration": {"chunk_shape": list(chunk_shape)}, "name": "regular"},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}, {"name": "crc32c"}],
        "data_type": dtype,
        "fill_value": _fill(dtype),
        "node_type": "array",
        "shape": list(shape),
        "zarr_format": 3,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _fill(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if dtype.startswith("complex"):
        return [0.0, 0.0]
    return 0 if dtype.startswith(("int", "uint")) else 0.0


def expected(arrays: Mapping[str, Leaf]) -> dict[str, bytes | None]:
    """Every key that a view of these arrays has: metadata with its content, cells with None."""
    found: dict[str, bytes | None] = {}
    for name, leaf in arrays.items():
        if leaf.get("cuts") is None:
            found[f"{name}/zarr.json"] = metadata(leaf, leaf["shape"], leaf["chunk_shape"])
        for cell in layouts.cells(leaf):
            about, content = keys_of_cell(name, leaf, cell)
            found.setdefault(about, metadata(leaf, cell.shape, cell.shape))
            found[content] = None
    return found


def view_faults(databases: Databases, found: Delivery) -> Iterator[Problem]:
    """Whether the merged view has exactly the keys and the metadata that the layouts ask for (A-25)."""
    folder = keys.state(found.generation)
    wanted = expected(found.arrays())
    try:
        there = databases.keys(folder)
        documents = databases.values(folder, [key for key in wanted if wanted[key] is not None and key in there])
    except ValueError as error:
        yield Problem(folder, "A-24", f"the merged view cannot be read: {_short(error)}")
        return
    yield from (Problem(folder + key, "A-25", "is not in the merged view") for key in sorted(wanted.keys() - there))
    yield from (Problem(folder + key, "A-25", "is of no layout") for key in sorted(there - wanted.keys()))
    for key, document in documents.items():
        if document != wanted[key]:
            yield Problem(folder + key, "A-16", f"is {document[:300].decode(errors='replace')}")


def database_faults(databases: Databases, found: Delivery) -> Iterator[Problem]:
    """Whether each rank's database holds exactly what its receipt lists, in the one configuration (A-19, A-23)."""
    arrays = found.arrays()
    for rank, receipt in enumerate(found.receipts):
        if receipt.get("database") is None:
            continue
        folder = keys.database(found.generation, rank, receipt["database"])
        wanted = _listed(found, arrays, rank)
        try:
            there = databases.keys(folder, config=_CONFIG)
        except ValueError as error:
            yield Problem(
                folder, "A-19" if "Configuration mismatch" in str(error) else "A-18", f"cannot be read: {_short(error)}"
            )
            continue
        yield from (Problem(folder + key, "A-22", "is listed in the receipt, and not there") for key in sorted(wanted - there))
        yield from (Problem(folder + key, "A-23", "is not listed in the receipt") for key in sorted(there - wanted))


def _listed(found: Delivery, arrays: Mapping[str, Leaf], rank: int) -> set[str]:
    """The keys in the database of a rank, by its receipt."""
    wanted: set[str] = set()
    for component, written in found.receipts[rank].get("components", {}).items():
        for name, chunks in written["chunks"].items():
            stored = keys.stored_name(name, found.components[component].scope, rank)
            leaf = arrays[stored]
            of_cells = list(layouts.cells(leaf))
            wanted.update(key for cell, _ in chunks for key in keys_of_cell(stored, leaf, of_cells[cell]))
            if not of_cells and leaf.get("cuts") is None:
                wanted.add(f"{stored}/zarr.json")
    return wanted


def chunk_faults(
    databases: Databases, generation: str, arrays: Mapping[str, Leaf], chunks: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    """Every cell of these arrays that is not there, or does not have its digest; `chunks`: stored name → digests."""
    folder = keys.state(generation)
    cut = {name: list(layouts.cells(leaf)) for name, leaf in arrays.items()}
    places = {name: paths_of(name, leaf) for name, leaf in arrays.items()}
    opened = databases.arrays(folder, [path for paths in places.values() for path in paths])
    pending = []
    for name, leaf in arrays.items():
        for number, cell in enumerate(cut[name]):
            whole = leaf.get("cuts") is None
            array = opened[places[name][0 if whole else number]]
            key = folder + keys_of_cell(name, leaf, cell)[1]
            if isinstance(array, ValueError):
                yield Problem(key, "A-25", f"the array cannot be opened: {_short(array)}")
            else:
                pending.append((key, leaf, chunks[name][number], (array[cell.slices] if whole else array).read()))
    for key, leaf, digest, read in pending:
        yield from _chunk_fault(key, leaf, digest, _outcome(read))


def _chunk_fault(key: str, leaf: Leaf, digest: str, content: np.ndarray | ValueError) -> Iterator[Problem]:
    if isinstance(content, ValueError):
        missing = "NOT_FOUND" in str(content) or "missing" in str(content)
        yield Problem(key, "A-20" if missing else "A-17", f"cannot be read: {_short(content)}")
    elif not digests.fits(logical_bytes(content, leaf["dtype"]), digest):
        yield Problem(key, "D-3", "does not have the digest that the index says")


def _short(error: Exception) -> str:
    return str(error).partition(" [")[0][:200]
