"""Objects from one store into another: bounded in memory and, if asked for, in bandwidth; what is there is not sent again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ckptcore.clock import Clock
from ckptcore.digests import check
from ckptcore.errors import Damaged
from ckptcore.store import Store
from ckptcore.storereads import has_size
from ckptcore.workers import Workers

PIECE_BYTES = 8 << 20
"""What is read at a time: progress is told, and bandwidth shared out, in pieces of it."""


@dataclass(frozen=True)
class Item:
    """An object to copy, and what certifies it: its size, and a digest where a record gives one."""

    key: str
    size: int
    digest: str | None = None


@dataclass
class Pace:
    """At most `rate` bytes a second (None: as fast as it goes), over all threads."""

    clock: Clock
    rate: float | None = None
    _due: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, count: int) -> None:
        """Wait until `count` more bytes may be sent."""
        if self.rate is None:
            return
        with self._lock:
            now = self.clock.monotonic()
            begins = max(self._due, now)
            self._due = begins + count / self.rate
        if begins > now:
            self.clock.sleep(begins - now)


@dataclass(frozen=True)
class Transfer:
    """From `source` to `target`. `progress` is told of bytes that are there by now, sent or found."""

    source: Store
    target: Store
    pace: Pace
    progress: Callable[[int], object] = lambda _: None

    def send(self, items: Sequence[Item]) -> int:
        """Copy what is not there with its size; returns the bytes that were sent.

        Raises `Damaged` for an object of the source that is not what its record says, and for one of the target that is
        neither, and a `StoreError` of either.
        """
        limits = self.target.limits
        with Workers(limits.requests, "copy") as pool:
            return sum(sum(pool.map(self._send, batch)) for batch in batches(items, limits.bytes_in_flight))

    def _send(self, item: Item) -> int:
        if has_size(self.target, item.key, item.size):
            self.progress(item.size)
            return 0
        data = self._read(item)
        if self.target.put_if_absent(item.key, data) != data:
            raise Damaged(
                f"{item.key} in {self.target.url} has other bytes than in {self.source.url}, and nothing is overwritten:"
                " delete it there if the copy may be trusted less than the original, and copy again"
            )
        return item.size

    def _read(self, item: Item) -> bytes:
        parts = list(self._parts(item))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != item.size:
            found = "more" if len(data) > item.size else len(data)
            raise Damaged(f"{item.key} in {self.source.url} has {found} bytes, its record says {item.size}")
        if item.digest is not None:
            check(data, item.digest, what=f"{item.key} in {self.source.url}")
        return data

    def _parts(self, item: Item) -> Iterator[bytes]:
        """The bytes, and one more if there are too many."""
        for start in range(0, max(item.size, 1), PIECE_BYTES):
            stop = start + PIECE_BYTES if start + PIECE_BYTES < item.size else item.size + 1
            self.pace.wait(stop - start)
            part = self.source.get(item.key, start, stop)
            if part is None:
                raise Damaged(f"{item.key} in {self.source.url} is missing")
            self.progress(min(len(part), item.size - start))
            yield part


def batches(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Items in their order, as many together as have at most `most` bytes, or one that is larger."""
    held, batch = 0, list[Item]()
    for item in items:
        if batch and held + item.size > most:
            yield batch
            held, batch = 0, []
        batch.append(item)
        held += item.size
    if batch:
        yield batch
