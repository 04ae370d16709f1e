"""Boxes of arrays from the merged root: whole chunks, each read once and proven (spec: reading).

Chunks are read as plain values of the database. Nothing that is stored beside them is
trusted: where they lie, how long they are and what they mean comes from the layout, and their
digests prove them. The stored `zarr.json` is compared with the layout all the same, since other
readers go by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import tensorstore as ts

from ckptcore import dtypes
from ckptcore.array_merge import metadata_problem
from ckptcore.array_spec import CHECKSUM_BYTES, Piece, StoredArray, answer, read_error
from ckptcore.digests import check
from ckptcore.errors import CallError, Damaged, InvalidRecord
from ckptcore.geometry import Box
from ckptcore.store import Store
from ckptcore.workers import Workers

Request = tuple[StoredArray, Sequence[Box], Sequence[str]]
"""An array, the boxes wanted of it, and the digests of all its chunks in grid order."""

HELD_BYTES = 128 << 20
"""Memory for chunks on their way, on top of the results."""

BATCH_BYTES = 4 << 20
BATCH_READS = 256
NODE_CACHE_BYTES = 32 << 20
METADATA_BYTES = 512
FILE_THREADS = 4
OBJECT_THREADS = 16


class ArrayReader:
    """Reads from the database at `state_prefix`. Safe to use from several threads."""

    def __init__(self, store: Store, state_prefix: str) -> None:
        self._store = store
        self._prefix = state_prefix

    def read(self, array: StoredArray, boxes: Sequence[Box], digests: Sequence[str]) -> list[np.ndarray]:
        """Read `boxes` of one array; see `read_many`."""
        return self.read_many([(array, boxes, digests)])[0]

    def read_many(self, requests: Sequence[Request]) -> list[list[np.ndarray]]:
        """Read the boxes of every request: one new C-ordered array each, in the stored dtype.

        A chunk that meets several boxes is read once. At most `HELD_BYTES` (or one chunk, if that
        is larger) are held beyond the results. Raises `Damaged`, naming array, chunk and key,
        for chunks or metadata that are missing, short or differ from their digest; `StoreUnavailable`
        or `StoreError`; `CallError` for a box outside of its array; `InvalidRecord` for a
        number of digests that does not fit the grid.
        """
        wanted: dict[tuple[StoredArray, tuple[str, ...]], _Wanted] = {}
        places = []
        for array, boxes, digests in requests:
            target = wanted.setdefault((array, tuple(digests)), _Wanted(array, digests))
            places.append((target, target.add(boxes)))
        self._run(_batches(read for target in wanted.values() for read in target.reads()))
        return [[target.result(number) for number in numbers] for target, numbers in places]

    def _run(self, batches: Iterable[list[_Read]]) -> None:
        """Run batches in threads, within the bound of memory; raise the first error."""
        flying: deque[tuple[int, Future[None]]] = deque()
        held = 0
        with Workers(FILE_THREADS if self._store.driver == "file" else OBJECT_THREADS, "read") as pool:
            for batch in batches:
                # TensorStore's buffer and the bytes taken out of it.
                cost = 2 * sum(read.nbytes for read in batch)
                while flying and held + cost > HELD_BYTES:
                    freed, future = flying.popleft()
                    future.result()
                    held -= freed
                flying.append((cost, pool.submit(self._fetch, batch)))
                held += cost
            for _, future in flying:
                future.result()

    def _fetch(self, batch: list[_Read]) -> None:
        started = [(read, self._start(read)) for read in batch]
        for read, future in started:
            what = f"{read.what}, key {read.key} in {self._prefix}"
            read.accept(self._value(future, what), what)

    def _start(self, read: _Read) -> ts.Future[Any]:
        if read.exact:
            # The range bounds what a damaged or hostile database can make us allocate.
            return self._root.read(read.key, byte_range=slice(0, read.nbytes))
        return self._root.read(read.key)

    def _value(self, future: ts.Future[Any], what: str) -> bytes:
        result = answer(future, what, read_error)
        if result.state != "value":
            raise Damaged(f"{what}: is missing. Use another checkpoint")
        return result.value

    @cached_property
    def _root(self) -> ts.KvStore:
        # No configuration is asked for: that of the stored database holds.
        cache = {"total_bytes_limit": NODE_CACHE_BYTES}
        spec = {"driver": "ocdbt", "base": self._store.kvstore(self._prefix), "cache_pool": cache}
        return answer(ts.KvStore.open(spec, context=self._store.context), f"merged root of {self._prefix}", read_error)


@dataclass(frozen=True)
class _Read:
    """One value to fetch. `accept` takes its bytes and how to call it in errors; `exact`: `nbytes` is its length."""

    key: str
    nbytes: int
    what: str
    accept: Callable[[bytes, str], None]
    exact: bool


class _Wanted:
    """The boxes that are wanted of one array, and the results as they fill."""

    def __init__(self, array: StoredArray, digests: Sequence[str]) -> None:
        if len(digests) != array.grid.size:
            raise InvalidRecord(f"array {array.name!r}: {len(digests)} digests for {array.grid.size} chunks")
        self._array = array
        self._digests = digests
        self._dtype = dtypes.numpy_dtype(array.dtype)
        self._boxes: list[Box] = []
        self._results: dict[int, np.ndarray] = {}
        self._lock = Lock()

    def add(self, boxes: Sequence[Box]) -> range:
        """Want `boxes` too; return their numbers."""
        whole = Box.whole(self._array.shape)
        for box in boxes:
            if len(box.start) != len(whole.start) or not whole.contains(box):
                raise CallError(
                    f"box {box.start} to {box.stop} does not lie in array {self._array.name!r} of shape {self._array.shape}"
                )
        self._boxes.extend(boxes)
        return range(len(self._boxes) - len(boxes), len(self._boxes))

    def reads(self) -> Iterator[_Read]:
        """All values to fetch: metadata first, so that it is known to fit."""
        meeting: dict[int, list[int]] = {}
        for number, box in enumerate(self._boxes):
            for chunk in self._array.grid.overlapping(box):
                meeting.setdefault(chunk, []).append(number)
        chunks = sorted(meeting)
        pieces = [self._array.piece(chunk) for chunk in chunks] if chunks else list(self._array.pieces())
        for piece in {piece.prefix: piece for piece in pieces}.values():
            yield self._metadata_read(piece)
        for chunk in chunks:
            yield self._chunk_read(chunk, meeting[chunk])

    def result(self, number: int) -> np.ndarray:
        """The array of one box."""
        with self._lock:
            if number not in self._results:
                # Only now, when a chunk of it was proven: a record alone does not make us allocate.
                self._results[number] = self._allocate(self._boxes[number].shape)
            return self._results[number]

    def _allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return np.empty(shape, self._dtype)
        except (ValueError, MemoryError) as error:
            raise CallError(f"array {self._array.name!r}: no memory for a box of shape {shape}; restore smaller boxes") from error

    def _metadata_read(self, piece: Piece) -> _Read:
        def accept(data: bytes, what: str) -> None:
            problem = metadata_problem(piece, data)
            if problem:
                raise Damaged(f"{what}: {problem}. Use another checkpoint")

        return _Read(piece.metadata_key, METADATA_BYTES, f"metadata of array {self._array.name!r}", accept, exact=False)

    def _chunk_read(self, chunk: int, numbers: Sequence[int]) -> _Read:
        def accept(data: bytes, what: str) -> None:
            if len(data) != size:
                raise Damaged(f"{what}: has {len(data)} bytes instead of {size}. Use another checkpoint")
            self._accept_chunk(chunk, numbers, data, what)

        size = self._array.chunk_bytes(chunk) + CHECKSUM_BYTES
        return _Read(self._array.chunk_key(chunk), size, self._array.describe(chunk), accept, exact=True)

    def _accept_chunk(self, chunk: int, numbers: Sequence[int], data: bytes, what: str) -> None:
        """Prove a chunk and copy it to the boxes that it meets."""
        cell, shape = self._array.grid.cell(chunk), self._array.piece(chunk).chunk_shape
        padded = np.frombuffer(data, np.uint8, len(data) - CHECKSUM_BYTES).view(self._dtype).reshape(shape)
        elements = padded[(..., *Box.whole(cell.shape).slices())]  # the ellipsis keeps a 0-d array an array
        check(elements, self._digests[chunk], what=what)
        for number in numbers:
            box = self._boxes[number]
            common = cell.intersect(box)
            if common is not None:
                self.result(number)[common.slices(box.start)] = elements[common.slices(cell.start)]


def _batches(reads: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Small reads together, so that they cost one task; a large one alone."""
    batch: list[_Read] = []
    held = 0
    for read in reads:
        if batch and (held + read.nbytes > BATCH_BYTES or len(batch) >= BATCH_READS):
            yield batch
            batch, held = [], 0
        batch.append(read)
        held += read.nbytes
    if batch:
        yield batch
