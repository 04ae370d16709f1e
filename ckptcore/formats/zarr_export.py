"""Export: a commit as a plain zarr version 3 hierarchy, a group for each component and each container on the way to a leaf.

| what | where |
| --- | --- |
| an array, also a tied one | `<component>/<path…>`, its chunks in files of their own |
| of a component that is stored per rank | `<component>/<rank>/<path…>` |
| values | attribute `values` of the component's (or rank's) group: path → tagged JSON (spec: values) |
| what a group or array is | attributes under `ckpt`: of an array its `path`, its `dtype` and the implementation of random keys |

Elements of dtypes that zarr itself does not define (bfloat16, float8_…, int4, …) are stored as unsigned integers of their
size, the same bits: `array[:].view(dtype)`. Chunks are those of the commit; the digests are checked on the way.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ckptcore import dtypes, names, values
from ckptcore.array_spec import Piece, answer, write_error
from ckptcore.errors import CallError, NotFound
from ckptcore.formats.exporting import Exported, Progress, read_in_parts, regular
from ckptcore.formats.fresh_folder import fresh_folder
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf

_PLAIN = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
_METADATA = "zarr.json"
_MAX_SEGMENT = 255

Node = tuple[str, ...]
"""The place of a group or an array: its names from the root on."""


def export_zarr(
    checkpoint: Checkpoint,
    path: str | os.PathLike[str],
    *,
    components: Sequence[str] | None = None,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write components (default: all) as a zarr hierarchy into the folder `path`, which must be absent or empty.

    `progress` is told of array bytes as they are read. Raises `CallError` for a folder that is not free, and for paths
    that no folders can have; `DamageError` for bytes that differ from their digests; `StoreError`.
    """
    chosen = list(checkpoint.names if components is None else dict.fromkeys(components))
    groups: dict[Node, dict[str, Any]] = {(): {"ckpt": _facts(checkpoint)}}
    arrays: dict[Node, StoredLeaf] = {}
    for component in chosen:
        for rank in checkpoint.ranks(component):
            _add(checkpoint, component, rank, groups, arrays)
    if len(groups) == 1:
        raise NotFound(f"{checkpoint.title} has no components to write")
    _check(groups, arrays)
    with fresh_folder(path) as folder:
        for node, attributes in groups.items():
            _put(folder, node, {"zarr_format": 3, "node_type": "group", "attributes": attributes})
        sizes = [_copy(checkpoint, leaf, node, folder, progress) for node, leaf in arrays.items()]
    return Exported(len(arrays), sum(sizes), ())


def all_bytes(checkpoint: Checkpoint, components: Sequence[str] | None = None) -> int:
    """Bytes of all arrays of components, those of every rank too, as `progress` is told of them."""
    return sum(
        regular(leaf.name, leaf.record, leaf.record.stored_dtype).nbytes
        for name in (checkpoint.names if components is None else components)
        for rank in checkpoint.ranks(name)
        for leaf in checkpoint.leaves(name, rank).values()
        if isinstance(leaf.record, ArrayLeaf)
    )


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "run_id": manifest.run_id,
        "generation": manifest.generation,
        "step": manifest.step,
        "framework": manifest.topology.framework,
        "guarantee": manifest.guarantee.level,
    }


def _add(
    checkpoint: Checkpoint, component: str, rank: int | None, groups: dict[Node, dict[str, Any]], arrays: dict[Node, StoredLeaf]
) -> None:
    """The groups and arrays of one component, of one rank's copy of it."""
    top = (component,) if rank is None else (component, str(rank))
    stated = {}
    groups.update({top[:length]: {} for length in range(1, len(top) + 1) if top[:length] not in groups})
    for leaf in checkpoint.leaves(component, rank).values():
        if not isinstance(leaf.record, ArrayLeaf):
            stated[leaf.name] = values.encode(checkpoint.value(leaf), where=leaf.name)
            continue
        node = (*top, *(_segment(str(value)) for _, value in leaf.record.path)) if leaf.record.path else (*top, "value")
        groups.update({node[:length]: {} for length in range(len(top), len(node)) if node[:length] not in groups})
        if node in arrays:
            raise CallError(
                f"{names.show_path(component, leaf.record.path)} and another array would both lie in {'/'.join(node)}"
            )
        arrays[node] = leaf
    groups[top] = {"ckpt": {"component": component, "rank": rank}, "values": stated}


def _segment(element: str) -> str:
    """An element of a path as the name of a folder: what none can have is percent-encoded."""
    safe = re.sub(r"[%/\\\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", element)
    if safe in ("", ".", "..", _METADATA) or safe.startswith("__"):
        return "%" + (f"{ord(safe[0]):02X}{safe[1:]}" if safe else "")
    return safe


def _check(groups: Mapping[Node, Any], arrays: Mapping[Node, StoredLeaf]) -> None:
    for node in arrays:
        if node in groups:
            raise CallError(f"{'/'.join(node)} would be an array and a group: two leaves of the checkpoint have like paths")
        if any(len(name.encode()) > _MAX_SEGMENT for name in node):
            raise CallError(
                f"{'/'.join(node)[:300]}: a part of this path is longer than {_MAX_SEGMENT} bytes, as no folder's name is"
            )


def _put(folder: Path, node: Node, metadata: Mapping[str, Any]) -> None:
    place = folder.joinpath(*node)
    place.mkdir(parents=True, exist_ok=True)
    with (place / _METADATA).open("x", encoding="utf-8") as stream:
        json.dump(metadata, stream, indent=2, ensure_ascii=False)
        stream.flush()
        os.fsync(stream.fileno())


def _copy(checkpoint: Checkpoint, leaf: StoredLeaf, node: Node, folder: Path, progress: Progress) -> int:
    """Write one array; returns its bytes."""
    record = leaf.record
    if not isinstance(record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    array = regular(leaf.name, record, _stored(record.dtype))
    (piece,) = array.pieces()
    _put(folder, node, {**piece.metadata, "attributes": {"ckpt": _array_facts(record)}})
    target = _open(folder, node, piece)
    for part in read_in_parts(checkpoint, leaf, array):
        writing = [
            target[array.grid.cell(cell).slices()].write(stored.view(dtypes.numpy_dtype(array.dtype))).commit
            for cell, stored in part.items()
        ]
        for future in writing:
            answer(future, f"array {'/'.join(node)}", write_error)
        progress(sum(stored.nbytes for stored in part.values()))
    return array.nbytes


def _array_facts(record: ArrayLeaf) -> dict[str, Any]:
    facts = {"path": [list(element) for element in record.path], "dtype": record.dtype}
    return facts | ({"prng_impl": record.prng_impl} if record.prng_impl is not None else {})


def _stored(dtype: str) -> str:
    """The dtype that zarr has for the elements of a logical one."""
    return dtype if dtype in _PLAIN else np.dtype(f"u{dtypes.itemsize(dtype)}").name


def _open(folder: Path, node: Node, piece: Piece) -> ts.TensorStore:
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder.joinpath(*node)}/", "file_io_locking": {"mode": "none"}},
        "metadata": piece.metadata,
        "open": True,
        "assume_metadata": True,
        "store_data_equal_to_fill_value": True,
    }
    return answer(ts.open(spec), f"array {'/'.join(node)}", write_error)
