"""The boxes that are wanted of one array, and how they fill (spec: reading). No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np

from ckptcore import dtypes
from ckptcore.array_merge import MAX_METADATA_BYTES, metadata_problem
from ckptcore.array_spec import CHECKSUM_BYTES, Piece, StoredArray
from ckptcore.digests import check
from ckptcore.errors import CallError, Damaged, InvalidRecord
from ckptcore.geometry import Box

ALIGNMENT = 64
"""Bytes at a multiple of which a large result begins: JAX on CPUs then uses it where it is, without a copy."""

LARGE_BYTES = 64 << 10


class Results:
    """The boxes that are wanted of one array, and the results as they fill. Once all were added, several threads may use it."""

    def __init__(self, array: StoredArray, digests: Sequence[str]) -> None:
        if len(digests) != array.grid.size:
            raise InvalidRecord(f"array {array.name!r}: {len(digests)} digests for {array.grid.size} chunks")
        self.array = array
        self.digests = digests
        self.dtype = dtypes.numpy_dtype(array.dtype)
        self.boxes: list[Box] = []
        self._made: dict[int, np.ndarray] = {}
        self._lock = Lock()

    def add(self, boxes: Sequence[Box]) -> range:
        """Want `boxes` too; return their numbers. Raises `CallError` for one outside of the array."""
        whole = Box.whole(self.array.shape)
        for box in boxes:
            if len(box.start) != len(whole.start) or not whole.contains(box):
                raise CallError(
                    f"box {box.start} to {box.stop} does not lie in array {self.array.name!r} of shape {self.array.shape}"
                )
        self.boxes.extend(boxes)
        return range(len(self.boxes) - len(boxes), len(self.boxes))

    def reads(self) -> Iterator[Read]:
        """All values to fetch: metadata first, so that it is known to fit."""
        meeting: dict[int, list[int]] = {}
        for number, box in enumerate(self.boxes):
            for chunk in self.array.grid.overlapping(box):
                meeting.setdefault(chunk, []).append(number)
        chunks = sorted(meeting)
        pieces = [self.array.piece(chunk) for chunk in chunks] if chunks else list(self.array.pieces())
        for piece in {piece.prefix: piece for piece in pieces}.values():
            yield MetadataRead(self, piece)
        for chunk in chunks:
            yield ChunkRead(self, chunk, meeting[chunk])

    def box(self, number: int) -> np.ndarray:
        """The array of one box. Raises `CallError` when there is no memory for it."""
        with self._lock:
            if number not in self._made:
                # Only now, when a chunk of it was found: a record alone does not make us allocate.
                self._made[number] = self._allocate(self.boxes[number].shape)
            return self._made[number]

    def _allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return _empty(shape, self.dtype)
        except (ValueError, MemoryError) as error:
            raise CallError(f"array {self.array.name!r}: no memory for a box of shape {shape}; restore smaller boxes") from error


@dataclass(frozen=True)
class MetadataRead:
    """The `zarr.json` of one zarr array, to be compared with the layout."""

    results: Results
    piece: Piece

    @property
    def key(self) -> str:
        """Its key in the database."""
        return self.piece.metadata_key

    @property
    def what(self) -> str:
        """How to call it in errors."""
        return f"metadata of array {self.results.array.name!r}"

    def check_size(self, nbytes: int, what: str) -> None:
        """Raise `Damaged` for a size that no metadata has."""
        if nbytes > MAX_METADATA_BYTES:
            self.accept(memoryview(b""), what)  # which it cannot be: nobody reads so much of it

    def accept(self, data: memoryview, what: str) -> None:
        """Raise `Damaged` unless `data` is what the layout says."""
        problem = metadata_problem(self.piece, bytes(data))
        if problem:
            raise Damaged(f"{what}: {problem}. Use another checkpoint")


@dataclass(frozen=True)
class ChunkRead:
    """One chunk, for the boxes `numbers` that it meets."""

    results: Results
    chunk: int
    numbers: Sequence[int]

    @property
    def key(self) -> str:
        """Its key in the database."""
        return self.results.array.chunk_key(self.chunk)

    @property
    def what(self) -> str:
        """How to call it in errors."""
        return self.results.array.describe(self.chunk)

    @property
    def digest(self) -> str:
        """The recorded digest of its elements."""
        return self.results.digests[self.chunk]

    @cached_property
    def cell(self) -> Box:
        """Where its elements lie in the array."""
        return self.results.array.grid.cell(self.chunk)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """As it is stored, with its padding."""
        return self.results.array.piece(self.chunk).chunk_shape

    def check_size(self, nbytes: int, what: str) -> None:
        """Raise `Damaged` for a size that it cannot have."""
        expected = self.results.array.chunk_bytes(self.chunk) + CHECKSUM_BYTES
        if nbytes != expected:
            raise Damaged(f"{what}: has {nbytes} bytes instead of {expected}. Use another checkpoint")

    def accept(self, data: memoryview, what: str) -> None:
        """Prove the chunk, given as it is stored, and copy it to the boxes that it meets. Raises `Damaged`."""
        padded = np.frombuffer(data, np.uint8, len(data) - CHECKSUM_BYTES).view(self.results.dtype).reshape(self.shape)
        elements = padded[(..., *Box.whole(self.cell.shape).slices())]  # the ellipsis keeps a 0-d array an array
        check(elements, self.digest, what=what)
        self.copy(elements)

    def destination(self) -> np.ndarray | None:
        """Memory of a result that is filled, in order, by the chunk's first bytes; None if there is none."""
        if self.cell.shape[1:] != self.shape[1:]:
            return None  # padding lies among its elements
        for number in self.numbers:
            box = self.results.boxes[number]
            if box.contains(self.cell):
                view = self.results.box(number)[(..., *self.cell.slices(box.start))]
                return view if view.flags.c_contiguous else None
        return None

    def copy(self, elements: np.ndarray) -> None:
        """Copy its elements to the boxes that it meets, but not onto themselves."""
        for number in self.numbers:
            box = self.results.boxes[number]
            common = self.cell.intersect(box)
            if common is not None:
                target = self.results.box(number)[(..., *common.slices(box.start))]
                if target.ctypes.data != elements.ctypes.data:
                    target[...] = elements[(..., *common.slices(self.cell.start))]


Read = MetadataRead | ChunkRead


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.empty`, but aligned if it is large."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)
