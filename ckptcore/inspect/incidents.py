"""What went wrong under supervision, what it cost, and which part of the time became work (spec: supervision).

The time since the first plan, while anybody supervised, is divided without a gap into parts. What an incident costs is what
follows it, until training has caught up or the next incident begins; a start that follows none costs too, but no incident. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Literal

from ckptcore import interval
from ckptcore.attempts import Attempt, AttemptIncident
from ckptcore.errors import CallError
from ckptcore.interval import Costs

Part = Literal["productive", "blocked", "detect", "relaunch", "restore", "recompute"]
PARTS: tuple[Part, ...] = ("productive", "blocked", "detect", "relaunch", "restore", "recompute")
"""Where time goes.

`productive`: training that had not been done before. `blocked`: in it, saves that stopped training. `detect`: from the last sign
of an attempt until it was known to be over. `relaunch`: processes stop, wait, start, and compile after the restore. `restore`:
until all ranks have their state. `recompute`: steps that had been made before.
"""

LOST: tuple[Part, ...] = ("detect", "relaunch", "restore", "recompute")
"""The parts that an incident costs."""

_ASIDE = frozenset({"finished", "preempted", "superseded"})
"""Outcomes after which nobody supervises: the time until the next plan is not counted."""


@dataclass(frozen=True)
class Span:
    """A part of an attempt's time, or of the time that leads to it."""

    part: Part
    start: datetime
    stop: datetime

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.stop - self.start) / timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Why an attempt ended before its time, and what that has cost so far, in seconds.

    `at`: when it was noticed. `lost_steps`: completed updates that were made again; None until an attempt has restored.
    `recovered`: training has caught up since.
    """

    attempt: int
    kind: str
    at: datetime | None
    rank: int | None
    slot: int | None
    node: str | None
    phase: str | None
    step: int | None
    message: str
    detect: float
    relaunch: float
    restore: float
    recompute: float
    lost_steps: int | None
    recovered: bool

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.detect + self.relaunch + self.restore + self.recompute


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Where the time went, in seconds: `wall` is the sum of the others. `fraction`: the productive part, None before there is any
    time. `mtbf`: `wall` by incident, None without one.
    """

    wall: float
    productive: float
    blocked: float
    detect: float
    relaunch: float
    restore: float
    recompute: float
    fraction: float | None
    incidents: int
    mtbf: float | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """A supervised run: the newest attempt, every incident, where the time went, and the fraction that the model predicts."""

    newest: Attempt
    incidents: tuple[Incident, ...]
    goodput: Goodput
    predicted: float | None


def account(
    attempts: Sequence[Attempt],
    now: datetime,
    *,
    seen: datetime | None = None,
    costs: Costs | None = None,
    period: float | None = None,
) -> Account | None:
    """All that there is to tell of `attempts`, oldest first; None if nobody supervised.

    `seen`: the newest sign of training that the run itself has; see `goodput`. `costs`, `period`: see `predicted`.
    """
    if not attempts:
        return None
    found, measured = incidents(attempts, now), goodput(attempts, now, seen)
    prediction = None if costs is None or period is None else predicted(found, measured, costs, period)
    return Account(newest=attempts[-1], incidents=tuple(found), goodput=measured, predicted=prediction)


def incidents(attempts: Sequence[Attempt], now: datetime | None = None) -> list[Incident]:
    """Every incident, oldest first. An attempt that has not ended counts until `now`, or else until what it has last told."""
    parts = dict(zip((attempt.number for attempt in attempts), spans(attempts, now), strict=True))
    return [
        _incident(attempt, told, parts, attempts[place + 1 :])
        for place, attempt in enumerate(attempts)
        if (told := _told(attempt)) is not None
    ]


def goodput(attempts: Sequence[Attempt], now: datetime, seen: datetime | None = None) -> Goodput:
    """Where the time has gone until `now`, or until nobody supervised any more.

    An attempt that has no end may train, or its supervisor may be dead, which the records do not tell. Its training counts until
    `seen`, when it was last seen to train; None: it is known to.
    """
    found = [span for each in spans(attempts, now, seen) for span in each]
    totals = {part: _total(found, part) for part in PARTS}
    wall, count = sum(totals.values()), sum(_told(attempt) is not None for attempt in attempts)
    return Goodput(
        wall=wall,
        fraction=totals["productive"] / wall if wall else None,
        incidents=count,
        mtbf=wall / count if count and wall else None,
        **totals,
    )


def predicted(found: Sequence[Incident], measured: Goodput, costs: Costs, period: float) -> float | None:
    """The fraction that the model of `ckptcore.interval` predicts for saves every `period` seconds, of what was measured here.

    `costs`: what saves cost. That of a failure is the mean over the incidents, without the steps that are made again, which the
    model adds by itself. None without an incident, or where saves follow one another without a pause.
    """
    if measured.mtbf is None or not found:
        return None
    restart = sum(each.relaunch + each.restore for each in found) / len(found)
    downtime = sum(each.detect for each in found) / len(found)
    told = Costs(blocking=costs.blocking, persist=costs.persist, slowdown=costs.slowdown, restart=restart, downtime=downtime)
    try:
        return interval.goodput(period, told, measured.mtbf)
    except CallError:  # the model has no answer for such a period
        return None


def spans(attempts: Sequence[Attempt], now: datetime | None = None, seen: datetime | None = None) -> list[list[Span]]:
    """The time that each attempt accounts for, in order: from when the one before was known to be over, or its own plan.

    No time counts twice: an attempt may be known to be over, as one that is drained is, while its ranks still save, and one of
    another supervisor may outlive the next one's plan.
    """
    reached, before, found, counted = 0, None, [], None
    for place, attempt in enumerate(attempts):
        until = seen if attempt.resumed is not None and seen is not None else now
        following = _at(attempts[place + 1].plan.created) if place + 1 < len(attempts) else None
        until = until if following is None or until is None else min(until, following)
        begin = _begin(attempt, before)
        found.append(_spans(attempt, begin if counted is None or begin is None else max(begin, counted), reached, until))
        counted = max([*([] if counted is None else [counted]), *(span.stop for span in found[-1])], default=None)
        end = attempt.end
        reached, before = max(reached, (end and end.last_step) or 0), attempt
    return found


def _begin(attempt: Attempt, before: Attempt | None) -> datetime | None:
    created = _at(attempt.plan.created)
    if before is None or before.end is None or before.end.outcome in _ASIDE:
        return created
    return _at(before.end.detected) or created


def _spans(attempt: Attempt, begin: datetime | None, reached: int, now: datetime | None) -> list[Span]:
    """`reached`: the furthest step of the attempts before."""
    if begin is None:
        return []
    points = _points(attempt, reached)
    last = _last(attempt, [begin, *(at for _, at in points if at is not None)], now)
    found, cursor, pending = list[Span](), begin, None
    for part, until in points:
        pending = pending or part
        if until is not None:
            stop = max(cursor, until)
            found.append(Span(pending, cursor, stop))
            cursor, pending = stop, None
    found.append(Span(pending or "productive", cursor, last))
    return [span for span in [*_blocked(found, attempt), *_over(attempt, last)] if span.stop > span.start]


def _points(attempt: Attempt, reached: int) -> list[tuple[Part, datetime | None]]:
    """What each part of a start ends with."""
    told = attempt.resumed or attempt.end
    if told is None:
        return [("relaunch", None)]
    first = _at(told.first_step)
    if attempt.resumed is not None:
        recovered = _at(attempt.resumed.recovered)
    else:  # nothing to catch up with; or it has not
        recovered = first if first is not None and reached <= (told.restored_step or 0) else None
    return [
        ("relaunch", _at(told.restoring)),
        ("restore", _at(told.restored)),
        ("relaunch", first),
        ("recompute", recovered),
    ]


def _last(attempt: Attempt, known: Iterable[datetime], now: datetime | None) -> datetime:
    """The last sign of an attempt, `now` of one that has not ended; at least the latest of what is known of it."""
    sign = now if attempt.end is None else _at(attempt.end.last_sign)
    return max([*known, *([] if sign is None else [sign])])


def _blocked(found: list[Span], attempt: Attempt) -> list[Span]:
    """The last span, if it is productive, parted into what saves have stopped and the rest."""
    *others, last = found
    if last.part != "productive" or attempt.end is None:
        return found
    stopped = min(timedelta(microseconds=attempt.end.blocked), last.stop - last.start)
    middle = last.stop - stopped
    return [*others, Span("productive", last.start, middle), Span("blocked", middle, last.stop)]


def _over(attempt: Attempt, last: datetime) -> list[Span]:
    """From the last sign until the next attempt's time begins, or nobody supervises."""
    if attempt.end is None:
        return []
    detected, stopped = _at(attempt.end.detected), _at(attempt.end.stopped)
    if _told(attempt) is not None:
        return [] if detected is None else [Span("detect", last, detected)]
    until = stopped if attempt.end.outcome in _ASIDE else detected
    return [] if until is None else [Span("relaunch", last, until)]


def _told(attempt: Attempt) -> AttemptIncident | None:
    """The incident that ended an attempt, if one did. That another job has taken the run is none."""
    if attempt.end is None or attempt.end.outcome == "superseded":
        return None
    if attempt.end.incident is not None or attempt.end.outcome != "lost":
        return attempt.end.incident
    who = attempt.plan.supervisor
    return AttemptIncident(kind="supervisor", message=f"process {who.pid} on {who.host} ended without a word")


def _incident(attempt: Attempt, told: AttemptIncident, parts: dict[int, list[Span]], later: Sequence[Attempt]) -> Incident:
    following = later[0] if later and (attempt.end is None or attempt.end.outcome not in _ASIDE) else None
    cost = [] if following is None else list(takewhile(lambda span: span.part in LOST, parts[following.number]))
    return Incident(
        attempt=attempt.number,
        kind=told.kind,
        at=None if attempt.end is None else _at(attempt.end.detected),
        rank=told.rank,
        slot=told.slot,
        node=told.node,
        phase=told.phase,
        step=told.step,
        message=told.message,
        detect=_total(parts[attempt.number], "detect"),
        relaunch=_total(cost, "relaunch"),
        restore=_total(cost, "restore"),
        recompute=_total(cost, "recompute"),
        lost_steps=_lost(attempt, later),
        recovered=any(each.resumed is not None for each in later),
    )


def _lost(attempt: Attempt, later: Sequence[Attempt]) -> int | None:
    """Completed updates that were not in the checkpoint from which the job went on."""
    told = (each.resumed or each.end for each in later)
    restored = next((each.restored_step for each in told if each is not None and each.restored_step is not None), None)
    last = None if attempt.end is None else attempt.end.last_step
    return None if restored is None else max(0, (last or 0) - restored)


def _total(found: Iterable[Span], part: Part) -> float:
    return sum((span.seconds for span in found if span.part == part), start=0.0)


def _at(text: str | None) -> datetime | None:
    """When that was; None for a date that no calendar has, which no reader refuses."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
