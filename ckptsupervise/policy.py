"""What follows an attempt that has ended: another one, on which slots and when, or the end of the job. Pure.

A slot is a place where a rank can run. One that is to blame for `tries` failures in a row, with nothing committed in between, is
left out, as long as `min_nproc` remain; it comes back after `grow_after` seconds, then after twice as long for each time it fails
again. Restarts that lead to no newly committed step are counted: after `max_restarts` of them the job ends. So it does not
restart for ever: it makes progress, or it stops.

Times are seconds on any one clock. Chance is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ckptcore.attempts import Cause, Outcome
from ckptcore.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Past:
    """An attempt that has ended.

    `slots`: where its ranks ran, in order of rank. `outcome`: as in its record. `blamed`: the slot of the rank that failed first,
    None if nobody is to blame. `drained`: that one was slow, and the attempt was ended for this. `progressed`: a step was
    committed that had not been when it was launched, be it by a settling of its last save afterwards. `ended`: when.
    """

    slots: tuple[int, ...]
    outcome: Outcome
    ended: float
    progressed: bool
    blamed: int | None = None
    drained: bool = False


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Launch another attempt on `slots`, after `delay` seconds."""

    slots: tuple[int, ...]
    delay: float
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The job is over. `no-progress`: too many restarts without a newly committed step; `message` says how many."""

    reason: Literal["finished", "preempted", "superseded", "no-progress"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a job goes on after failures. Raises `CallError` for what cannot be.

    `nproc` ranks if all is well, `min_nproc` at least. `max_restarts`: without a newly committed step. `first_delay`: seconds
    before the second restart without one (the first comes at once), doubled for each further one up to `longest_delay`.
    """

    nproc: int
    min_nproc: int
    tries: int = 2
    max_restarts: int = 3
    first_delay: float = 1.0
    longest_delay: float = 60.0
    grow_after: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_nproc <= self.nproc:
            raise CallError(f"nproc={self.nproc}, min_nproc={self.min_nproc}: expected 1 ≤ min_nproc ≤ nproc")
        if self.tries < 1 or self.max_restarts < 0:
            raise CallError(f"tries={self.tries}, max_restarts={self.max_restarts}: expected at least 1, and at least 0")
        if not 0 <= self.first_delay <= self.longest_delay < math.inf:
            raise CallError(f"delays of {self.first_delay} to {self.longest_delay} s: expected 0 ≤ first ≤ longest")
        if not 0 < self.grow_after < math.inf:
            raise CallError(f"grow_after={self.grow_after}: expected seconds, more than 0")

    def decide(self, history: Sequence[Past], now: float, chance: float) -> Launch | Stop:
        """What to do after `history`, this supervisor's attempts, oldest first; empty: the first launch.

        `chance`, 0 to 1, shortens the delay by up to a half of it, so that jobs that failed together do not come back together.
        """
        last = history[-1] if history else None
        if last and last.outcome in _FINAL:
            return Stop(reason=_FINAL[last.outcome], message=_SAID[last.outcome])
        restarts = without_progress(history)
        if last and last.outcome == "failed" and restarts >= self.max_restarts and not last.progressed:
            return Stop(reason="no-progress", message=f"{restarts} restart{'s' * (restarts != 1)} without a newly committed step")
        delay = self.delay(restarts + 1) * (1 - chance / 2) if last and last.outcome == "failed" else 0.0
        slots = self.available(history, now + delay)
        return Launch(slots=slots, delay=delay, cause=_cause(last, slots))

    def available(self, history: Sequence[Past], now: float) -> tuple[int, ...]:
        """The slots to use at `now`: those not left out. Never fewer than `min_nproc`."""
        return tuple(slot for slot, record in enumerate(self._records(history)) if record.until <= now)

    def grows_at(self, history: Sequence[Past], running: Iterable[int]) -> float | None:
        """When a slot comes back that is not `running`: time to end the attempt (`resized`) and go on with more. None: never."""
        records = self._records(history)
        return min((records[slot].until for slot in set(range(self.nproc)) - set(running)), default=None)

    def can_drop(self, running: Sequence[int]) -> bool:
        """Whether the job would go on without one of its slots: else it is of no use to drain one."""
        return len(running) > self.min_nproc

    def delay(self, restart: int) -> float:
        """Seconds before the n-th restart (1: the first) since there was progress, before chance has its say."""
        return 0.0 if restart <= 1 else min(self.first_delay * 2.0 ** min(restart - 2, 60), self.longest_delay)

    def _records(self, history: Sequence[Past]) -> list[_Record]:
        records = [_Record() for _ in range(self.nproc)]
        for past in history:
            if past.progressed or past.outcome != "failed":
                records = [self._cleared(slot, record, past) for slot, record in enumerate(records)]
            if past.outcome == "failed" and past.blamed is not None and past.blamed < self.nproc:
                records[past.blamed] = self._blamed(records[past.blamed], past)
                self._readmit(records, past)
        return records

    def _cleared(self, slot: int, record: _Record, past: Past) -> _Record:
        """The record of a slot after an attempt that had progress, or was ended from outside."""
        if past.progressed and slot in past.slots:
            return replace(record, failures=0, probation=False, times=record.times if slot == past.blamed else 0)
        return record if past.outcome == "resized" else replace(record, failures=0)

    def _blamed(self, record: _Record, past: Past) -> _Record:
        failures = record.failures + 1
        if self.min_nproc == self.nproc or (failures < self.tries and not record.probation and not past.drained):
            return replace(record, failures=failures)
        until = past.ended + self.grow_after * 2.0 ** min(record.times, 60)
        return _Record(failures=0, times=record.times + 1, until=until, probation=True)

    def _readmit(self, records: list[_Record], past: Past) -> None:
        """Of those left out, let the one that is due first come back at once if too few remain."""
        out = [slot for slot, record in enumerate(records) if record.until > past.ended]
        if len(out) > self.nproc - self.min_nproc:
            slot = min((slot for slot in out if slot != past.blamed), key=lambda slot: records[slot].until)
            records[slot] = replace(records[slot], until=past.ended)


@dataclass(frozen=True)
class _Record:
    """What is known of a slot. `failures`: in a row. `until`: it is left out. `times`: it was. `probation`: it has been, and
    nothing was committed with it since.
    """

    failures: int = 0
    until: float = -math.inf
    times: int = 0
    probation: bool = False


_FINAL: dict[Outcome, Literal["finished", "preempted", "superseded"]] = {
    "finished": "finished",
    "preempted": "preempted",
    "superseded": "superseded",
}
_SAID: dict[Outcome, str] = {
    "finished": "the job has finished",
    "preempted": "the last attempt was told to stop",
    "superseded": "the last attempt was superseded: another job has the run",
}


def without_progress(history: Sequence[Past]) -> int:
    """How many restarts in a row have led to no newly committed step and failed.

    The first attempt of all is no restart, nor is one that follows upon an attempt that had progress and did not fail.
    """
    failed = 0
    for past in reversed(history):
        if past.outcome == "lost" or (past.progressed and past.outcome == "failed"):
            return failed
        if past.progressed:
            break
        failed += past.outcome == "failed"
    return max(failed - 1, 0)


def _cause(last: Past | None, slots: tuple[int, ...]) -> Cause:
    if last is None:
        return "start"
    if last.outcome == "lost":
        return "resumed-supervisor"
    return "shrunk" if len(slots) < len(last.slots) else "grown" if len(slots) > len(last.slots) else "restart"
