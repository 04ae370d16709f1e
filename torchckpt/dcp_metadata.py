"""The `.metadata` of a `torch.distributed.checkpoint` folder, read without running anything that is in it.

The file is a pickle; `torchckpt.inert` says what it describes. From that, tensors, chunks and places are taken, and checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ckptcore.errors import InvalidRecord, UnsupportedFormat
from ckptcore.geometry import Box
from torchckpt.inert import Made, Named, Pairs, describe

_TYPES = "torch.distributed.checkpoint.metadata"
_OLD_TYPES = "torch.distributed._shard.sharded_tensor.metadata"
_ALLOWED = frozenset(
    {
        *(
            f"{_TYPES}.{name}"
            for name in (
                *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
                *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
            )
        ),
        *(f"{_OLD_TYPES}.{name}" for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
        *(f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
        *("torch.distributed.checkpoint.filesystem._StorageInfo", "torch.serialization._get_layout", "torch.Size"),
        *(f"torch.{name}" for name, found in vars(torch).items() if isinstance(found, torch.dtype | torch.layout)),
    }
)
_MAX_CELLS = 1 << 22
_MAX_DIMENSIONS = 32
_MAX_FIELDS = 64


@dataclass(frozen=True)
class Chunk:
    """A stored part of a tensor, and the bytes of its archive."""

    box: Box
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor: the name of its dtype in torch, its shape, and the chunks that make it up."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def decode(data: bytes, *, where: str) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint by name; what is no tensor is left out.

    Raises `InvalidRecord` for anything that is not what DCP writes, `UnsupportedFormat` for chunks that are transformed.
    """
    root = describe(data, _ALLOWED, where=where)
    fields = _fields(root, f"{_TYPES}.Metadata", where)
    places = dict(_places(fields.get("storage_data"), where))
    found: dict[str, StoredTensor] = {}
    budget = len(data)  # shared parts could make a small file describe more chunks than memory holds
    for key, described in _pairs(fields.get("state_dict_metadata"), where):
        if isinstance(described, Made) and described.kind == f"{_TYPES}.TensorStorageMetadata":
            name = _text(key, where)
            found[name] = tensor = _tensor(name, described, places, f"{where}: {name[:200]!r}")
            budget -= len(tensor.chunks)
            if budget < 0:
                raise InvalidRecord(f"{where}: describes more chunks than it has bytes")
    return found


def _fields(described: Any, kind: str, where: str) -> dict[str, Any]:
    """The attributes of an object of a class."""
    if not isinstance(described, Made) or described.kind != kind:
        raise InvalidRecord(f"{where}: has no {kind.rsplit('.', 1)[-1]} where one is expected")
    pairs = _pairs(described.state, where)
    if len(pairs) > _MAX_FIELDS:  # many objects may share one state
        raise InvalidRecord(f"{where}: has an object with {len(pairs)} attributes")
    return {_text(name, where): value for name, value in pairs}


def _pairs(described: Any, where: str) -> list[tuple[Any, Any]]:
    if not isinstance(described, Pairs):
        raise InvalidRecord(f"{where}: has no dictionary where one is expected")
    return described.items


def _text(described: Any, where: str) -> str:
    if not isinstance(described, str):
        raise InvalidRecord(f"{where}: has {type(described).__name__} where a name is expected")
    return described


def _size(described: Any, where: str) -> tuple[int, ...]:
    """A `torch.Size`."""
    arguments = described.args if isinstance(described, Made) and described.kind == "torch.Size" else None
    sizes = arguments[0] if isinstance(arguments, tuple | list) and arguments else None
    if not isinstance(sizes, tuple) or not all(type(size) is int and 0 <= size < 1 << 53 for size in sizes):
        raise InvalidRecord(f"{where}: has no sizes where some are expected")
    return sizes


def _places(described: Any, where: str) -> Iterator[tuple[tuple[str, tuple[int, ...]], Made]]:
    """Where chunks lie, by tensor and offset. Other entries are left out."""
    for index, place in _pairs(described, where):
        fields = _fields(index, f"{_TYPES}.MetadataIndex", where)
        if fields.get("offset") is not None:
            yield (_text(fields.get("fqn"), where), _size(fields["offset"], where)), place


def _tensor(name: str, described: Made, places: Mapping[tuple[str, tuple[int, ...]], Made], where: str) -> StoredTensor:
    fields = _fields(described, described.kind, where)
    shape = _size(fields.get("size"), where)
    if len(shape) > _MAX_DIMENSIONS:
        raise InvalidRecord(f"{where}: has {len(shape)} dimensions, more than {_MAX_DIMENSIONS}")
    parts = fields.get("chunks")
    if not isinstance(parts, list):
        raise InvalidRecord(f"{where}: has no list of chunks")
    chunks = [chunk for part in parts if (chunk := _chunk(name, part, places, where)) is not None]
    unique = tuple({chunk.box: chunk for chunk in chunks}.values())
    if not _tile(shape, [chunk.box for chunk in unique]):
        raise InvalidRecord(f"{where}: its chunks do not make up an array of shape {list(shape)}: holes, overlaps, or too many")
    return StoredTensor(_dtype(fields.get("properties"), where), shape, unique)


def _dtype(described: Any, where: str) -> str:
    state = described.state if isinstance(described, Made) else None
    found = state[0] if isinstance(state, tuple) and state else None
    name = found.name.removeprefix("torch.") if isinstance(found, Named) else ""
    if not isinstance(vars(torch).get(name), torch.dtype):
        raise InvalidRecord(f"{where}: has no dtype")
    return name


def _chunk(name: str, described: Any, places: Mapping[tuple[str, tuple[int, ...]], Made], where: str) -> Chunk | None:
    """A chunk and its place; None for one without elements."""
    fields = _fields(described, f"{_TYPES}.ChunkStorageMetadata", where)
    start, sizes = _size(fields.get("offsets"), where), _size(fields.get("sizes"), where)
    if len(start) != len(sizes):
        raise InvalidRecord(f"{where}: a chunk has {len(start)} offsets and {len(sizes)} sizes")
    box = Box(start, tuple(a + size for a, size in zip(start, sizes, strict=True)))
    if box.is_empty:
        return None
    place = places.get((name, start))
    if place is None:
        raise InvalidRecord(f"{where}: nothing says where the chunk at {list(start)} lies")
    found = _fields(place, "torch.distributed.checkpoint.filesystem._StorageInfo", where)
    if found.get("transform_descriptors"):
        raise UnsupportedFormat(f"{where}: its chunks are compressed or otherwise transformed: save them without extensions")
    offset, length = found.get("offset"), found.get("length")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        raise InvalidRecord(f"{where}: the chunk at {list(start)} has no place in a file")
    return Chunk(box, _file(found.get("relative_path"), where), offset, length)


def _file(described: Any, where: str) -> str:
    path = _text(described, where)
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidRecord(f"{where}: lies in {path[:200]!r}, which is no path inside of the checkpoint")
    return path


def _tile(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether the boxes are disjoint and cover an array."""
    if any(len(box.start) != len(shape) or not Box.whole(shape).contains(box) for box in boxes):
        return False
    cuts = [
        sorted({0, extent, *(box.start[number] for box in boxes), *(box.stop[number] for box in boxes)})
        for number, extent in enumerate(shape)
    ]
    cells = [len(bounds) - 1 for bounds in cuts]
    if np.prod([max(count, 1) for count in cells], dtype=float) > _MAX_CELLS:
        return False
    at = [{bound: index for index, bound in enumerate(bounds)} for bounds in cuts]
    covered = np.zeros(cells, np.bool_)
    for box in boxes:
        region = tuple(slice(bounds[start], bounds[stop]) for bounds, start, stop in zip(at, box.start, box.stop, strict=True))
        if covered[region].any():
            return False
        covered[region] = True
    return bool(covered.all())
