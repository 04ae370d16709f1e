"""Boxes of arrays from the merged root: whole chunks, each read once and proven (spec: reading).

Chunks are read as plain values of the database. Nothing that is stored beside them is
trusted: how long they are and what they mean comes from the layout, and their
digests prove them. The stored `zarr.json` is compared with the layout all the same, since other
readers go by it.

A chunk that fills a piece of a result's memory is read right there, and digested on the way. Others take a detour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np
import tensorstore as ts

from ckptcore.array_locations import Locations, Place
from ckptcore.array_ranges import File, Ranges
from ckptcore.array_results import MetadataRead, Read, Results
from ckptcore.array_spec import StoredArray, answer, read_error
from ckptcore.digests import Checking
from ckptcore.errors import Damaged
from ckptcore.geometry import Box
from ckptcore.store import FILE_THREADS, Store
from ckptcore.workers import Workers

Request = tuple[StoredArray, Sequence[Box], Sequence[str]]
"""An array, the boxes wanted of it, and the digests of all its chunks in grid order."""

READS = 1 << 16
"""Reads that are planned at a time."""

SMALL_BYTES = 256 << 10
"""Values below this size that lie close to each other are read together."""

GAP_BYTES = 64 << 10
RUN_BYTES = 4 << 20


class Passed(Protocol):
    """Chunks that come from other ranks of the job instead of the store (`ckptcore.sharing`)."""

    def begin(self, reads: Iterable[Read]) -> Iterable[Read]:
        """Start to get what others have. Gives the reads that are left."""
        ...

    def missing(self) -> Sequence[Read]:
        """What did not come, once all that will come is in its place."""
        ...


class ArrayReader:
    """Reads from the database at `state_prefix`. Safe to use from several threads."""

    def __init__(self, store: Store, state_prefix: str) -> None:
        self._store = store
        self._prefix = state_prefix

    def read(self, array: StoredArray, boxes: Sequence[Box], digests: Sequence[str]) -> list[np.ndarray]:
        """Read `boxes` of one array; see `read_many`."""
        return self.read_many([(array, boxes, digests)])[0]

    def read_many(self, requests: Sequence[Request], *, passed: Passed | None = None) -> list[list[np.ndarray]]:
        """Read the boxes of every request: one new C-ordered array each, in the stored dtype.

        A chunk that meets several boxes is read once, and not at all if another rank has `passed` it on. At most the
        store's `bytes_in_flight` (or one chunk, if that is larger) are held beyond the results. Raises `Damaged`, naming
        array, chunk and key, for chunks or metadata that are missing, short or differ from their digest; `StoreUnavailable`
        or `StoreError`; `CallError` for a box outside of its array; `InvalidRecord` for a number of digests that does not
        fit the grid.
        """
        wanted: dict[tuple[StoredArray, tuple[str, ...]], Results] = {}
        places = []
        for array, boxes, digests in requests:
            results = wanted.setdefault((array, tuple(digests)), Results(array, digests))
            places.append((results, results.add(boxes)))
        reads = (read for results in wanted.values() for read in results.reads())
        left = iter(reads if passed is None else passed.begin(reads))
        while some := list(islice(left, READS)):
            self._run(some)
        if passed is not None:
            self._run(passed.missing())
        return [[results.box(number) for number in numbers] for results, numbers in places]

    def _run(self, reads: Sequence[Read]) -> None:
        """Read in threads, within the bound of memory; raise the first error."""
        runs = _runs(self._located(reads), min(RUN_BYTES, self._store.limits.bytes_in_flight // FILE_THREADS))
        if not runs:
            return
        largest = max(run.nbytes for run in runs) or 1  # a damaged tree may hold a value of no bytes
        with Workers(self._threads(largest), "read") as pool:
            pool.map(self._fetch, runs)

    def _located(self, reads: Sequence[Read]) -> Iterator[tuple[Place, Read]]:
        """Where the values lie that have to be read. Those that lie in the tree are taken at once."""
        try:
            found = self._database.locations.find(read.key for read in reads)
        except Damaged as error:
            raise Damaged(f"{self._what(reads[0])}, and {len(reads) - 1} more: {error}") from error
        for read in reads:
            place = found.get(read.key)
            if place is None:
                raise Damaged(f"{self._what(read)}: is missing. Use another checkpoint")
            # The size bounds what a damaged or hostile database can make us allocate.
            read.check_size(len(place) if isinstance(place, bytes) else place.nbytes, self._what(read))
            if isinstance(place, bytes):
                read.accept(memoryview(place), self._what(read))
            else:
                yield place, read

    def _threads(self, largest: int) -> int:
        limits = self._store.limits
        if self._store.driver == "file":
            return max(1, min(max(limits.threads, min(FILE_THREADS, limits.requests)), limits.bytes_in_flight // largest))
        # TensorStore's bytes, and what they are copied to.
        return max(1, min(limits.requests, limits.bytes_in_flight // (2 * largest)))

    def _fetch(self, run: _Run) -> None:
        with self._database.ranges.open(run.path, self._what(run.reads[0][1])) as file:
            if len(run.reads) == 1 and self._straight(file, *run.reads[0]):
                return
            buffer = memoryview(bytearray(run.nbytes))
            file.read_into(buffer, run.start)
        for place, read in run.reads:
            at = place.start - run.start
            read.accept(buffer[at : at + place.nbytes], self._what(read))

    def _straight(self, file: File, place: Place, read: Read) -> bool:
        """Read a large chunk to where it is wanted, if it can be. Its checksum and the padding before that are not read."""
        if isinstance(read, MetadataRead) or place.nbytes < SMALL_BYTES:
            return False
        file.reach(place.start + place.nbytes)  # before memory is asked for
        elements = read.destination()
        if elements is None:
            return False
        checking = Checking(read.digest, what=self._what(read))
        file.read_into(elements.reshape(-1).view(np.uint8).data, place.start, checking.update)
        checking.finish()
        read.copy(elements)
        return True

    def _what(self, read: Read) -> str:
        return f"{read.what}, key {read.key} in {self._prefix}"

    @cached_property
    def _database(self) -> _Database:
        what = f"merged root of {self._prefix}"
        spec = self._store.kvstore(self._prefix)
        base = answer(ts.KvStore.open(spec, context=self._store.context), what, read_error)
        return _Database(Locations(base, self._store.context, what), Ranges(spec, base))


@dataclass(frozen=True)
class _Database:
    locations: Locations
    ranges: Ranges


@dataclass
class _Run:
    """Values that lie close to each other in one file, in order, and are read at a time."""

    path: str
    start: int
    stop: int
    reads: list[tuple[Place, Read]]

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    def takes(self, place: Place, most: int) -> bool:
        """Whether a value is better read with these than alone, so long as they are no more than `most` bytes."""
        stop = place.start + place.nbytes
        near = self.path == place.path and place.start - self.stop <= GAP_BYTES and stop - self.start <= most
        return near and place.nbytes < SMALL_BYTES and self.reads[-1][0].nbytes < SMALL_BYTES

    def add(self, place: Place, read: Read) -> None:
        self.stop = max(self.stop, place.start + place.nbytes)
        self.reads.append((place, read))


def _runs(located: Iterator[tuple[Place, Read]], most: int) -> list[_Run]:
    """In the order of files and places, which disks like best."""
    runs: list[_Run] = []
    for place, read in sorted(located, key=lambda item: (item[0].path, item[0].start)):
        if runs and runs[-1].takes(place, most):
            runs[-1].add(place, read)
        else:
            runs.append(_Run(place.path, place.start, place.start + place.nbytes, [(place, read)]))
    return runs
