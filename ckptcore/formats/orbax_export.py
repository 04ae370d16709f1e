"""Export: the components of a commit as a checkpoint that Orbax reads, whatever lies where in the run.

Written anew: zarr 3 in OCDBT, with the metadata of a PyTree (`ckptcore.orbax_view`). Whole in itself, so it shows more than
`state/` does: components that lie in other generations, tied arrays, irregular grids, and numbers among the values.
Streamed: chunks go through memory a few at a time, and are checked against their digests on the way.

| leaf | becomes |
| --- | --- |
| an array, also a tied one, or typed random keys | an array of its own |
| an array of uint1, uint2, uint4, int1; of float6_…, float8_e4m3 | the same values in uint8, int8; in bfloat16 |
| bool, int of at most 64 bits, float | a scalar |
| None, and empty containers | themselves |
| a list or dict of values | its parts |
| other values; components of single ranks | left out: `None` where a list would lose its place |

Texts are left out since `StandardCheckpointer` refuses every target of a tree that has some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, cast

import numpy as np

from ckptcore import dtypes, orbax_view
from ckptcore.array_spec import StoredArray
from ckptcore.array_writer import DatabaseWriter
from ckptcore.errors import CallError, NotFound
from ckptcore.formats import orbax_metadata
from ckptcore.formats.exporting import Exported, Progress, read_in_parts, regular
from ckptcore.formats.fresh_folder import fresh_folder
from ckptcore.geometry import Grid
from ckptcore.names import Path, show_path
from ckptcore.orbax_view import EMPTY, Keys, TreePath
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf
from ckptcore.store import open_store

_WIDER = {"int1": "int8", **dict.fromkeys(("uint1", "uint2", "uint4"), "uint8")}
_WIDER |= dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn", "float8_e4m3"), "bfloat16")
_MAX_INT = 2**63


@dataclass(frozen=True)
class _Scalar:
    """A number that becomes an array without dimensions."""

    value: np.ndarray


@dataclass(frozen=True)
class _Left:
    """A value for which Orbax has no place."""


_Shown = StoredLeaf | _Scalar | _Left | str
"""What becomes of a place in the tree: an array, a number, nothing, or an empty node by Orbax's word for it."""


def export_orbax(
    checkpoint: Checkpoint,
    path: str | os.PathLike[str],
    *,
    components: Sequence[str] | None = None,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write components (default: all) as an Orbax checkpoint into the folder `path`, which must be absent or empty.

    `progress` is told of array bytes as they are read. Raises `CallError` for a folder that is not free, and if two leaves
    would have one name, or one that Orbax cannot read; `DamageError` for bytes that differ from their digests; `StoreError`.
    """
    names = list(checkpoint.names if components is None else dict.fromkeys(components))
    ranked = [name for name in names if checkpoint.ranks(name) != [None]]
    tree = dict(_tree(checkpoint, [name for name in names if name not in ranked]))
    if not _words(tree):
        raise NotFound(f"{checkpoint.title} has nothing that Orbax could hold; it has {sorted(checkpoint.names)}")
    called = _names(tree)
    with fresh_folder(path) as folder:
        arrays, keys = _write(checkpoint, folder, tree, called, progress)
        _write_documents(folder, orbax_view.tree_documents(_words(tree), keys))
    left = [f"{name} (stored per rank)" for name in ranked]
    left += [_show(place) for place, shown in tree.items() if isinstance(shown, _Left)]
    return Exported(len(arrays), sum(arrays), tuple(left))


def _tree(checkpoint: Checkpoint, components: Sequence[str]) -> Iterator[tuple[TreePath, _Shown]]:
    for component in components:
        for leaf in checkpoint.leaves(component).values():
            place = (("key", component), *leaf.record.path)
            if isinstance(leaf.record, ArrayLeaf):
                yield place, leaf
            else:
                yield from _parts(place, checkpoint.value(leaf))


def _parts(place: TreePath, value: Any) -> Iterator[tuple[TreePath, _Shown]]:
    """A value, taken apart as a tree."""
    word = next((word for word, empty in EMPTY.items() if type(value) is type(empty) and value == empty), None)
    if word is not None:
        yield place, word
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts((*place, ("key", key)), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _parts((*place, ("index", index)), item)
    else:
        yield place, _scalar(value)


def _scalar(value: Any) -> _Scalar | _Left:
    if isinstance(value, bool | float):
        return _Scalar(np.array(value))
    return _Scalar(np.array(value, np.int64)) if type(value) is int and -_MAX_INT <= value < _MAX_INT else _Left()


def _names(tree: Mapping[TreePath, _Shown]) -> dict[TreePath, str]:
    """Orbax's name of each place: its elements with dots between. Raises `CallError` if two have the same, or for no path."""
    called: dict[str, TreePath] = {}
    for place in tree:
        name = ".".join(str(value) for _, value in place)
        other = called.setdefault(name, place)
        if other is not place:
            raise CallError(
                f"{_show(other)} and {_show(place)} would both be {name!r} for Orbax: export other components, or zarr"
            )
        if not isinstance(tree[place], str | _Left) and not orbax_metadata.is_path(name):
            raise CallError(
                f"{_show(place)} would be {name[:200]!r} for Orbax, which is no path inside of a checkpoint:"
                " export other components, or zarr"
            )
    return {place: name for name, place in called.items()}


def _show(place: TreePath) -> str:
    (_, component), *path = place
    return show_path(str(component), cast("Path", tuple(path)))


def _words(tree: Mapping[TreePath, _Shown]) -> dict[TreePath, str]:
    words = {StoredLeaf: "jax.Array", _Scalar: "scalar", _Left: "None"}
    found = {place: shown if isinstance(shown, str) else words[type(shown)] for place, shown in tree.items()}
    return {place: word for place, word in found.items() if not isinstance(tree[place], _Left) or _in_list(place)}


def _in_list(place: TreePath) -> bool:
    return any(kind == "index" for kind, _ in place)


def _write(
    checkpoint: Checkpoint, folder: FilePath, tree: Mapping[TreePath, _Shown], called: Mapping[TreePath, str], progress: Progress
) -> tuple[list[int], list[Keys]]:
    """Write all arrays; returns the bytes of each leaf that is one, and which are random keys."""
    database = DatabaseWriter(open_store(folder), "", streamed=True)
    sizes, keys = [], []
    try:
        for place, shown in tree.items():
            name = called[place]
            if isinstance(shown, _Scalar):
                number = StoredArray(name, shown.value.dtype.name, (), Grid.regular((), ()))
                database.add(number, {0: shown.value})
            elif isinstance(shown, StoredLeaf) and isinstance(shown.record, ArrayLeaf):
                array = regular(name, shown.record, _WIDER.get(shown.record.dtype, shown.record.dtype))
                for part in read_in_parts(checkpoint, shown, array):
                    database.add(array, {cell: _as(array.dtype, shown.record, stored) for cell, stored in part.items()})
                    progress(sum(stored.nbytes for stored in part.values()))
                if not array.grid.size:
                    database.add(array, {})
                sizes.append(array.nbytes)
                if shown.record.prng_impl is not None:
                    keys.append(Keys(name, array.shape, array.grid.chunk_shape or (), shown.record.prng_impl))
        database.finish()
    finally:
        database.close()
    return sizes, keys


def _as(dtype: str, record: ArrayLeaf, stored: np.ndarray) -> np.ndarray:
    """Elements of an array leaf as `dtype`, as they are stored."""
    elements = dtypes.from_stored(stored, record.dtype)
    return dtypes.to_stored(elements.astype(dtypes.numpy_dtype(dtype), copy=False))


def _write_documents(folder: FilePath, documents: Mapping[str, bytes]) -> None:
    for name, data in documents.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        with file.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
