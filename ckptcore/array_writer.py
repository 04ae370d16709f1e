"""One process's database of chunks: each is digested and checksummed while it is written, without a copy (spec: arrays).

Chunks go into several data files at a time, each written front to back by a thread of its own, so that a disk works on one while
others are filled. On file systems these threads stand behind those that train. Where a chunk will lie is known before it is
written: the tree that says where is made in memory, and follows the last chunk. Memory that the caller staged is used as it is;
what has to be copied first (chunks that are not contiguous or need padding) is bounded by the store's `bytes_in_flight`. The
same arrays give the same files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import blake3
import google_crc32c
import numpy as np

from ckptcore import dtypes, ocdbt, posix, records
from ckptcore.array_sinks import Sink, opener
from ckptcore.array_spec import ANSWER_TIMEOUT, CHECKSUM_BYTES, DATA_FILE_BYTES, MANIFEST, OCDBT_CONFIG, StoredArray
from ckptcore.digests import ALGORITHM, digest, flat
from ckptcore.errors import CallError, StoreUnavailable
from ckptcore.ocdbt import Entry, Place
from ckptcore.store import FILE_THREADS, Store
from ckptcore.workers import Workers

Result = TypeVar("Result")

LANE_BYTES = 16 << 20
"""A further file is begun when there are so many bytes for each that there is: small databases have few."""
BEYOND = 4 << 10
"""A file may be larger by so much: else the checksum of the last chunk would keep that out of it."""
STEP = 1 << 20
"""Bytes that are digested, checksummed and written at a time: they stay in the processor's cache meanwhile."""


@dataclass
class _Lane:
    """A thread, and the data file that it writes. `start` and `assigned` count what it was given: for the file, and in all."""

    thread: Workers
    sink: Sink
    path: str
    start: int = 0
    assigned: int = 0
    failure: Exception | None = None

    def submit(self, call: Callable[..., Result], *args: Any) -> Future[Result]:
        """Do `call(sink, *args)` after what was given before, unless that has failed."""
        return self.thread.submit(self._run, call, self.sink, *args)

    def _run(self, call: Callable[..., Result], *args: Any) -> Result:
        if self.failure is not None:
            raise self.failure
        try:
            return call(*args)
        except Exception as error:
            self.failure = error
            raise


class DatabaseWriter:
    """Writes the database below `prefix`, which belongs to this process alone. Used from one thread.

    Arrays given to `add` must not change until `finish` or `close` has returned. `streamed`: they exist only to
    be written, so their memory is bounded too; an array may be added in several parts. After an
    error the database is of no use: its process delivers a failed receipt.
    """

    def __init__(self, store: Store, prefix: str, *, streamed: bool = False) -> None:
        self._store, self._prefix, self._streamed = store, prefix, streamed
        spec, limits = store.kvstore(prefix), store.limits
        self._open = opener(spec, store.context)
        self._most_lanes = min(limits.requests, max(limits.threads, FILE_THREADS))
        self._most_held = limits.bytes_in_flight // 2
        self._objects_bytes = None if spec["driver"] == "file" else limits.bytes_in_flight // 2
        self._file_bytes = (
            DATA_FILE_BYTES if self._objects_bytes is None else _object_bytes(self._objects_bytes, self._most_lanes)
        )
        self._largest = self._file_bytes
        # Where TensorStore sends what was written, it starts threads for the whole process from these, as slow as they are.
        self._behind = spec["driver"] == "file"
        self._lanes: list[_Lane] = []
        self._ended: list[Sink] = []
        self._files: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._described: set[str] = set()
        self._under_way: list[Future[Any]] = []
        self._held: deque[tuple[Future[str], int]] = deque()
        self._held_bytes = 0
        self._closed = False

    def add(self, array: StoredArray, chunks: Mapping[int, np.ndarray]) -> dict[int, Future[str]]:
        """Start writing chunks of `array`: chunk index → its elements, in the stored dtype and the cell's shape.

        Returns for each chunk what will be the BLAKE3 digest of its bytes (see `ckptcore.dtypes`), once it is written. With no
        chunks only the metadata is written. Raises `StoreFull`, `StoreUnavailable` or `StoreError` for an earlier array,
        `CallError` for a chunk that does not fit.
        """
        if self._closed:
            raise CallError("the database is finished: nothing can be added to it")
        try:
            self._describe(array, chunks)
            return {chunk: self._add(array, chunk, given) for chunk, given in chunks.items()}
        except BaseException:
            self.close()
            raise

    def finish(self) -> list[records.File]:
        """Wait until everything is durable; return the database's files, `manifest.ocdbt` with its digest.

        Nothing was added: no files. Raises what `add` raises, for all arrays.
        """
        if self._closed:
            raise CallError("the database is finished already, or has failed")
        try:
            manifest = self._complete() if self._entries else b""
        finally:
            self.close()
        if not manifest:
            return []
        self._store.sync(self._prefix)
        files = [records.File(path=path, size=size, digest=None) for path, size in self._files.items()]
        return [*files, records.File(path=MANIFEST, size=len(manifest), digest=digest(manifest))]

    def close(self) -> None:
        """Give the database up: wait for what is under way, whatever becomes of it, and drop the rest, also whole files.

        Once `finish` has returned, there is nothing left to give up.
        """
        self._closed = True
        for lane in self._lanes:
            lane.thread.close()
            lane.sink.abandon()
        for sink in self._ended:
            sink.abandon()  # its end may have been dropped with the rest
            sink.undo()
        self._ended.clear()
        self._lanes.clear()
        self._held.clear()

    def _describe(self, array: StoredArray, chunks: Mapping[int, np.ndarray]) -> None:
        """The metadata of the zarr arrays that the chunks belong to, once each."""
        for piece in map(array.piece, chunks) if chunks else array.pieces():
            if piece.metadata_key not in self._described:
                self._described.add(piece.metadata_key)
                self._put(piece.metadata_key, piece.metadata_bytes)

    def _put(self, key: str, data: bytes) -> None:
        inline = len(data) <= OCDBT_CONFIG["max_inline_value_bytes"]
        self._entries.append(Entry(key.encode(), data if inline else self._append(data)))

    def _append(self, data: bytes) -> Place:
        lane = self._lane(len(data))
        return self._place(lane, len(data), lane.submit(_write, data, f"tree of {self._prefix}"))

    def _add(self, array: StoredArray, chunk: int, given: np.ndarray) -> Future[str]:
        data = _checked(array, chunk, given)
        size = array.chunk_bytes(chunk)
        logical = flat(data)
        padded = logical if data.nbytes == size else flat(_padded(array, chunk, data))
        lane = self._lane(size + CHECKSUM_BYTES)
        what = f"{array.describe(chunk)} in {self._prefix}"
        writing = lane.submit(_write_chunk, logical, padded, what)
        self._entries.append(Entry(array.chunk_key(chunk).encode(), self._place(lane, size + CHECKSUM_BYTES, writing)))
        copied = data.nbytes * (self._streamed or data is not given) + size * (padded is not logical)
        self._hold(writing, copied)
        return writing

    def _lane(self, nbytes: int) -> _Lane:
        """Who writes the next bytes: the lane that has got the least, or a new one."""
        total, most = sum(lane.assigned for lane in self._lanes) + nbytes, self._lanes_for(nbytes)
        if len(self._lanes) < min(most, 1 + total // LANE_BYTES):
            self._lanes.append(_Lane(Workers(1, f"write-{len(self._lanes)}", behind=self._behind), *self._new_file()))
        lane = min(self._lanes[:most], key=lambda each: each.assigned)
        if lane.start and lane.start + nbytes > self._file_bytes + BEYOND:
            self._end_file(lane)
            lane.sink, lane.path = self._new_file()
            lane.start = 0
        return lane

    def _lanes_for(self, nbytes: int) -> int:
        """How many lanes may be used: an object is in memory twice while it is sent, and has to hold the largest chunk."""
        self._largest = max(self._largest, nbytes)
        if self._objects_bytes is None:
            return self._most_lanes
        return max(1, min(self._most_lanes, self._objects_bytes // self._largest))

    def _new_file(self) -> tuple[Sink, str]:
        path = f"d/{len(self._files):032x}"
        self._files[path] = 0
        return self._open(path), path

    def _place(self, lane: _Lane, nbytes: int, writing: Future[Any]) -> Place:
        place = Place(lane.path, lane.start, nbytes)
        lane.start += nbytes
        lane.assigned += nbytes
        self._files[lane.path] = lane.start
        self._under_way.append(writing)
        return place

    def _end_file(self, lane: _Lane) -> None:
        what = f"file {lane.path} of {self._prefix}"
        self._ended.append(lane.sink)
        self._under_way.append(lane.submit(_finish, what))

    def _hold(self, writing: Future[str], nbytes: int) -> None:
        """Wait until memory that exists only for chunks under way is within its bound."""
        if nbytes:
            self._held.append((writing, nbytes))
            self._held_bytes += nbytes
        while self._held and (self._held[0][0].done() or self._held_bytes > self._most_held):
            written, freed = self._held.popleft()
            self._held_bytes -= freed
            _answer(written, self._prefix)

    def _complete(self) -> bytes:
        """Write the tree and the manifest, once all that they refer to is durable; returns the manifest."""
        self._entries.sort(key=lambda entry: entry.key)
        root = ocdbt.tree(self._entries, self._append)
        for lane in self._lanes:
            self._end_file(lane)
        for under_way in self._under_way:
            _answer(under_way, self._prefix)
        identity = bytes.fromhex(digest(self._prefix.encode()).partition(":")[2][:32])
        manifest = ocdbt.manifest(root, OCDBT_CONFIG, identity)
        sink = self._open(MANIFEST)
        _write(sink, manifest, f"{MANIFEST} of {self._prefix}")
        _finish(sink, f"{MANIFEST} of {self._prefix}")
        self._ended.clear()  # from here on it is a database
        return manifest


def _object_bytes(memory: int, lanes: int) -> int:
    """At which size of an object the next is begun: many threads do not make for small objects, each of which is a request."""
    return min(DATA_FILE_BYTES, max(memory // lanes, min(LANE_BYTES, memory)))


def _write_chunk(sink: Sink, data: np.ndarray, padded: np.ndarray, what: str) -> str:
    """Write a chunk and its checksum; returns the digest of what it is without the padding."""
    hasher, checksum = blake3.blake3(), 0
    if padded is not data:
        hasher.update(data.data)
    for at in range(0, len(padded), STEP):
        part = padded[at : at + STEP]
        if padded is data:
            hasher.update(part.data)
        checksum = google_crc32c.extend(checksum, part)
        _write(sink, part.data, what)
    _write(sink, checksum.to_bytes(CHECKSUM_BYTES, "little"), what)
    return f"{ALGORITHM}:{hasher.hexdigest()}"


def _write(sink: Sink, data: bytes | memoryview, what: str) -> None:
    try:
        sink.write(memoryview(data))
    except OSError as error:
        raise posix.translate(error, what) from error


def _finish(sink: Sink, what: str) -> None:
    try:
        sink.finish()
    except OSError as error:
        raise posix.translate(error, what) from error


def _answer(under_way: Future[Any], prefix: str) -> None:
    """Wait for one of the writes, which are asked for in the order in which they were begun. Raises its error."""
    try:
        under_way.result(timeout=ANSWER_TIMEOUT)
    except TimeoutError as error:
        raise StoreUnavailable(
            f"database {prefix}: nothing more was written within {ANSWER_TIMEOUT:g} s; try again when the store answers"
        ) from error


def _checked(array: StoredArray, chunk: int, data: np.ndarray) -> np.ndarray:
    """The chunk's elements, contiguous. Raises `CallError` when they are not what the layout says."""
    shape, dtype = array.grid.cell(chunk).shape, dtypes.numpy_dtype(array.dtype)
    data = np.asarray(data)  # indexing a 0-d array gives a numpy scalar
    if data.shape != shape or data.dtype != dtype:
        raise CallError(
            f"{array.describe(chunk)} was staged as {data.dtype}{list(data.shape)}, its layout says {dtype}{list(shape)}"
        )
    return data if data.flags.c_contiguous else np.ascontiguousarray(data)


def _padded(array: StoredArray, chunk: int, data: np.ndarray) -> np.ndarray:
    """A chunk at the edge of its array, as it is stored: the fill value, whose bytes are zeros, stands where nothing is."""
    whole = np.zeros(array.piece(chunk).chunk_shape, data.dtype)
    whole[tuple(map(slice, data.shape))] = data
    return whole
