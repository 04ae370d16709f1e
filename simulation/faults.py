"""What may go wrong at one operation of the store, and who decides that it does."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from ckptcore import names
from simulation.scheduler import Process

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "crash": "the process is killed before the operation",
        "crash-after": "the process is killed after the operation, before it hears of it",
        "power": "as crash, and the machine loses what was not flushed",
        "power-after": "as crash-after, and the machine loses what was not flushed",
        "torn": "the operation is half done when the process dies",
        "stall": "the process stands still for a while, and then goes on as if nothing had happened",
        "error": "the operation is not done; the answer is an error",
        "timeout": "the operation is not done, and no answer comes",
        "outage": "the store does not answer to this process for a while",
        "lost": "the operation is done; the answer is an error",
        "late": "the answer is an error; the operation is done later, even if the process is dead by then",
        "copy": "the operation is done, and later a copy of the request arrives",
        "partial": "the operation is half done; the answer is an error",
        "full": "there is no room for a while",
        "mismatch": "the object is created, and the client library's own retry meets it: 412",
        "conflict": "the object is not created, since another request was under way: 409",
    }
)

_EVERYWHERE = ("crash", "power", "stall", "stall", "error", "error", "error", "timeout", "outage")
_CHANGE = ("crash-after", "power-after", "lost", "late", "copy")
_OFTEN = ("late", "late", "lost", "stall")
POSSIBLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "put": (*_EVERYWHERE, *_CHANGE, *_OFTEN, "full"),
        "write": (*_EVERYWHERE, *_CHANGE, *_OFTEN, "full", "mismatch", "conflict"),
        "delete": (*_EVERYWHERE, *_CHANGE, *_OFTEN, "torn", "partial"),
        "sync": ("crash", "power", "stall", "error", "torn"),
        "open": ("crash", "power", "stall"),
    }
)
"""By operation, the likelier ones more than once; of others, `_EVERYWHERE`.

`put` and `write` are put-if-absent, on a file system and in a bucket.
"""

_DELAYS = MappingProxyType({"stall": 2000.0, "outage": 300.0, "late": 500.0, "copy": 500.0, "full": 60.0})
"""The longest of each, in seconds."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong; `seconds` is how long, or when later."""

    kind: str
    seconds: float = 0.0


class Plan(Protocol):
    """Decides what goes wrong."""

    def draw(self, process: Process, operation: str, key: str) -> Fault | None:
        """What goes wrong at this operation, None if nothing does. Called once at each."""
        ...


@dataclass(frozen=True)
class Injected:
    """A fault that happened: `number` of the operation among all, and where."""

    number: int
    process: str
    operation: str
    key: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.number}: {self.process} {self.operation} {self.key}: {self.fault.kind} {self.fault.seconds:.1f}"


@dataclass
class RandomFaults:
    """Faults drawn from the seed, until `active` is false.

    What is drawn does not depend on `kinds` and `only`, which leave out some of it: that is how a failing run is made
    smaller. `only`: the numbers of the operations at which faults may happen.
    """

    chance: random.Random
    rate: float
    kinds: Collection[str]
    only: Collection[int] | None = None
    active: bool = True
    count: int = 0
    injected: list[Injected] = field(default_factory=list)

    def draw(self, process: Process, operation: str, key: str) -> Fault | None:
        """See `Plan.draw`."""
        self.count += 1
        if not self.active or self.chance.random() >= self.rate * _weight(operation, key):
            return None
        kind = self.chance.choice(POSSIBLE.get(operation, _EVERYWHERE))
        fault = Fault(kind, _DELAYS.get(kind, 0.0) * self.chance.random() ** 3)
        if kind not in self.kinds or (self.only is not None and self.count not in self.only):
            return None
        self.injected.append(Injected(self.count, process.name, operation, key, fault))
        return fault


@dataclass
class ScriptedFaults:
    """Faults at chosen operations: `(process, number of its operation from 1)` → fault."""

    script: Mapping[tuple[str, int], Fault]
    hit: list[tuple[str, str, Fault]] = field(default_factory=list)
    """`(operation, key, fault)` of what happened."""

    def draw(self, process: Process, operation: str, key: str) -> Fault | None:
        """See `Plan.draw`."""
        fault = self.script.get((process.name, process.operations))
        if fault is not None:
            self.hit.append((operation, key, fault))
        return fault


def decisive(key: str) -> bool:
    """Whether a record of this key never changes and never goes (S-9, L-5)."""
    return key == names.RUN or key.startswith((names.INCARNATIONS, names.LEDGER))


def _weight(operation: str, key: str) -> float:
    """Most operations are reads, most trouble is with the others."""
    if operation in ("put", "write"):
        return 25.0 if decisive(key) or "/receipts/" in key else 4.0
    if any(part in key for part in ("/receipts/", "/layouts/", "/values/")):
        return 8.0  # what a proof looks at
    return {"delete": 15.0, "sync": 10.0}.get(operation, 1.0)
