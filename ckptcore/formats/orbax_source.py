"""Orbax checkpoints, as something to read box by box or to start a run from.

Zarr 2 and 3, with and without OCDBT, as `StandardCheckpointer`, `PyTreeCheckpointer` and `CheckpointManager` write them. Arrays
are read with TensorStore, chunk by chunk, and never whole unless they are asked for whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import tensorstore as ts

from ckptcore import dtypes, posix
from ckptcore.array_spec import MANIFEST, answer, read_error
from ckptcore.errors import Damaged, InvalidRecord, NotFound, UnsupportedFormat
from ckptcore.formats import orbax_chunks, orbax_folder, orbax_metadata
from ckptcore.formats.boxes_in_files import opened
from ckptcore.formats.foreign import HEAD_BYTES, Foreign, Tensor, absolute, pieces
from ckptcore.formats.orbax_metadata import Entry, Tree
from ckptcore.formats.renames import Names
from ckptcore.geometry import SHOWN, Box
from ckptcore.names import Path, PathElement
from ckptcore.orbax_view import METADATA

MAX_METADATA_BYTES = 256 << 20
"""The most bytes of a tree's description."""
MAX_ARRAY_METADATA_BYTES = 64 << 10
"""The most bytes of an array's."""
MAX_CHUNK_BYTES = 1 << 30
"""The most bytes of a chunk, which has to be in memory as a whole, unless somebody asks for another number."""
CHECKED_CHUNK_BYTES = 1 << 20
"""From this size on it is looked at whether a chunk that is stored as it is has all its bytes, before memory is taken for it."""
CACHE_BYTES = 256 << 20
"""The memory that keeps chunks of which several boxes are read."""
_STRINGS = "_strings.json"
_ARRAY_METADATAS = "array_metadatas"
_SCALARS = frozenset({"bool", "int64", "float64"})
"""What Python's own numbers become in Orbax; a number of another type was one of numpy's."""


class Orbax(Foreign):
    """A subtree of an Orbax checkpoint, as one component.

    `path`: the folder that has `_METADATA`, or one that a `CheckpointManager` has filled, with steps or with items. `step`: which
    step, the newest by default. `item`: which item; by default the only one, or `default`, or `state`. `component`: what the
    leaves are to be called together. `subtree`: which leaves, by the keys on the way to them with dots between (`params`, or
    `model.encoder`); by default those below the component's name, the empty text for all. `names`: rules from the names
    below there, with dots, to the component's (`ckptcore.formats.renames`). `cast`: the floating-point dtype that a run which
    starts from here takes; None takes what is stored. `max_chunk_bytes`: the most bytes of a chunk, which has to be in memory
    as a whole.

    Paths stay as they are: keys of dicts, indexes of lists. Python's numbers, texts and empty nodes are values, arrays of random
    keys come back as keys. Raises, when it is first read: `NotFound`; a `DamageError` that names the file for what is not whole
    and valid.
    """

    format = "orbax"
    framework = "jax"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        component: str = "params",
        subtree: str | None = None,
        names: Names | None = None,
        cast: Any = None,
        item: str | None = None,
        step: int | None = None,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> None:
        super().__init__(path, component=component, names=names, cast=cast)
        self.subtree = component if subtree is None else subtree
        self.item, self.step = item, step
        self._max_chunk_bytes = max_chunk_bytes
        self._whole: set[str] = set()

    def _tensors(self) -> Mapping[str, Tensor]:
        return self._logical

    def _values(self) -> Mapping[str, Any]:
        return self._stated

    def _path(self, new: str, name: str) -> Path:
        """The path that `name` has in the tree; what a rule has put there are keys, and the indexes of before."""
        path = self._entries[name].path[self._depth :]
        if new == name:
            return path
        known: dict[str, PathElement] = {str(element[1]): element for element in path}
        return tuple(known.get(text, ("key", text)) for text in new.split(".")) if new else ()

    def _read(self, tensor: str, boxes: Sequence[Box]) -> list[np.ndarray]:
        array, where = self._arrays[tensor], self._where(tensor)
        found = [orbax_chunks.memory(box, self._dtype(tensor), where=where) for box in boxes]
        self._check_stored(tensor, boxes)
        reading = [array[box.slices()].read() for box in boxes]
        for memory, future in zip(found, reading, strict=True):
            memory[...] = answer(future, where, read_error)
        return found

    def _check_stored(self, tensor: str, boxes: Sequence[Box]) -> None:
        """Raise `Damaged` if a large chunk that meets the boxes is stored as it is, and shorter than it has to be."""
        array, raw, where = self._arrays[tensor], self._raw[tensor], self._where(tensor)
        size = orbax_chunks.stored_bytes(array, raw, zarr3=self._tree.zarr3, where=where)
        if size is None or size < CHECKED_CHUNK_BYTES:
            return
        folder = f"{self._entries[tensor].name}/"
        for place in orbax_chunks.places(array, boxes):
            key = folder + orbax_metadata.chunk_key(raw, place, zarr3=self._tree.zarr3, where=where)
            if key not in self._whole:
                self._check_length(key, size)
                self._whole.add(key)

    def _check_length(self, key: str, size: int) -> None:
        """Raise `Damaged` if a value is there, and has fewer than `size` bytes: its last byte is read."""
        where = f"{self._home}: {key[:200]}"
        try:
            answer(self._kvstore.read(key, byte_range=slice(size - 1, size)), where, _out_of_range)
        except _Shorter as error:
            raise Damaged(f"{where} has fewer than the {size} bytes of a chunk: it is cut short") from error

    def _pieces(self, tensor: str) -> Iterable[Box]:
        """The chunks of an array, each in pieces of its own where it is large."""
        return pieces(self._logical[tensor], rows=(*orbax_chunks.shape(self._arrays[tensor]), 1)[0])

    def _heads(self, tensors: Sequence[str]) -> Iterator[bytes]:
        for name in tensors:
            key = orbax_metadata.chunk_key(
                self._raw[name], [0] * len(self._logical[name].shape), zarr3=self._tree.zarr3, where=self._where(name)
            )
            yield self._head(f"{self._entries[name].name}/{key}")

    def _head(self, key: str) -> bytes:
        """The first bytes of what is stored under a key; none if it is not."""
        head = self._bounded(key, HEAD_BYTES)
        if isinstance(head, bytes):
            return head
        reading = self._kvstore.read(key, byte_range=slice(0, HEAD_BYTES))
        return bytes(answer(reading, f"{self._home}: {key[:200]}", read_error).value)

    @cached_property
    def _home(self) -> FilePath:
        """The folder of the tree."""
        try:
            home = absolute(orbax_folder.find(self.path, item=self.item, step=self.step))
            _check_files(home)
        except OSError as error:
            raise posix.translate(error, f"looking into {self.path}", of_run=False) from error
        return home

    @cached_property
    def _tree(self) -> Tree:
        return orbax_metadata.tree(_file(self._home / METADATA), where=str(self._home / METADATA))

    @cached_property
    def _depth(self) -> int:
        """How many elements of a path lead to the subtree."""
        return len(self.subtree.split(".")) if self.subtree else 0

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        """The leaves of the subtree by their names from there on."""
        wanted = self.subtree.split(".") if self.subtree else []
        found = {
            ".".join(str(value) for _, value in entry.path[self._depth :]): entry
            for entry in self._tree.entries
            if [str(value) for _, value in entry.path[: self._depth]] == wanted
        }
        if not found:
            tops = sorted({str(entry.path[0][1]) for entry in self._tree.entries if entry.path})
            raise NotFound(
                f"orbax checkpoint {self._home} has nothing below {self.subtree!r}; it has {tops[:SHOWN]}:"
                " give subtree=, the empty text for all of it"
            )
        return found

    @cached_property
    def _raw(self) -> dict[str, bytes]:
        """The metadata of each array as it is stored."""
        name = "zarr.json" if self._tree.zarr3 else ".zarray"
        keys = {name_: f"{entry.name}/{name}" for name_, entry in self._entries.items() if entry.kind in ("array", "scalar")}
        found = {}
        for tensor, key in keys.items():
            data = self._bounded(key, MAX_ARRAY_METADATA_BYTES)
            if data is None:
                raise InvalidRecord(f"{self._home}: {key[:200]} is larger than an array's metadata may be")
            if not data:
                raise Damaged(f"{self._home}: {key[:200]} is missing, though {METADATA} lists the array")
            orbax_metadata.strict(data, where=f"{self._home}: {key[:200]}")
            found[tensor] = data
        return found

    @cached_property
    def _arrays(self) -> dict[str, ts.TensorStore]:
        opening = {tensor: ts.open(self._spec(self._entries[tensor].name), context=self._context) for tensor in self._raw}
        found = {tensor: answer(future, self._where(tensor), read_error) for tensor, future in opening.items()}
        for tensor, array in found.items():
            orbax_chunks.check(array, self._max_chunk_bytes, where=self._where(tensor))
            impl = self._keys.get(self._entries[tensor].name)
            if impl is not None:
                orbax_metadata.check_keys(impl, array.dtype.name, array.shape, where=self._where(tensor))
        return found

    @cached_property
    def _logical(self) -> dict[str, Tensor]:
        return {
            name: Tensor(self._dtype(name).name, tuple(array.shape), self._keys.get(self._entries[name].name))
            for name, array in self._arrays.items()
            if name not in self._stated
        }

    @cached_property
    def _stated(self) -> dict[str, Any]:
        numbers = [
            name
            for name, array in self._arrays.items()
            if self._entries[name].kind == "scalar" and array.rank == 0 and array.dtype.name in _SCALARS
        ]
        stated = {name: self._read(name, [Box((), ())])[0].item() for name in numbers}
        return stated | {
            name: entry.empty if entry.kind == "empty" else self._text(entry)
            for name, entry in self._entries.items()
            if entry.kind in ("empty", "text")
        }

    def _text(self, entry: Entry) -> str:
        if entry.name not in self._texts:
            raise Damaged(f"{self._home / _STRINGS}: lacks {entry.name[:200]!r}, which {METADATA} lists")
        return self._texts[entry.name]

    @cached_property
    def _texts(self) -> dict[str, str]:
        path = self._home / _STRINGS
        try:
            return orbax_metadata.texts(_file(path), where=str(path))
        except NotFound as error:
            raise Damaged(f"{path} is missing, though {METADATA} lists texts") from error

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Orbax's names of random keys → their implementation."""
        folder = self._home / _ARRAY_METADATAS
        files = sorted(folder.glob("process_*")) if folder.is_dir() else []
        return {name: impl for file in files for name, impl in orbax_metadata.random_keys(_file(file), where=str(file)).items()}

    @cached_property
    def _base(self) -> dict[str, Any]:
        folder = {"driver": "file", "path": f"{self._home}/"}
        if (self._home / MANIFEST).exists():
            return {"driver": "ocdbt", "base": folder}
        if any(self._home.glob("ocdbt.process_*")):
            raise Damaged(f"{self._home / MANIFEST} is missing: the save that wrote this checkpoint was not finished")
        return folder

    @cached_property
    def _context(self) -> ts.Context:
        return ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})

    @cached_property
    def _kvstore(self) -> ts.KvStore:
        return answer(ts.KvStore.open(self._base, context=self._context), str(self._home), read_error)

    def _spec(self, name: str) -> dict[str, Any]:
        return {
            "driver": "zarr3" if self._tree.zarr3 else "zarr",
            "kvstore": {**self._base, "path": f"{name}/"} if self._base["driver"] == "ocdbt" else _below(self._base, name),
            "recheck_cached_data": "open",
            "fill_missing_data_reads": not self._tree.dense,
        }

    def _bounded(self, key: str, limit: int) -> bytes | None:
        """A value of fewer than `limit` bytes: empty if it is absent, None if it is larger."""
        where = f"{self._home}: {key[:200]}"
        ranged = self._kvstore.read(key, byte_range=slice(0, limit))
        try:
            found = answer(ranged, where, _out_of_range)
        except _Shorter:
            return bytes(answer(self._kvstore.read(key), where, read_error).value)
        return None if found.state == "value" else b""

    def _dtype(self, tensor: str) -> np.dtype:
        name = self._arrays[tensor].dtype.name
        if name not in dtypes.LOGICAL:
            raise UnsupportedFormat(f"{self._where(tensor)}: dtype {name!r} has no place in a checkpoint of this format")
        return dtypes.numpy_dtype(name)

    def _where(self, tensor: str) -> str:
        return f"{self._home}: array {self._entries[tensor].name[:200]!r}"


class _Shorter(Damaged):
    """A value has fewer bytes than were asked for."""


def _out_of_range(error: Exception, what: str) -> Any:
    return _Shorter(what) if str(error).startswith("OUT_OF_RANGE") else read_error(error, what)


def _below(folder: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**folder, "path": f"{folder['path']}{name}/"}


def _file(path: FilePath) -> bytes:
    """A whole file of bounded size."""
    with opened(path) as file:
        if file.stamp.size > MAX_METADATA_BYTES:
            raise InvalidRecord(f"{path}: {file.stamp.size} bytes are more than it may have ({MAX_METADATA_BYTES})")
        return file.read(0, file.stamp.size)


def _check_files(home: FilePath) -> None:
    """Raise `InvalidRecord` if there is anything but files and folders: a link would lead elsewhere, a FIFO never answer."""
    for path, is_directory in posix.walk(str(home)):
        if not is_directory and not stat.S_ISREG(os.lstat(path).st_mode):
            raise InvalidRecord(
                f"{path} is neither a file nor a folder, and nothing else is followed in a checkpoint: copy it there"
            )
