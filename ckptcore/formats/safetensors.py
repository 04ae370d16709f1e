"""Safetensors files, such as Hugging Face's, as something to read box by box or to start a run from.

Headers are read when they are needed, tensors never whole unless they are asked for whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ckptcore import posix
from ckptcore.errors import CallError, Damaged, InvalidRecord, NotFound
from ckptcore.formats.boxes_in_files import OpenFile, Stamp, opened, read_box
from ckptcore.formats.foreign import HEAD_BYTES, Foreign, Tensor
from ckptcore.formats.renames import Names
from ckptcore.formats.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES, Slot, header_length, parse, parse_index
from ckptcore.geometry import Box

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_PART = re.compile(r"-\d+-of-0*(?!0)(?!1\.)\d+\.safetensors$")


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies."""

    path: Path
    stamp: Stamp
    slot: Slot


class Safetensors(Foreign):
    """A safetensors file, or several with an index, as one component.

    `path`: a `.safetensors` file, an `*.index.json`, or a directory that has one of them (`model.safetensors` and
    `model.safetensors.index.json` first). Of several files those tensors count that the index lists. `names`: rules from the
    names in the files to the component's, such as `{"model.layers.*": "layers.*", "lm_head": None}` (`ckptcore.formats.renames`).
    `cast`: the floating-point dtype that a run which starts from here takes; None takes what is stored, and a target of another
    dtype is refused.

    Raises, when it is first read: `NotFound`; a `DamageError` that names file and tensor for what is not a whole, valid file.
    """

    format = "safetensors"

    def __init__(
        self, path: str | os.PathLike[str], *, component: str = "params", names: Names | None = None, cast: Any = None
    ) -> None:
        super().__init__(path, component=component, names=names, cast=cast)

    def _tensors(self) -> Mapping[str, Tensor]:
        return {name: Tensor(place.slot.dtype, place.slot.shape) for name, place in self._places.items()}

    def _read(self, tensor: str, boxes: Sequence[Box]) -> list[np.ndarray]:
        place = self._places[tensor]
        with opened(place.path, place.stamp) as file:
            return [read_box(file, place.slot.start, place.slot.dtype, place.slot.shape, box) for box in boxes]

    def _heads(self, tensors: Sequence[str]) -> Iterator[bytes]:
        places = [self._places[name] for name in tensors]
        for (path, stamp), run in groupby(places, key=lambda place: (place.path, place.stamp)):
            with opened(path, stamp) as file:
                for place in run:
                    yield file.read(place.slot.start, min(place.slot.nbytes, HEAD_BYTES))

    @cached_property
    def _places(self) -> dict[str, _Place]:
        path = _find(self.path)
        if path.suffix != ".json":
            return _file(path)
        with opened(path) as file:
            files = parse_index(_bounded(file), where=str(path))
        shards = {name: _shard(path, name) for name in sorted(set(files.values()))}
        absent = [name for name, file in files.items() if name not in shards[file]]
        if absent:
            raise InvalidRecord(f"{path}: tensor {absent[0][:200]!r} is not in {files[absent[0]]!r}, where the index has it")
        return {name: shards[file][name] for name, file in files.items()}


def _find(path: Path) -> Path:
    """The file or the index that `path` means."""
    try:
        return _found(path)
    except OSError as error:
        raise posix.translate(error, f"looking into {path}", of_run=False) from error


def _found(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("model" + SUFFIX, "model" + INDEX_SUFFIX):
        if os.path.lexists(path / name):
            return path / name
    listed = [entry for entry in sorted(path.iterdir()) if entry.is_file()]
    for suffix in (INDEX_SUFFIX, SUFFIX):
        found = [entry for entry in listed if entry.name.endswith(suffix)]
        if len(found) == 1 and _PART.search(found[0].name):
            raise Damaged(f"{found[0]} is one of several files: the others and their index are missing")
        if len(found) == 1:
            return found[0]
        if found:
            raise CallError(f"{path} has {len(found)} files that end in {suffix}: name one of them, such as {found[0].name}")
    raise NotFound(f"{path} has no file that ends in {SUFFIX} or {INDEX_SUFFIX}")


def _file(path: Path) -> dict[str, _Place]:
    with opened(path) as file:
        size = file.stamp.size
        length = header_length(file.read(0, min(LENGTH_BYTES, size)), size, where=str(path))
        slots = parse(file.read(LENGTH_BYTES, length), size, where=str(path))
        return {name: _Place(path, file.stamp, slot) for name, slot in slots.items()}


def _shard(index: Path, name: str) -> dict[str, _Place]:
    try:
        return _file(index.parent / name)
    except NotFound as error:
        raise Damaged(f"{index}: the file {name!r} that it names is missing") from error


def _bounded(file: OpenFile) -> bytes:
    if file.stamp.size > MAX_HEADER_BYTES:
        raise InvalidRecord(f"{file.path}: {file.stamp.size} bytes are more than an index may have ({MAX_HEADER_BYTES})")
    return file.read(0, file.stamp.size)
