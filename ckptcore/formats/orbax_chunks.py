"""The chunks of an array of an Orbax checkpoint: which there are, and what memory they take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorstore as ts

from ckptcore import canonical
from ckptcore.errors import InvalidRecord, UnsupportedFormat
from ckptcore.formats import orbax_metadata
from ckptcore.geometry import Box

_MAX_DIMENSIONS = 32
_SHARD_INDEX_BYTES = 16
"""Bytes of a chunk's entry in the index of a shard."""


def memory(box: Box, dtype: np.dtype, *, where: str) -> np.ndarray:
    """Memory for a box. TensorStore ends the process where it has none for a result; numpy, which is asked first, does not.

    Raises `UnsupportedFormat` where there is none.
    """
    try:
        return np.empty(box.shape, dtype)
    except (MemoryError, ValueError) as error:
        raise UnsupportedFormat(f"{where}: there is no memory for {list(box.shape)} elements of {dtype} together") from error


def check(array: ts.TensorStore, max_chunk_bytes: int, *, where: str) -> None:
    """Refuse what no memory could hold, before anything of it is allocated. Raises a `DamageError`."""
    chunk = shape(array)
    if array.rank > _MAX_DIMENSIONS or any(extent > canonical.MAX_INT for extent in array.shape):
        raise InvalidRecord(
            f"{where}: shape {list(array.shape)[:_MAX_DIMENSIONS]} is beyond {_MAX_DIMENSIONS} dimensions of 2^53"
        )
    if any(part > max(extent, 1) for part, extent in zip(chunk, array.shape, strict=True)):
        raise InvalidRecord(f"{where}: chunks of {list(chunk)} are larger than the array of {list(array.shape)}")
    shard = [extent or 1 for extent in array.chunk_layout.write_chunk.shape or ()]
    index = math.prod(shard) // math.prod(chunk) * _SHARD_INDEX_BYTES
    if max(math.prod(chunk) * array.dtype.numpy_dtype.itemsize, index) > max_chunk_bytes:
        raise UnsupportedFormat(
            f"{where}: chunks of {list(chunk)} are larger than {max_chunk_bytes} bytes, the most that is held in memory;"
            " if there is the memory, raise max_chunk_bytes= (--max-chunk)"
        )


def shape(array: ts.TensorStore) -> tuple[int, ...]:
    """The shape of a chunk, of those inside of a shard where there are shards."""
    return tuple(extent or 1 for extent in array.chunk_layout.read_chunk.shape or ())


def stored_bytes(array: ts.TensorStore, metadata: bytes, *, zarr3: bool, where: str) -> int | None:
    """The bytes of a stored chunk, by the array's `.zarray` or `zarr.json`; None where it may be compressed."""
    more = orbax_metadata.added_bytes(metadata, zarr3=zarr3, where=where)
    return None if more is None else math.prod(shape(array)) * array.dtype.numpy_dtype.itemsize + more


def places(array: ts.TensorStore, boxes: Sequence[Box]) -> Iterator[tuple[int, ...]]:
    """The places in the array's grid of the chunks that meet boxes."""
    for box in boxes:
        spans = [range(a // c, -(-b // c)) for a, b, c in zip(box.start, box.stop, shape(array), strict=True)]
        yield from itertools.product(*spans)
