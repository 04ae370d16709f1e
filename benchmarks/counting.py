"""What one piece of work costs: seconds, memory, requests to the store, and bytes.

A request is one call of the store, or one of TensorStore's own to the key-value store below its databases. What an object
store's driver makes of a call is left out (`benchmarks.requests` counts that). Bytes are those of all reads and writes of the
process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

import tensorstore as ts

from benchmarks.memory import Peak
from ckptcore.limits import Limits
from ckptcore.store import Store

IO = Path("/proc/self/io")
KVSTORE = "/tensorstore/kvstore/file/"
ENOUGH = 1.0
"""Seconds: work that is done in less is repeated, up to `TRIES` times, and its median counts."""
TRIES = 5


class Counting:
    """A store that counts the calls of another, by kind. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self.calls: Counter[str] = Counter()

    def _count(self, kind: str, number: int = 1) -> None:
        with self._lock:
            self.calls[kind] += number

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._store.url

    @property
    def driver(self) -> str:
        """See `Store.driver`."""
        return self._store.driver

    @property
    def context(self) -> ts.Context:
        """See `Store.context`."""
        return self._store.context

    @property
    def limits(self) -> Limits:
        """See `Store.limits`."""
        return self._store.limits

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`."""
        self._count("put")
        return self._store.put_if_absent(key, data)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        self._count("get")
        return self._store.get(key, start, stop)

    def size(self, key: str, guess: int | None = None) -> int | None:
        """See `Store.size`."""
        self._count("size")
        return self._store.size(key, guess)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        self._count("list")
        return self._store.list(prefix)

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        self._count("list")
        return self._store.children(prefix)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._count("delete")
        self._store.delete(key)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        deleted = self._store.delete_prefix(prefix)
        self._count("delete", deleted)
        return deleted

    def sync(self, prefix: str) -> None:
        """See `Store.sync`. No request: object stores have none."""
        self._store.sync(prefix)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        return self._store.kvstore(prefix)


@dataclass(frozen=True)
class Cost:
    """What one piece of work took. `cpu`: seconds of all its threads, the first time; `peak`: bytes of memory beyond those at its
    start; `calls`: requests by kind.
    """

    seconds: float
    cpu: float
    peak: int
    calls: dict[str, int]
    read: int
    written: int

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def cost(work: Callable[[], object], store: Counting, *, again: bool) -> Cost:
    """Do the work and tell what it cost; `again`: it may be repeated, for a better measure of its time."""
    with Peak() as peak:
        before, calls, used = _io(), _calls(store), time.process_time()
        seconds = [_timed(work)]
        after, done, cpu = _io(), _calls(store), time.process_time() - used
    while again and len(seconds) < TRIES and sum(seconds) < ENOUGH:
        seconds.append(_timed(work))
    return Cost(
        seconds=median(seconds),
        cpu=cpu,
        peak=peak.bytes,
        calls={kind: done[kind] - calls[kind] for kind in sorted(done) if done[kind] > calls[kind]},
        read=after["rchar"] - before["rchar"],
        written=after["wchar"] - before["wchar"],
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _calls(store: Counting) -> Counter[str]:
    """Calls of the store so far, and TensorStore's own."""
    found = Counter(store.calls)
    kinds = {"read": "get", "write": "put", "list": "list", "delete": "delete"}
    for metric in ts.experimental_collect_matching_metrics(KVSTORE):
        kind = kinds.get(metric["name"].removeprefix(KVSTORE))
        if kind is not None:
            found[kind] += sum(value["value"] for value in metric["values"])
    return found


def _io() -> dict[str, int]:
    lines = IO.read_text().splitlines() if IO.exists() else ["rchar: 0", "wchar: 0"]
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}
