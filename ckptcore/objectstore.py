"""A store in S3, GCS or memory, through TensorStore's key-value stores (spec: what a store must offer).

Put-if-absent is a conditional write on the generation of the missing key. Only a plain success is
trusted on its own: a request may be applied and its response lost, so that the driver's own
retry meets our object. Whatever else the answer, what is stored decides.

Requests are what an object store is slow at, and what it bills: each method says how many it makes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorstore as ts

from ckptcore.clock import Clock
from ckptcore.errors import CallError, StoreError, StoreFull, StoreUnavailable, UnsafeStore
from ckptcore.limits import Limits
from ckptcore.limits import limits as default_limits
from ckptcore.names import check_key
from ckptcore.retry import retry
from ckptcore.storekeys import check_range, directory_key, is_key

Result = TypeVar("Result")

SMALL = 64 << 10
"""Bytes that are read sooner than their number is searched for: each question costs a request."""

FAR = 1 << 60
"""A byte that no value has: the refusal of S3 to read it says how many there are."""

_STATUS = re.compile(r"([A-Z_]+): ")
_SIZE = re.compile(r"(?:total size |value of size |<ActualObjectSize>)(\d+)")
_FULL = re.compile(r"StorageFull|QuotaExceeded|no space|disk full|HTTP.{0,20}507", re.IGNORECASE)
_REFUSED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"})


class ObjectStore:
    """The store below a prefix of a bucket, or of a TensorStore memory store."""

    def __init__(
        self,
        url: str,
        driver: str,
        spec: dict[str, Any],
        *,
        context: ts.Context,
        timeout: float,
        clock: Clock | None = None,
        limits: Limits | None = None,
        single_writer: bool = False,
    ) -> None:
        self.url = url
        self.driver = driver
        self.context = context
        self.limits = limits or default_limits()
        self._spec = spec
        self._timeout = timeout
        self._clock = clock or Clock()
        self._single_writer = single_writer
        self._absent: bytes | None = None
        """The generation of a missing key, which is one for all of them; None until one was met."""
        self._root = self._open()

    def _open(self) -> ts.KvStore:
        """The driver's store; a simulation has one of its own."""
        try:
            return ts.KvStore.open(self._spec, context=self.context).result(timeout=self._timeout)
        except (ValueError, TimeoutError) as error:
            raise CallError(f"{self.url} cannot be opened: {error}") from error

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`. One request where the key is absent, two where it is not; one more for the first of all."""
        check_key(key)
        attempts = itertools.count()
        return self._retry(f"put {key}", lambda: self._put(key, bytes(data), look=next(attempts) > 0))

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        check_key(key)
        first, last = check_range(key, start, stop)
        if first == 0 and last is None:
            return self._retry(f"get {key}", lambda: self._value(self._root.read(key)))
        if first == last:
            return None if self.size(key) is None else b""
        return self._retry(f"get {key}", lambda: self._range(key, first, last))

    def size(self, key: str, guess: int | None = None) -> int | None:
        """See `Store.size`. One request for a small value, or a right guess; otherwise mostly three.

        No driver tells a size, but the error about a range that the end of the value lies in says where that is. Where it
        does not say so, a search for the end does (spec: S-10).
        """
        check_key(key)
        first = (0, SMALL) if guess is None else (max(guess - 1, 0), guess + 1)
        told = self._ask_size(key, *first)
        if told is not _UNTOLD:
            return told
        far = self._ask_size(key, FAR, FAR + 1)  # what this answer says is not taken on its own
        if far is not None and far >= 0 and self._ask_size(key, max(far - 1, 0), far + 1) == far:
            return far
        return self._search_size(key)

    def _ask_size(self, key: str, start: int, stop: int) -> int | None:
        """The size of a value, if reading a range of it tells; `_UNTOLD` where that lies inside, or the error says nothing."""

        def ask() -> int | None:
            try:
                return None if self._value(self._root.read(key, byte_range=slice(start, stop))) is None else _UNTOLD
            except _OutOfRange as error:
                return error.size

        return self._retry(f"size of {key}", ask)

    def _search_size(self, key: str) -> int | None:
        """A small value is read, of a large one single bytes show where it ends."""
        head = self.get(key, 0, SMALL)
        if head is None or len(head) < SMALL:
            return None if head is None else len(head)
        high = next(bound for bound in (SMALL * 2**power for power in itertools.count(1)) if not self.get(key, bound - 1, bound))
        low = high // 2  # the size lies in low..high
        while high - low > SMALL:
            middle = (low + high) // 2
            low, high = (middle, high) if self.get(key, middle - 1, middle) else (low, middle)
        tail = self.get(key, low, high)
        return None if tail is None else low + len(tail)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        if prefix:
            check_key(prefix.removesuffix("/"))
        return iter(sorted(key for key in self._keys(prefix) if is_key(key)))

    def everything(self) -> list[str]:
        """All that is listed below the root, also what can be no key of a run; in no order."""
        return self._keys("")

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        directory = _directory(prefix)
        return sorted({key[len(directory) :].split("/")[0] for key in self._keys(directory) if is_key(key)})

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        check_key(key)
        self._retry(f"delete {key}", lambda: self._result(self._root.write(key, None)))

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        directory = _directory(prefix)
        if not directory:
            raise CallError("delete_prefix needs a prefix: a run's ledger is never deleted")
        keys = self._keys(directory)
        self._retry(f"delete {prefix}", lambda: self._result(self._root.delete_range(_below(directory))))
        return len(keys)

    def sync(self, prefix: str) -> None:
        """Nothing to do: an object is durable when its write has been answered."""
        _directory(prefix)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        return {**self._spec, "path": self._spec["path"] + _directory(prefix)}

    def _put(self, key: str, data: bytes, *, look: bool) -> bytes:
        """One attempt, which may be repeated whatever came of it. `look`: read first, since an earlier one may have been done."""
        absent = self._absent
        if look or absent is None:
            before = self._result(self._root.read(key))
            if before.state == "value":
                return bytes(before.value)
            absent = self._missing(key, before)
        if self._written(key, data, absent):
            return data
        stored = self._value(self._root.read(key))
        if stored is None:
            raise StoreUnavailable(
                f"{key} is not there after it was written, or found by others: was it deleted, or is there no such bucket?"
            )
        return stored

    def _written(self, key: str, data: bytes, absent: bytes) -> bool:
        """Whether this very request has made the object. The generation of the missing key is the precondition.

        Raises what the store says, unless it refuses a write, or has no room for it, where nothing would have been written.
        """
        try:
            return bool(self._result(self._root.write(key, data, if_equal=absent)).generation)
        except StoreUnavailable:
            raise
        except StoreError:
            if self._value(self._root.read(key)) is None:
                raise
            return False

    def _missing(self, key: str, before: ts.KvStore.ReadResult) -> bytes:
        """The generation of a missing key. A store that need not heed it is asked about each key all the same (spec: S-20)."""
        absent = before.stamp.generation
        if not absent:  # the write would be unconditional
            raise UnsafeStore(f"{self.url} gives no generation for the missing {key}: its writes cannot be made conditional")
        if not self._single_writer:
            self._absent = absent
        return absent

    def _range(self, key: str, start: int, stop: int | None) -> bytes | None:
        """A clipped range; the drivers refuse one that reaches beyond the end."""
        try:
            return self._value(self._root.read(key, byte_range=slice(start, stop)))
        except _OutOfRange:
            if start < 0:
                return self._value(self._root.read(key))
            if stop is not None and stop - start > 1:
                return self._range(key, start, None)
            return b""

    def _keys(self, prefix: str) -> list[str]:
        listed = self._retry(f"list {prefix or 'all keys'}", lambda: self._result(self._root.list(_below(prefix))))
        return [key.decode("utf-8", "surrogateescape") for key in listed]

    def _value(self, future: ts.Future[Any]) -> bytes | None:
        result = self._result(future)
        return bytes(result.value) if result.state == "value" else None

    def _result(self, future: ts.Future[Result]) -> Result:
        return answer(future, self._timeout)

    def _retry(self, what: str, call: Callable[[], Result]) -> Result:
        try:
            return retry(call, what=f"{what} in {self.url}", timeout=self._timeout, clock=self._clock)
        except (StoreUnavailable, UnsafeStore):
            raise
        except StoreError as error:
            raise type(error)(f"{what} in {self.url}: {error}") from error


_UNTOLD = -1
"""In the place of a size that an answer does not tell."""


class _OutOfRange(StoreError):
    """A byte range that is not wholly inside the value; `size` is that of the value if the driver says so, else `_UNTOLD`."""

    size = _UNTOLD


def answer(future: ts.Future[Result], timeout: float) -> Result:
    """What a driver answers within `timeout` seconds. Raises the project's errors."""
    try:
        return future.result(timeout=timeout)
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {timeout:g} s") from error
    except (ValueError, OSError, NotImplementedError) as error:
        raise translate(error) from error


def translate(error: Exception) -> StoreError:
    """The error of the project for one of TensorStore's, which start with the name of an absl status."""
    text = str(error)[:500]
    status = _STATUS.match(text)
    code = status[1] if status else ""
    if code == "OUT_OF_RANGE":
        return _out_of_range(str(error))
    if _FULL.search(text):
        return StoreFull(f"{text}. Make room, then save again; what was committed is untouched")
    if code in _REFUSED or isinstance(error, NotImplementedError):
        return StoreError(f"{text}. Check the bucket's name, the region, the credentials and their permissions")
    return StoreUnavailable(text)


def _out_of_range(text: str) -> _OutOfRange:
    error, told = _OutOfRange(text[:500]), _SIZE.search(text)
    if told:
        error.size = int(told[1])
    return error


def _directory(prefix: str) -> str:
    """Check a directory prefix and return it with one slash at its end, or empty for the root."""
    key = directory_key(prefix)
    return key + "/" if key else ""


def _below(prefix: str) -> ts.KvStore.KeyRange:
    """All keys that start with a prefix, which is ASCII and never ends in the last character of it."""
    if not prefix:
        return ts.KvStore.KeyRange()
    return ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))
