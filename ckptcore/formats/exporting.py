"""What exports have in common: how an array is cut where it is written anew, how much there is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ckptcore import dtypes
from ckptcore.array_spec import StoredArray
from ckptcore.geometry import CHUNK_BYTES, Grid
from ckptcore.inspect.streaming import batches
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf

Progress = Callable[[int], object]
"""Told of array bytes as they are read."""


@dataclass(frozen=True)
class Exported:
    """What was written: how many arrays, their bytes, and for people what was left out."""

    arrays: int
    bytes: int
    left_out: tuple[str, ...] = ()


def regular(name: str, record: ArrayLeaf, dtype: str) -> StoredArray:
    """An array as `dtype`, in the chunks that it has, or in even ones where it has others or none of its own."""
    chunk_shape = record.chunk_shape or _even(record.shape, dtypes.itemsize(dtype))
    return StoredArray(name, dtype, record.shape, Grid.regular(record.shape, chunk_shape))


def array_bytes(checkpoint: Checkpoint, components: Sequence[str]) -> int:
    """Stored bytes of all arrays of components, of those stored per rank the copies of all ranks."""
    return sum(
        math.prod(leaf.record.shape) * dtypes.itemsize(leaf.record.stored_dtype)
        for name in components
        for rank in checkpoint.ranks(name)
        for leaf in checkpoint.leaves(name, rank).values()
        if isinstance(leaf.record, ArrayLeaf)
    )


def read_in_parts(checkpoint: Checkpoint, leaf: StoredLeaf, array: StoredArray) -> Iterator[dict[int, np.ndarray]]:
    """All of an array leaf in the cells of `array`, a few at a time: cell → its elements in the stored dtype, checked."""
    first = 0
    for boxes in batches(array):
        yield dict(enumerate(checkpoint.read([(leaf, boxes)])[0], start=first))
        first += len(boxes)


def _even(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The extents of chunks of at most `CHUNK_BYTES`: those of the array, the longest halved until they fit."""
    extents = [max(extent, 1) for extent in shape]
    while math.prod(extents) * itemsize > CHUNK_BYTES and max(extents, default=1) > 1:
        longest = extents.index(max(extents))
        extents[longest] = -(-extents[longest] // 2)
    return tuple(extents)
