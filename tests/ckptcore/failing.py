"""Stores that fail on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ckptcore.errors import StoreUnavailable
from ckptcore.store import Store

T = TypeVar("T")


class Died(BaseException):
    """The process is dead: nothing after this has any effect, no handler runs."""


class WrappedStore:
    """Passes every operation on to `inner`; `around` sees each and decides what becomes of it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url, self.driver, self.context, self.limits = inner.url, inner.driver, inner.context, inner.limits

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002 - for those who override it
        return call()

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        return self.around("put_if_absent", key, lambda: self.inner.put_if_absent(key, data))

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        return self.around("get", key, lambda: self.inner.get(key, start, stop))

    def size(self, key: str, guess: int | None = None) -> int | None:
        return self.around("size", key, lambda: self.inner.size(key, guess))

    def list(self, prefix: str = "") -> Iterator[str]:
        return iter(self.around("list", prefix, lambda: [*self.inner.list(prefix)]))

    def children(self, prefix: str) -> list[str]:
        return self.around("children", prefix, lambda: self.inner.children(prefix))

    def delete(self, key: str) -> None:
        self.around("delete", key, lambda: self.inner.delete(key))

    def delete_prefix(self, prefix: str) -> int:
        return self.around("delete_prefix", prefix, lambda: self.inner.delete_prefix(prefix))

    def sync(self, prefix: str) -> None:
        self.around("sync", prefix, lambda: self.inner.sync(prefix))

    def kvstore(self, prefix: str) -> dict[str, Any]:
        return self.around("kvstore", prefix, lambda: self.inner.kvstore(prefix))


class DyingStore(WrappedStore):
    """Its process dies right before its change number `at` (from 1) of the store; no change is ever made after that.

    Dying before a read, or after a change, leaves the same store as dying before the next change. With `torn`
    the last change is made by half: of a rank's database half the files survive, of a deletion half of it was done.
    """

    CHANGES = ("put_if_absent", "delete", "delete_prefix", "sync", "kvstore")
    TORN = ("delete_prefix", "sync")

    def __init__(self, inner: Store, at: int | None = None, *, torn: bool = False) -> None:
        super().__init__(inner)
        self.at, self.torn, self.count, self.last = at, torn, 0, ""
        self.lock = threading.Lock()

    @property
    def dead(self) -> bool:
        return self.at is not None and self.count >= self.at

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        with self.lock:
            if self.dead:
                raise Died(key)
            self.count += operation in self.CHANGES
            if self.dead:
                self.last = operation
                if self.torn and (operation == "delete_prefix" or (operation == "sync" and "/ranks/" in key)):
                    keys = [*self.inner.list(key)]
                    for lost in keys[: (len(keys) + 1) // 2]:
                        self.inner.delete(lost)
                raise Died(key)
        return call()


class FaultyStore(WrappedStore):
    """Raises `error()` for operations that `matches(operation, key)`, `times` of them; with `after`, when they took effect."""

    def __init__(
        self,
        inner: Store,
        matches: Callable[[str, str], bool],
        error: Callable[[], BaseException] = lambda: StoreUnavailable("injected: no answer"),
        *,
        times: int = 1,
        after: bool = False,
    ) -> None:
        super().__init__(inner)
        self.matches, self.error, self.left, self.after, self.hits = matches, error, times, after, 0

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        hit = self.left > 0 and self.matches(operation, key)
        if hit:
            self.left -= 1
            self.hits += 1
        if hit and not self.after:
            raise self.error()
        result = call()
        if hit:
            raise self.error()
        return result
