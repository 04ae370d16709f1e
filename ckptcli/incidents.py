"""Attempts, incidents and goodput of a supervised run, as JSON has them and as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec
from rich.table import Table

from ckptcli import text
from ckptcli.durations import shown
from ckptcli.output import table
from ckptcore.attempts import Attempt, AttemptPlan
from ckptcore.inspect.incidents import LOST, Account, Goodput, Incident

NEWEST = 10
"""How many incidents are listed for people."""
NODES = 8
"""How many of an attempt's nodes are named."""


class Happened(msgspec.Struct, kw_only=True):
    """Why an attempt ended before its time, and what that has cost so far. `lost_steps`: null until an attempt has restored."""

    attempt: int
    kind: str
    at: datetime | None
    rank: int | None
    slot: int | None
    node: str | None
    phase: str | None
    step: int | None
    message: str
    detect_seconds: float
    relaunch_seconds: float
    restore_seconds: float
    recompute_seconds: float
    lost_steps: int | None
    recovered: bool


class Supervision(msgspec.Struct, kw_only=True):
    """A supervised run. `outcome`: of the newest attempt, null while it has none.

    `wall_seconds` is the sum of the `…_seconds` after it. `goodput`: the productive fraction, `predicted_goodput`: the one that
    the model gives for the interval that is kept and the costs that were measured. `mtbf_seconds`: by incident.
    """

    attempt: int
    cause: str
    processes: int
    outcome: str | None
    goodput: float | None
    predicted_goodput: float | None
    mtbf_seconds: float | None
    wall_seconds: float
    productive_seconds: float
    blocked_seconds: float
    detect_seconds: float
    relaunch_seconds: float
    restore_seconds: float
    recompute_seconds: float
    incidents: list[Happened]


def supervision(told: Account) -> Supervision:
    """An account as JSON has it."""
    found = told.goodput
    return Supervision(
        attempt=told.newest.number,
        cause=told.newest.plan.cause,
        processes=told.newest.plan.processes,
        outcome=None if told.newest.end is None else told.newest.end.outcome,
        goodput=found.fraction,
        predicted_goodput=told.predicted,
        mtbf_seconds=found.mtbf,
        wall_seconds=found.wall,
        productive_seconds=found.productive,
        blocked_seconds=found.blocked,
        detect_seconds=found.detect,
        relaunch_seconds=found.relaunch,
        restore_seconds=found.restore,
        recompute_seconds=found.recompute,
        incidents=[happened(each) for each in told.incidents],
    )


def happened(incident: Incident) -> Happened:
    """An incident as JSON has it."""
    return Happened(
        attempt=incident.attempt,
        kind=incident.kind,
        at=incident.at,
        rank=incident.rank,
        slot=incident.slot,
        node=incident.node,
        phase=incident.phase,
        step=incident.step,
        message=incident.message,
        detect_seconds=incident.detect,
        relaunch_seconds=incident.relaunch,
        restore_seconds=incident.restore,
        recompute_seconds=incident.recompute,
        lost_steps=incident.lost_steps,
        recovered=incident.recovered,
    )


def told_facts(told: Account, now: datetime) -> list[tuple[str, str]]:
    """What there is to say in a few lines."""
    kinds = Counter(each.kind for each in told.incidents)
    often = "" if told.goodput.mtbf is None else f"; one in {shown(told.goodput.mtbf)}"
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return [
        ("attempt", attempt_line(told.newest)),
        ("goodput", goodput_line(told.goodput, told.predicted)),
        ("lost time", lost_line(told.goodput)),
        ("incidents", f"{listed}{often}" if listed else "none"),
        ("newest incident", incident_line(told.incidents[-1], now) if told.incidents else ""),
    ]


def attempt_line(attempt: Attempt) -> str:
    """`3, 2 ranks (shrunk), trains`, or `3, 16 ranks on trainer-1, trainer-2 (shrunk), trains`."""
    state = "no end recorded" if attempt.end is None else attempt.end.outcome
    state = "trains" if attempt.end is None and attempt.resumed is not None else state
    ranks = f"{text.plural(attempt.plan.processes, 'rank')}{on_nodes(attempt.plan)}"
    return f"{attempt.number}, {ranks} ({attempt.plan.cause}), {state}"


def on_nodes(plan: AttemptPlan) -> str:
    """` on trainer-1, trainer-2` of a job of several nodes, the first ones of many; else nothing."""
    names = [member.node for member in plan.members]
    more = f" and {len(names) - NODES} more" if len(names) > NODES else ""
    return f" on {', '.join(names[:NODES])}{more}" if names else ""


def supervisor_at(plan: AttemptPlan) -> str:
    """Where whoever planned an attempt is: its node, as the job calls it, else its host."""
    own = (member.node for member in plan.members if member.nonce == plan.supervisor.nonce)
    return next(own, plan.supervisor.host)


def goodput_line(found: Goodput, predicted: float | None) -> str:
    """`93.1 % of 2 h 3 min; the model says 94.0 %`."""
    if found.fraction is None:
        return ""
    model = "" if predicted is None else f"; the model says {percent(predicted)}"
    return f"{percent(found.fraction)} of {shown(found.wall)}{model}"


def lost_line(found: Goodput) -> str:
    """The parts that are no work, those that are nothing left out."""
    parts = [(part, getattr(found, part)) for part in (*LOST, "blocked")]
    return ", ".join(f"{part} {shown(seconds)}" for part, seconds in parts if seconds) or "none"


def incident_line(incident: Incident, now: datetime) -> str:
    """`hang of rank 2 in save at step 231, 4 min ago; cost 55 s and 31 steps, caught up`."""
    steps = "" if incident.lost_steps is None else f" and {text.plural(incident.lost_steps, 'step')}"
    state = "caught up" if incident.recovered else "not caught up yet"
    return f"{what(incident)}, {text.ago(incident.at, now)}; cost {shown(incident.seconds)}{steps}, {state}"


def what(incident: Incident) -> str:
    """`hang of rank 2 (trainer-7, slot 2) in save at step 231`, `loss of node trainer-7`."""
    kind = "loss" if incident.kind == "node" else incident.kind
    return f"{kind}{of_whom(incident, ' of ')}{where(incident, ' ')}"


def of_whom(incident: Incident, before: str = "") -> str:
    """`rank 2 (trainer-7, slot 2)`, or `node trainer-7`, after `before`; empty if nobody is to blame."""
    if incident.rank is None:
        return f"{before}node {incident.node}" if incident.node else ""
    place = [incident.node or "", "" if incident.slot is None else f"slot {incident.slot}"]
    inside = ", ".join(filter(None, place))
    return f"{before}rank {incident.rank}" + (f" ({inside})" if inside else "")


def where(incident: Incident, before: str = "") -> str:
    """`in save at step 231`."""
    parts = [incident.phase and f"in {incident.phase}", None if incident.step is None else f"at step {incident.step:,}"]
    told = " ".join(filter(None, parts))
    return f"{before}{told}" if told else ""


def percent(fraction: float) -> str:
    """A fraction as people read it: more digits near the whole."""
    return f"{fraction:.2%}" if fraction > 0.98 else f"{fraction:.1%}"


def incident_table(incidents: Sequence[Incident], newest: int = NEWEST) -> Table:
    """The newest incidents with what each has cost, newest last."""
    columns = ("attempt", "at", "kind", "who", "phase", "step", *LOST, "lost steps", "message")
    made = table(*columns, right=("attempt", "step", *LOST, "lost steps"))
    for each in incidents[-newest:]:
        made.add_row(*map(text.cell, _row(each)))
    return made


def _row(incident: Incident) -> list[str]:
    return [
        str(incident.attempt),
        "" if incident.at is None else incident.at.strftime("%Y-%m-%d %H:%M:%S"),
        incident.kind,
        of_whom(incident),
        incident.phase or "",
        "" if incident.step is None else f"{incident.step:,}",
        *(shown(getattr(incident, part)) for part in LOST),
        "" if incident.lost_steps is None else f"{incident.lost_steps:,}",
        text.first_line(incident.message) + ("" if incident.recovered else " (not caught up yet)"),
    ]
