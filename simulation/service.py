"""The store's side of every operation: when it is done, what becomes of it, and what the caller hears."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from simulation.contents import Contents, How
from simulation.faults import Fault, Plan
from simulation.scheduler import Process, Scheduler
from simulation.violation import Died

T = TypeVar("T")
TIMEOUT = 10.0
"""Seconds after which a request is no longer waited for."""
HIDDEN = 30.0
"""Seconds in which a listing may lack an object whose put was never answered."""
_LONG = re.compile(r"[0-9a-f]{17,}")


class Unanswered(Exception):
    """A request that ends in an error. `kind` is that of the fault."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"simulated: {kind}")


class Line(NamedTuple):
    """One line of the trace."""

    time: float
    who: str
    what: str
    key: str
    outcome: str

    def __str__(self) -> str:
        key = _LONG.sub("…", self.key)
        return f"{self.time:10.3f}  {self.who:<16} {self.what:<8} {key:<60} {self.outcome}".rstrip()


@dataclass
class Service:
    """What all simulated stores of one world have in common."""

    scheduler: Scheduler
    contents: Contents
    plan: Plan
    trace: list[Line] = field(default_factory=list)
    broken: Literal["", "stale", "overwrites"] = ""
    """A store that breaks S-7 (listings lack objects whose puts were answered), or S-1 (conditions are ignored)."""
    full_until: float = 0.0
    _hidden: dict[str, float] = field(default_factory=dict)
    _ghosts: dict[str, float] = field(default_factory=dict)
    on_power: Callable[[Process], None] = lambda _: None

    def ask(
        self,
        process: Process,
        what: str,
        key: str,
        effect: Callable[[How], T],
        *,
        torn: Callable[[], object] = lambda: None,
        mismatch: T | None = None,
    ) -> T:
        """Do `effect(how)` for `process`, or what a fault makes of it. Raises `Unanswered` or `Died`.

        How many data files TensorStore makes of a database depends on its threads: to look at one is no point of its own.
        """
        if is_data_file(key) and not process.dead:
            return effect("heard")
        self.scheduler.pause(self._latency())
        process.operations += 1
        now = self.scheduler.now
        if process.cut_off_until > now:
            return self._refuse(process, what, key, "outage")
        fault = self.plan.draw(process, what, key)
        if self.full_until > now and what in ("put", "write") and fault is None:
            return self._refuse(process, what, key, "full")
        if fault is None:
            result = effect("heard")
            self.note(process.name, what, key, _show(result))
            return result
        self.note(process.name, what, key, f"!! {fault.kind} {fault.seconds:.1f}" if fault.seconds else f"!! {fault.kind}")
        if fault.kind == "mismatch" and mismatch is not None:
            effect("heard")
            return mismatch
        if fault.kind in ("stall", "copy"):
            return self._delayed(process, fault, effect)
        return self._broken(process, fault, effect, torn)

    def note(self, who: str, what: str, key: str = "", outcome: str = "") -> None:
        """Add a line to the trace."""
        self.trace.append(Line(self.scheduler.now, who, what, key, outcome))

    def listed(self, prefix: str) -> list[str]:
        """The keys that a listing shows now (S-7): some that were never acknowledged may lack, some deleted may linger."""
        now = self.scheduler.now
        hidden = {key for key, until in self._hidden.items() if until > now}
        ghosts = {key for key, until in self._ghosts.items() if until > now and key.startswith(prefix)}
        found = self.contents.keys(prefix)
        return sorted({*found, *ghosts} - hidden) if hidden or ghosts else found

    def seen(self, key: str) -> None:
        """Somebody has read the object: from now on listings have it."""
        self._hidden.pop(key, None)

    def created(self, key: str, how: How) -> None:
        """Let listings lack a new object for a while if its put was not answered."""
        if how != "heard" or self.broken == "stale":
            self._hide(key)

    def _hide(self, key: str) -> None:
        self._hidden[key] = self.scheduler.now + HIDDEN * self.scheduler.chance.random()

    def linger(self, key: str) -> None:
        """Let listings show a deleted object for a while, sometimes."""
        if not is_data_file(key) and self.scheduler.chance.random() < 0.1:
            self._ghosts[key] = self.scheduler.now + HIDDEN * self.scheduler.chance.random()

    def is_hidden(self, key: str) -> bool:
        """Whether listings may lack it."""
        return self._hidden.get(key, 0.0) > self.scheduler.now

    def _latency(self) -> float:
        """Mostly some milliseconds, sometimes seconds."""
        drawn = self.scheduler.chance.random()
        return 0.002 + 0.02 * drawn + 3.0 * drawn**30

    def _delayed(self, process: Process, fault: Fault, effect: Callable[[How], T]) -> T:
        if fault.kind == "copy":
            self.scheduler.later(fault.seconds, lambda: self._late(process, effect))
        else:
            process.frozen_until = max(process.frozen_until, self.scheduler.now + fault.seconds)
            self.scheduler.pause(0.0)
        return effect("heard")

    def _broken(self, process: Process, fault: Fault, effect: Callable[[How], T], torn: Callable[[], object]) -> T:
        now = self.scheduler.now
        if fault.kind in ("lost", "crash-after", "power-after"):
            effect("unheard")
        elif fault.kind in ("torn", "partial"):
            torn()
        elif fault.kind == "late":
            self.scheduler.later(fault.seconds, lambda: self._late(process, effect))
        elif fault.kind == "outage":
            process.cut_off_until = now + fault.seconds
        elif fault.kind == "full":
            self.full_until = now + fault.seconds
        if fault.kind in ("crash", "crash-after", "power", "power-after", "torn"):
            self.crash(process, power=fault.kind not in ("crash", "crash-after"))
        if fault.kind in ("timeout", "late"):
            self.scheduler.pause(TIMEOUT)
        raise Unanswered(fault.kind)

    def _late(self, process: Process, effect: Callable[[How], object]) -> None:
        result = effect("late")
        self.note(process.name, "late", "", _show(result))

    def _refuse(self, process: Process, what: str, key: str, kind: str) -> T:  # pyright: ignore[reportInvalidTypeVarUse]
        self.note(process.name, what, key, kind)
        raise Unanswered(kind)

    def crash(self, process: Process, *, power: bool) -> None:
        """Kill the process that runs; with `power`, what its machine has not flushed may be lost."""
        if power:
            self.on_power(process)
        process.kill()
        raise Died(process.name)


def is_data_file(key: str) -> bool:
    """Whether TensorStore has named this object."""
    return "/state/" in key and "/d/" in key and not key.endswith("/d/")


def _show(result: object) -> str:
    """What a caller is told, as far as it does not depend on names and sizes of TensorStore's files."""
    if isinstance(result, list):
        return f"{sum(not is_data_file(key) for key in result)} keys"
    return "absent" if result is None else ""
