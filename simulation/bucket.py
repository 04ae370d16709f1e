"""An object store, one layer below `ckptcore.objectstore`: reads, conditional writes, lists, and their HTTP errors.

The retries, the reading back and the search for sizes of the real `ObjectStore` run on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tensorstore as ts

from ckptcore.clock import Clock
from ckptcore.objectstore import ObjectStore
from simulation.contents import How
from simulation.scheduler import Process
from simulation.service import TIMEOUT, Service, Unanswered

T = TypeVar("T")
_ABSENT = b"no generation"
_ERRORS = {
    "full": "RESOURCE_EXHAUSTED: HTTP response code: 507, insufficient storage",
    "conflict": "ABORTED: HTTP response code: 409, ConditionalRequestConflict",
}


@dataclass(frozen=True)
class Stamp:
    """The part of TensorStore's stamps that is used. Empty: a condition did not hold."""

    generation: bytes


@dataclass(frozen=True)
class Read:
    """The result of a read."""

    state: str
    value: bytes
    stamp: Stamp


class Answer(Generic[T]):
    """A future that is known at once."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask

    def result(self, timeout: float | None = None) -> T:  # noqa: ARG002 - virtual time has passed already
        """What came of the request."""
        try:
            return self._ask()
        except Unanswered as error:
            if error.kind in ("timeout", "late"):
                raise TimeoutError(str(error)) from error
            raise ValueError(_ERRORS.get(error.kind, f"UNAVAILABLE: HTTP response code: 503 ({error})")) from error


class Endpoint:
    """What `ObjectStore` needs of a `ts.KvStore`."""

    def __init__(self, service: Service, process: Process) -> None:
        self._service, self._process, self._contents = service, process, service.contents

    def read(self, key: str, *, byte_range: slice | None = None) -> Answer[Read]:
        """As `ts.KvStore.read`: a range that is not wholly inside is refused."""
        return Answer(lambda: self._read(key, byte_range))

    def write(self, key: str, value: bytes | None, *, if_equal: bytes | None = None) -> Answer[Stamp]:
        """As `ts.KvStore.write`; without a value it deletes."""
        if value is None:
            return Answer(lambda: self._delete(key, [key], key))
        return Answer(
            lambda: self._service.ask(
                self._process,
                "write",
                key,
                lambda how: self._write(key, value, if_equal, how),
                mismatch=Stamp(b""),
            )
        )

    def list(self, below: ts.KvStore.KeyRange) -> Answer[list[bytes]]:
        """As `ts.KvStore.list`, of a range that is a prefix."""
        prefix = below.inclusive_min.decode()
        found: Callable[[How], list[str]] = lambda _: self._service.listed(prefix)  # noqa: E731
        return Answer(lambda: [key.encode() for key in self._service.ask(self._process, "list", prefix, found)])

    def delete_range(self, below: ts.KvStore.KeyRange) -> Answer[Stamp]:
        """As `ts.KvStore.delete_range`, of a range that is a prefix."""
        prefix = below.inclusive_min.decode()
        return Answer(lambda: self._delete(prefix, None, prefix))

    def _read(self, key: str, byte_range: slice | None) -> Read:
        data = self._service.ask(self._process, "get", key, lambda _: self._get(key))
        if data is None:
            return Read("missing", b"", Stamp(_ABSENT))
        if byte_range is not None:
            start, stop = byte_range.start or 0, byte_range.stop
            if start > len(data) or -start > len(data) or (stop is not None and stop > len(data)):
                raise ValueError(
                    f"OUT_OF_RANGE: Requested byte range [{start}, {stop}) is not valid for value of size {len(data)}"
                )
            data = data[start:stop]
        return Read("value", data, Stamp(b"some generation"))

    def _get(self, key: str) -> bytes | None:
        self._service.seen(key)
        return self._contents.get(key)

    def _write(self, key: str, value: bytes, if_equal: bytes | None, how: How) -> Stamp:
        replace = if_equal != _ABSENT or self._service.broken == "overwrites"
        created = self._contents.put(key, value, self._process, how, replace=replace)
        if created:
            self._service.created(key, how)
        return Stamp(b"some generation" if created else b"")

    def _delete(self, what: str, keys: list[str] | None, prefix: str) -> Stamp:
        first: list[str] = list(keys or ())

        def effect(how: How) -> Stamp:
            if how != "late" and keys is None:
                first.extend(self._contents.keys(prefix))
            return self._remove(first, how)

        def half() -> None:
            self._remove(self._contents.half(prefix), "heard")

        return self._service.ask(self._process, "delete", what, effect, torn=half)

    def _remove(self, keys: list[str], how: How) -> Stamp:
        for key in keys:
            if self._contents.remove(key, self._process, how):
                self._service.linger(key)
        return Stamp(b"deleted")


class Bucket(ObjectStore):
    """The real `ObjectStore` of one process over a simulated endpoint."""

    def __init__(self, service: Service, process: Process, clock: Clock) -> None:
        self._endpoint = Endpoint(service, process)
        self._contents = service.contents
        context = self._contents.context
        super().__init__("memory://simulated", "memory", {}, context=context, timeout=TIMEOUT, clock=clock)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        return self._contents.kvstore(prefix)

    def _open(self) -> Any:
        return self._endpoint

    def lose(self) -> None:
        """What an object store has answered is durable, and what it has not is not on this machine."""
