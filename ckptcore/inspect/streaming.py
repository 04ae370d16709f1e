"""Arrays from end to end, a bounded number of chunks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ckptcore import dtypes
from ckptcore.array_spec import StoredArray
from ckptcore.geometry import Box
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf

BATCH_BYTES = 64 << 20
"""The most bytes that are read at a time, or one chunk if that is larger."""


def batches(array: StoredArray, most: int = BATCH_BYTES) -> Iterator[list[Box]]:
    """The cells of an array, in grid order: as many together as have at most `most` bytes."""
    held, boxes = 0, list[Box]()
    for cell in range(array.grid.size):
        box = array.grid.cell(cell)
        size = box.size * array.itemsize
        if boxes and held + size > most:
            yield boxes
            held, boxes = 0, []
        boxes.append(box)
        held += size
    if boxes:
        yield boxes


def elements(
    checkpoint: Checkpoint, leaf: StoredLeaf, *, progress: Callable[[int], object] = lambda _: None
) -> Iterator[tuple[Box, np.ndarray]]:
    """All elements of an array leaf in its logical dtype, a cell at a time; reading checks them.

    `progress` is told of bytes as they are read. Raises a `DamageError` as `Checkpoint.read` does.
    """
    array, _ = checkpoint.array(leaf)
    for boxes in batches(array):
        for box, stored in zip(boxes, checkpoint.read([(leaf, boxes)])[0], strict=True):
            progress(stored.nbytes)
            yield box, logical(leaf, stored)


def logical(leaf: StoredLeaf, stored: np.ndarray) -> np.ndarray:
    """Elements of an array leaf as it was saved, from those that are stored."""
    return dtypes.from_stored(stored, leaf.record.dtype) if isinstance(leaf.record, ArrayLeaf) else stored
