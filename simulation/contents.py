"""What is stored: the truth, which no process sees but through a store that may misbehave."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import tensorstore as ts

from simulation.scheduler import Process

ROOT = "run/"
"""Where the databases of arrays lie in TensorStore's memory store."""


How = Literal["heard", "unheard", "late"]
"""Whether the caller hears of what is done, or has given up, maybe long before it is done."""


@dataclass(frozen=True)
class Change:
    """An object has appeared, or has gone (`data` is None). `before` is what it was."""

    key: str
    data: bytes | None
    by: Process
    before: bytes | None = None
    how: How = "heard"


class Contents:
    """Keys and bytes. What TensorStore writes lies in a memory store of its own; the keys of both are one name space."""

    def __init__(self, plain: dict[str, bytes] | None = None, databases: dict[str, bytes] | None = None) -> None:
        self.context = ts.Context()
        self.watch: Callable[[Change], None] = lambda _: None
        self._plain = dict(plain or {})
        self._keys = sorted(self._plain)
        self._databases: ts.KvStore | None = None
        self.durable_at_once = False
        """Whether what TensorStore writes is durable when it says so, as in an object store."""
        self.flushed: set[str] = set(databases or {})
        """Otherwise: the files of databases that a machine that loses power does not lose."""
        for key, data in (databases or {}).items():
            self.databases.write(key, data).result()

    @property
    def databases(self) -> ts.KvStore:
        """The memory store, opened at the first use: most simulations have no arrays."""
        if self._databases is None:
            self._databases = ts.KvStore.open({"driver": "memory", "path": ROOT}, context=self.context).result()
        return self._databases

    def kvstore(self, below: str) -> dict[str, Any]:
        """Where TensorStore finds the databases below a prefix."""
        return {"driver": "memory", "path": self.databases.path + below}

    def get(self, key: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        found = self._plain.get(key)
        if found is None and self._databases is not None and "/state/" in key:
            result = self._databases.read(key).result()
            return bytes(result.value) if result.state == "value" else None
        return found

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that start with `prefix`, sorted."""
        first = bisect.bisect_left(self._keys, prefix)
        found = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        files = self.files(prefix)
        return sorted([*found, *files]) if files else found

    def files(self, prefix: str = "") -> list[str]:
        """The files of databases that start with `prefix`."""
        if self._databases is None or not (prefix.startswith("gen") or "generations/".startswith(prefix)):
            return []
        below = ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)) if prefix else ts.KvStore.KeyRange()
        return sorted(key.decode() for key in self._databases.list(below).result())

    def half(self, prefix: str) -> list[str]:
        """The first half of the keys that start with `prefix`; of databases, all that lie before its end."""
        plain = [key for key in self._keys if key.startswith(prefix)]
        until = plain[len(plain) // 2] if plain else ""
        return [key for key in self.keys(prefix) if key <= until]

    def put(self, key: str, data: bytes, by: Process, how: How = "heard", *, replace: bool = False) -> bool:
        """Create an object unless there is one; returns whether it did. `replace` is for stores that break the rules."""
        before = self._plain.get(key)
        if before is not None and not replace:
            return False
        if before is None:
            bisect.insort(self._keys, key)
        self._plain[key] = data
        self.watch(Change(key, data, by, before, how))
        return True

    def remove(self, key: str, by: Process, how: How = "heard") -> bool:
        """Remove an object; returns whether there was one."""
        before = self._plain.pop(key, None)
        if before is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]
            self.watch(Change(key, None, by, before, how))
            return True
        return self._databases is not None and self._remove_file(key, by, how)

    def _remove_file(self, key: str, by: Process, how: How = "heard") -> bool:
        before = self.get(key)
        if before is None or self._databases is None:
            return False
        self._databases.write(key, None).result()
        self.flushed.discard(key)
        self.watch(Change(key, None, by, before, how))
        return True

    def durable(self, key: str) -> bool:
        """Whether a file of a database is there, and stays."""
        return self.get(key) is not None and (self.durable_at_once or key in self.flushed)

    def lose(self, key: str, part: float) -> None:
        """A machine loses a file that was not flushed: all of it, or its end."""
        data = self.get(key) or b""
        self.databases.write(key, data[: int(len(data) * part)] if part else None).result()

    def copy(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Everything, for `Contents(*copy)`."""
        return dict(self._plain), {key: self.get(key) or b"" for key in self.files()}

    def in_order(self) -> Iterator[tuple[str, bytes]]:
        """Every plain object, in the order in which they came."""
        return iter(self._plain.items())

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Every plain object."""
        return iter(sorted(self._plain.items()))
