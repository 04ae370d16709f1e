"""Stores that know more than a process does: one that watches what a process asks, and the truth itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import tensorstore as ts

from ckptcore import names
from ckptcore.limits import limits
from ckptcore.names import GenerationId
from ckptcore.store import Store
from simulation.contents import Contents
from simulation.scheduler import Process


class Listener(Protocol):
    """Who is told of what a process asks."""

    def deciding(self, process: Process, generation: GenerationId, fenced: bool) -> None:  # noqa: FBT001
        """A decision is about to be put for the first time. `fenced`: the newer claim was asked for right before, and absent."""
        ...

    def listed(self, process: Process, generation: GenerationId, since: int) -> None:
        """The receipts of a generation have been listed. `since`: how many changes there had been when that began."""
        ...

    @property
    def order(self) -> int:
        """How many changes there have been."""
        ...


class Witness:
    """The store of one process. See `ckptcore.store.Store` for the methods."""

    def __init__(self, inner: Store, process: Process, listener: Listener) -> None:
        self._inner, self._process, self._listener = inner, process, listener
        self.url, self.driver, self.limits = inner.url, inner.driver, inner.limits

    @property
    def context(self) -> ts.Context:
        """See `Store.context`."""
        return self._inner.context

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`."""
        parsed = names.parse_ledger_key(key)
        if parsed is not None and not parsed[1]:
            self._deciding(key, parsed[0])
        self._asked("put", key)
        found = self._inner.put_if_absent(key, data)
        claimed = names.parse_incarnation_key(key)
        if claimed is not None and found == data and key.endswith("claim.json"):
            self._process.incarnation = claimed[0]
        return found

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        self._asked("get", key)
        found = self._inner.get(key, start, stop)
        self._asked("get", key, "absent" if found is None else "there")
        return found

    def size(self, key: str, guess: int | None = None) -> int | None:
        """See `Store.size`."""
        self._asked("size", key)
        return self._inner.size(key, guess)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        self._asked("list", prefix)
        return self._inner.list(prefix)

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        self._asked("list", prefix)
        since = self._listener.order
        found = self._inner.children(prefix)
        if prefix.endswith("/receipts/"):
            self._listener.listed(self._process, GenerationId.parse(prefix.split("/")[1]), since)
        return found

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._asked("delete", key)
        self._inner.delete(key)

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        self._asked("delete", prefix)
        return self._inner.delete_prefix(prefix)

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        self._asked("sync", prefix)
        self._inner.sync(prefix)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        self._asked("open", prefix)
        return self._inner.kvstore(prefix)

    def _asked(self, what: str, key: str, answer: object = None) -> None:
        self._process.scheduler.task.asked = (what, key, answer)

    def _deciding(self, key: str, generation: GenerationId) -> None:
        last = self._process.scheduler.task.asked
        if last[:2] == ("put", key):
            return  # the same put again, since the store gave no answer (P-39)
        newer = names.claim_key(self._process.decides_as(generation.incarnation) + 1)
        self._listener.deciding(self._process, generation, last == ("get", newer, "absent"))


class Truth:
    """What is stored, read at once and without fail. A `Store` to read from."""

    driver = "file"
    url = "file:///simulated"
    limits = limits()

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.context = contents.context

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        data = self._contents.get(key)
        return None if data is None else data[start or 0 : stop]

    def size(self, key: str, guess: int | None = None) -> int | None:  # noqa: ARG002 - the truth is at hand
        """See `Store.size`."""
        data = self._contents.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        return iter(self._contents.keys(prefix))

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        return sorted({key[len(prefix) :].split("/")[0] for key in self._contents.keys(prefix)})

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        return self._contents.kvstore(prefix)

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """Nobody writes the truth."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Nobody writes the truth."""
        raise NotImplementedError

    def delete_prefix(self, prefix: str) -> int:
        """Nobody writes the truth."""
        raise NotImplementedError
