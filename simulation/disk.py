"""A file system as the protocol sees it: put-if-absent is durable when it returns, a database when it has been synced.

It stands in for `ckptcore.filestore`, whose system calls are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorstore as ts

from ckptcore.errors import CallError, StoreError, StoreFull, StoreUnavailable
from ckptcore.limits import limits
from ckptcore.names import check_key
from ckptcore.storekeys import check_range, directory_key, is_key
from simulation.contents import How
from simulation.scheduler import Process
from simulation.service import Service, Unanswered


class Disk:
    """The store of one process. See `ckptcore.store.Store` for the methods."""

    driver = "file"
    url = "file:///simulated"
    limits = limits()

    def __init__(self, service: Service, process: Process) -> None:
        self._service, self._process, self._contents = service, process, service.contents
        self._unsynced: set[str] = set()

    @property
    def context(self) -> ts.Context:
        """See `Store.context`."""
        return self._contents.context

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`."""
        check_key(key)
        try:
            return self._ask("put", key, lambda how: self._put(key, bytes(data), how))
        except StoreFull:
            found = self._get(key)  # what is there is found before anything is written
            if found is None:
                raise
            return found

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        check_key(key)
        first, last = check_range(key, start, stop)
        data = self._ask("get", key, lambda _: self._get(key))
        return None if data is None else data[first:last]

    def size(self, key: str, guess: int | None = None) -> int | None:  # noqa: ARG002 - a file system tells
        """See `Store.size`."""
        check_key(key)
        data = self._ask("size", key, lambda _: self._get(key))
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        if prefix:
            check_key(prefix.removesuffix("/"))
        return iter([key for key in self._ask("list", prefix, lambda _: self._service.listed(prefix)) if is_key(key)])

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        below = _directory(prefix)
        keys = self._ask("list", prefix, lambda _: self._service.listed(below))
        return sorted({key[len(below) :].split("/")[0] for key in keys if is_key(key)})

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        check_key(key)
        self._ask("delete", key, lambda how: self._remove([key], how))

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        below = _directory(prefix)
        if not below:
            raise CallError("delete_prefix needs a prefix")
        keys: list[str] = []

        def effect(how: How) -> int:
            if how != "late":
                keys.extend(self._contents.keys(below))
            return self._remove(keys, how)

        def half() -> None:
            self._remove(self._contents.half(below), "heard")

        return self._ask("delete", prefix, effect, half)

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        below = _directory(prefix)
        self._ask("sync", prefix, lambda _: self._flush(below))

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        below = _directory(prefix)
        self._ask("open", prefix, lambda _: self._unsynced.add(below))
        return self._contents.kvstore(below)

    def lose(self) -> None:
        """The machine has lost power: what was not flushed is gone, or torn, or there after all."""
        for below in sorted(self._unsynced):
            drawn = self._service.scheduler.chance.random()
            for key in self._contents.files(below):
                own = "/ranks/" not in key or "/ranks/" in below  # not the databases below a merged view
                if own and key not in self._contents.flushed and (drawn < 0.6 or key.endswith("manifest.ocdbt") == (drawn < 0.8)):
                    self._contents.lose(key, 0.5 if drawn < 0.2 else 0.0)

    def _put(self, key: str, data: bytes, how: How) -> bytes:
        replace = self._service.broken == "overwrites"
        if self._contents.put(key, data, self._process, how, replace=replace):
            self._service.created(key, how)
        elif how == "heard":
            self._service.seen(key)
        return self._contents.get(key) or b""

    def _get(self, key: str) -> bytes | None:
        self._service.seen(key)
        return self._contents.get(key)

    def _remove(self, keys: list[str], how: How) -> int:
        removed = [key for key in keys if self._contents.remove(key, self._process, how)]
        for key in removed:
            self._service.linger(key)
        return len(removed)

    def _flush(self, below: str) -> None:
        """What lies below, and the names in all directories above."""
        above = [below[: at + 1] for at, character in enumerate(below) if character == "/"]
        files = self._contents.files(above[0] if above else below)
        self._contents.flushed.update(key for key in files if key.startswith(below) or key.rpartition("/")[0] + "/" in above)
        self._unsynced.discard(below)

    def _ask(self, what: str, key: str, effect: Any, torn: Any = lambda: None) -> Any:
        try:
            return self._service.ask(self._process, what, key, effect, torn=torn)
        except Unanswered as error:
            raise _translated(error, f"{what} {key}") from error


def _translated(error: Unanswered, what: str) -> StoreError:
    return StoreFull(f"{what}: {error}") if error.kind == "full" else StoreUnavailable(f"{what}: {error}")


def _directory(prefix: str) -> str:
    key = directory_key(prefix)
    return key + "/" if key else ""
