"""Chunks that several ranks of a job restore whole: one of them reads each, and passes it on (docs/adr/0024).

Every rank tells the digest of the list of chunks it wants; where they differ, the lowest rank with each list tells all of it. All
make the same plan of it (`ckptcore.shareplan`). Then each reads its own chunks from the store, and gets the others from their
owners meanwhile (`ckptcore.sharewire`). A rank's own chunks depend on nobody, and what does not come is read from the store: so
nothing that goes wrong here is an error of the restore.

The exchange is in the main thread, and every rank takes part in it exactly once, whatever becomes of its restore.
"""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from ckptcore import canonical, digests
from ckptcore.array_results import ChunkRead, Read
from ckptcore.channel import Channel
from ckptcore.errors import CheckpointError
from ckptcore.events import log, shorten
from ckptcore.limits import Limits
from ckptcore.shareplan import Plan, Wish, encode, plan
from ckptcore.sharewire import Server, Shelf, fetch
from ckptcore.wire import Broken, Place, reached_at, shut
from ckptcore.workers import Workers

T = TypeVar("T")
_WHAT = "which chunks the ranks pass on to each other"


class Sharing:
    """What one rank of a job shares with the others in one restore. Close it when all of them have ended theirs.

    `timeout`: seconds that ranks wait for each other to know what they want.
    """

    def __init__(self, channel: Channel, limits: Limits, *, timeout: float) -> None:
        self._channel, self._limits, self._timeout = channel, limits, timeout
        self._shelf = Shelf()
        self._server: Server | None = None
        self._plan: Plan | None = None
        self._places: Sequence[Place | None] = ()
        self._passed: list[Passed] = []

    def agree(self, wishes: Iterable[Wish]) -> None:
        """Tell the other ranks what this one wants, and make the plan. What is read after a second call is not shared."""
        if self._plan is not None:
            self._plan = Plan()
            return
        told = encode(wishes)
        self._plan = Plan()  # before the exchange, which this rank must not take part in twice
        self._plan = self._exchange(told)
        self._shelf.expect(self._plan.of(self._channel.rank))

    def of(self, prefix: str) -> Passed | None:
        """What this rank passes on, and is passed, of the database at `prefix`; None if that is nothing."""
        plan = self._plan or Plan()
        numbers = {chunk[1:]: number for number, chunk in enumerate(plan.chunks) if chunk[0] == prefix}
        if not numbers:
            return None
        owners = {number: plan.owners[number] for number in numbers.values()}
        passed = Passed(
            rank=self._channel.rank,
            numbers=numbers,
            owners=owners,
            places=self._places,
            shelf=self._shelf,
            limits=self._limits,
        )
        self._passed.append(passed)
        return passed

    def during(self, restore: Callable[[Sharing], T]) -> T:
        """This rank's restore: whatever becomes of it, the others learn that nothing more is to come from here."""
        try:
            result = restore(self)
        except Exception:
            self.end()
            raise
        self.end()
        return result

    def end(self) -> None:
        """This rank's restore has ended: what it has not read by now it will not read, and nothing has to come any more."""
        if self._plan is None:
            self.agree(())
        self._shelf.end()
        for passed in self._passed:
            passed.close()

    def close(self) -> None:
        """End all connections and threads."""
        for passed in self._passed:
            passed.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, own: bytes) -> Plan:
        digest = digests.digest(own)
        told = [_Told.decode(data) for data in self._gather(_Told(digest, self._open()).encode())]
        self._places = [each.place for each in told]
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(told):
            ranks.setdefault(each.digest, []).append(rank)
        lists = {digest: own} if len(ranks) == 1 else self._lists(ranks, own)
        serving = [rank for rank, place in enumerate(self._places) if place is not None]
        return plan({lists[digest]: ranks[digest] for digest in ranks}, serving)

    def _lists(self, ranks: Mapping[str, Sequence[int]], own: bytes) -> dict[str, bytes]:
        """The lists that differ: the lowest rank with each of them tells it."""
        first = any(of[0] == self._channel.rank for of in ranks.values())
        sent = self._gather(zlib.compress(own) if first else b"")
        return {digest: zlib.decompress(sent[of[0]]) for digest, of in ranks.items()}

    def _gather(self, data: bytes) -> list[bytes]:
        return self._channel.gather(data, timeout=self._timeout, what=_WHAT)

    def _open(self) -> Place | None:
        """This rank's server; None if there can be none here, and then it passes nothing on."""
        hosts, local = reached_at(self._channel.coordinator)
        try:
            self._server = Server(self._shelf, hosts, local=local)
        except (OSError, RuntimeError) as error:
            log.warning("rank %d passes no chunks on to other ranks: %s", self._channel.rank, shorten(error))
            return None
        return self._server.place


@dataclass(frozen=True)
class _Told:
    """What a rank says first: the digest of its list, and where its server is."""

    digest: str
    place: Place | None

    def encode(self) -> bytes:
        return canonical.encode([self.digest, None if self.place is None else self.place.told()])

    @classmethod
    def decode(cls, data: bytes) -> _Told:
        digest, at = canonical.decode(data, what=_WHAT)
        return cls(digest, Place.of(at))


@dataclass(frozen=True)
class _Own(ChunkRead):
    """A chunk that this rank reads for others too."""

    filled: Callable[[ChunkRead], object] = field(kw_only=True)

    def copy(self, elements: np.ndarray) -> None:
        """Copy its elements to the boxes that it meets; from then on others can have it."""
        super().copy(elements)
        self.filled(self)


class Passed:
    """The chunks of one database that ranks pass on to each other, for `ckptcore.array_reader.ArrayReader`."""

    def __init__(
        self,
        *,
        rank: int,
        numbers: Mapping[tuple[str, int], int],
        owners: Mapping[int, int],
        places: Sequence[Place | None],
        shelf: Shelf,
        limits: Limits,
    ) -> None:
        self._rank, self._numbers, self._owners, self._places = rank, numbers, owners, places
        self._shelf, self._limits = shelf, limits
        self._known: set[int] = set()
        self._awaited: dict[int, ChunkRead] = {}
        self._tasks: list[Future[None]] = []
        self._pool: Workers | None = None
        self._open: dict[int, socket.socket] = {}
        self._closed = False
        self._reasons: dict[int, str] = {}
        self._lock = threading.Lock()

    def begin(self, reads: Iterable[Read]) -> list[Read]:
        """Start to fetch what other ranks read. Returns what this one has to read from the store."""
        left = [read for read in map(self._read, reads) if read is not None]
        by_owner: dict[int, dict[int, int]] = {}
        for number, read in self._awaited.items():
            by_owner.setdefault(self._owners[number], {})[number] = read.cell.size * read.results.dtype.itemsize
        largest = max((size for sizes in by_owner.values() for size in sizes.values()), default=0)
        self._pool = Workers(self._threads(largest) if largest else 0, "share-fetch")
        if self._pool.size:  # else all of it is read from the store, as fetching in this thread would keep others waiting
            # Every rank begins with the next one, so that they do not all come to the same at a time.
            order = sorted(by_owner, key=lambda owner: (owner - self._rank) % len(self._places))
            self._tasks = [self._pool.submit(self._fetch, owner, by_owner[owner]) for owner in order]
        return left

    def missing(self) -> list[Read]:
        """What has not come, once all that will come has come: it has to be read from the store."""
        count = len(self._awaited)
        for task in self._tasks:
            task.result()
        self.close()
        if self._awaited:
            reasons = "; ".join(f"rank {owner}: {reason}" for owner, reason in sorted(self._reasons.items())[:3])
            log.warning(
                "rank %d reads %d chunks from the store that other ranks were to pass on, of %d (%s)",
                *(self._rank, len(self._awaited), count, shorten(reasons)),
            )
        return list(self._awaited.values())

    def close(self) -> None:
        """Stop fetching."""
        with self._lock:
            self._closed = True
            for connection in self._open.values():
                shut(connection)
        if self._pool is not None:
            self._pool.close()

    def _threads(self, largest: int) -> int:
        """Each holds a chunk, beside those that are read from the store at the same time: a quarter of the memory is for them."""
        return max(1, min(self._limits.threads, self._limits.bytes_in_flight // (4 * largest)))

    def _read(self, read: Read) -> Read | None:
        """A read from the store; None if another rank makes it."""
        number = self._numbers.get((read.results.array.name, read.chunk)) if isinstance(read, ChunkRead) else None
        if number is None or number in self._known or not isinstance(read, ChunkRead):
            return read
        self._known.add(number)
        if self._owners[number] == self._rank:
            return _Own(read.results, read.chunk, read.numbers, filled=partial(self._filled, number))
        self._awaited[number] = read
        return None

    def _filled(self, number: int, read: ChunkRead) -> None:
        self._shelf.put(number, lambda: _bytes_of(read))

    def _fetch(self, owner: int, sizes: Mapping[int, int]) -> None:
        """Fetch what `owner` has. What goes wrong is noted; what did not come stays awaited."""
        place = self._places[owner]
        try:
            if place is not None:
                for number, data in fetch(place, sizes, partial(self._opened, owner)):
                    self._accept(number, data)
        except (OSError, Broken, CheckpointError, MemoryError) as error:
            self._reasons[owner] = f"{error}" or type(error).__name__
        finally:
            with self._lock:
                self._open.pop(owner, None)

    def _opened(self, owner: int, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise Broken("it is not needed any more")
            self._open[owner] = connection

    def _accept(self, number: int, data: bytearray) -> None:
        """Prove a chunk that came, and copy it to the boxes that it meets. Raises `Damaged`."""
        read = self._awaited[number]
        elements = np.frombuffer(data, np.uint8).view(read.results.dtype).reshape(read.cell.shape)
        digests.check(elements, read.digest, what=f"{read.what}, as it came")
        read.copy(elements)
        with self._lock:
            del self._awaited[number]


def _bytes_of(read: ChunkRead) -> np.ndarray:
    """The bytes of a chunk that is in its results: their own memory if they are in one piece there."""
    results, cell = read.results, read.cell
    elements: Any = None
    for number in read.numbers:
        box = results.boxes[number]
        common = cell.intersect(box)
        if common == cell:
            elements = np.ascontiguousarray(results.box(number)[(..., *cell.slices(box.start))])
            break
        if common is not None:
            elements = np.empty(cell.shape, results.dtype) if elements is None else elements
            elements[(..., *common.slices(cell.start))] = results.box(number)[(..., *common.slices(box.start))]
    return elements.reshape(-1).view(np.uint8)
