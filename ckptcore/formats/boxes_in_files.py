"""Boxes of an array that lies in a file as its plain bytes in C order.

Read with `pread` into the memory of the result, so that a box costs its own bytes; the file is never mapped: a mapped
file that another process cuts short would end this one by a signal.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ckptcore import dtypes, posix
from ckptcore.errors import Damaged, NotFound
from ckptcore.geometry import Box

_PAGE = 4096
_SLAB_BYTES = 4 << 20
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: a FIFO in the place of a file must not hang us


@dataclass(frozen=True)
class Stamp:
    """What tells whether a file is still the one whose header was read."""

    size: int
    changed: int
    inode: int


@dataclass(frozen=True)
class OpenFile:
    """An open file. Its errors name it."""

    descriptor: int
    path: Path
    stamp: Stamp

    def fill(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` with the bytes from `offset` on. Raises `Damaged` if there are too few."""
        done = 0
        while done < len(memory):
            try:
                count = os.preadv(self.descriptor, [memory[done:]], offset + done)
            except OSError as error:
                raise posix.translate(error, f"reading {self.path}", of_run=False) from error
            if count == 0:
                raise Damaged(f"{self.path}: ends at byte {offset + done}, {len(memory) - done} bytes too early")
            done += count

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. Raises `Damaged` if there are too few."""
        data = bytearray(length)
        self.fill(offset, memoryview(data))
        return bytes(data)


@contextmanager
def opened(path: Path, stamp: Stamp | None = None) -> Iterator[OpenFile]:
    """A file, open for reading. With `stamp`, raises `Damaged` unless it is still the same file.

    Raises `NotFound` if there is none, a `StoreError` if it cannot be read.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except OSError as error:
        raise posix.translate(error, f"opening {path}", of_run=False) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(f"{path} is not a file")
        found = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        if stamp not in (None, found):
            raise Damaged(f"{path} was changed after its header had been read")
        yield OpenFile(descriptor, path, found)
    finally:
        os.close(descriptor)


def read_box(file: OpenFile, offset: int, dtype: str, shape: Sequence[int], box: Box) -> np.ndarray:
    """A box of the array of logical `dtype` and `shape` whose bytes begin at `offset`, in memory of its own."""
    result = np.empty(box.shape, dtypes.numpy_dtype(dtype))
    raw = result.reshape(-1).view(np.uint8).reshape(*box.shape, -1) if result.size else None
    if raw is not None:
        itemsize = dtypes.itemsize(dtype)
        _copy(file, offset, (*shape, itemsize), (*box.start, 0), raw)
    if result.dtype == np.bool_:
        np.not_equal(result.view(np.uint8), 0, out=result)  # any byte can lie in a file
    return result


def _copy(file: OpenFile, offset: int, shape: Sequence[int], start: Sequence[int], result: np.ndarray) -> None:
    """Copy the box of `result`'s shape that begins at `start` of an array of bytes into `result`, which is contiguous."""
    row = math.prod(shape[1:])
    first = offset + start[0] * row
    if result.shape[1:] == tuple(shape[1:]):
        file.fill(first, result.reshape(-1).data)
    elif row <= _PAGE:  # whole pages come from the disk anyway
        _cut(file, first, shape[1:], start[1:], result)
    elif result.shape[2:] == tuple(shape[2:]):  # a run of bytes in each row
        first += start[1] * math.prod(shape[2:])
        flat, length = result.reshape(-1).data, math.prod(result.shape[1:])
        for number in range(len(result)):
            file.fill(first + number * row, flat[number * length : (number + 1) * length])
    else:
        for number, part in enumerate(result):
            _copy(file, first + number * row, shape[1:], start[1:], part)


def _cut(file: OpenFile, first: int, shape: Sequence[int], start: Sequence[int], result: np.ndarray) -> None:
    """Copy the part that begins at `start` of each row of `shape` into `result`, through a slab of whole rows."""
    row = math.prod(shape)
    step = max(1, _SLAB_BYTES // row)
    box = Box(tuple(start), tuple(a + length for a, length in zip(start, result.shape[1:], strict=True)))
    slab = np.empty((min(step, len(result)), *shape), np.uint8)
    for number in range(0, len(result), step):
        rows = slab[: len(result) - number]
        file.fill(first + number * row, rows.reshape(-1).data)
        result[number : number + len(rows)] = rows[(slice(None), *box.slices())]
