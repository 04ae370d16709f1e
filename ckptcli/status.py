"""`ckpt status`: how old is what could be resumed from, what do saves cost, what goes wrong with them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from ckptcli import text
from ckptcli.durations import seconds, shown
from ckptcli.ending import Status
from ckptcli.incidents import Supervision, incident_table, supervision, told_facts
from ckptcli.options import LONGEST, Json, Url, settings
from ckptcli.output import emit, facts
from ckptcli.starts import Started, start_facts, started
from ckptcore.errors import CallError, StoreUnavailable
from ckptcore.events import shorten
from ckptcore.inspect import status as core
from ckptcore.inspect import unbegun
from ckptcore.inspect.incidents import Account
from ckptcore.monitor import metrics
from ckptcore.store import Store

AHEAD = 300.0
"""Seconds that the clock of whoever captured a checkpoint may be ahead of ours, until its age is worth nothing."""


class Checkpoint(msgspec.Struct, kw_only=True):
    """`captured`: when its state was; `age_seconds`: how long ago, negative where a clock is wrong."""

    generation: str
    step: int
    captured: datetime | None
    age_seconds: float | None


class Save(msgspec.Struct, kw_only=True):
    """The newest save. `stage_seconds` and `write_seconds` are of the slowest rank in each; `previous_…`: of the save before."""

    generation: str
    participants: int
    bytes: int
    stage_seconds: float | None
    write_seconds: float | None
    previous_wait_seconds: float | None
    previous_commit_seconds: float | None
    bytes_per_second: float | None
    slowest_rank: int | None
    slowest_rank_seconds: float | None


class Undecided(msgspec.Struct, kw_only=True):
    """A save that is under way, or that nobody has decided. `missing`: ranks without a receipt.

    Where nobody can tell how many ranks it has, `participants` is null, and `missing` says nothing.
    """

    generation: str
    participants: int | None
    missing: list[int]


class Report(msgspec.Struct, kw_only=True, tag_field="command", tag="status"):
    """What `ckpt status --json` prints.

    `fresh`: whether the newest checkpoint is no older than --max-age; null without that. One of more than 5 minutes ahead is not.
    `supervision` is there for a run that `ckpt supervise` has launched. `begun`: a job has opened the run; if not, there is
    nothing but `supervision` to tell. `starts`: the newest incarnations, oldest first.
    """

    url: str
    at: datetime
    fresh: bool | None
    committed: Checkpoint | None
    verified: Checkpoint | None
    on_nodes: Checkpoint | None
    steps_at_risk: int | None
    save: Save | None
    failures: Mapping[str, int]
    backlog: list[str]
    backlog_bytes: int
    undecided: list[Undecided]
    states: Mapping[str, int]
    begun: bool
    starts: list[Started]
    supervision: Supervision | msgspec.UnsetType = msgspec.UNSET


MaxAge = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="Exit with 1 when the newest that could be resumed from is older: 90, 15min, 3h, 2d."),
]
Watch = Annotated[float | None, typer.Option(metavar="SECONDS", help="Look again every so many seconds, until interrupted.")]
Prometheus = Annotated[
    str | None, typer.Option(metavar="FILE.prom", help="Also write metrics there, for node_exporter's textfile collector.")
]


def status(
    context: typer.Context,
    url: Url,
    *,
    max_age: MaxAge = None,
    watch: Watch = None,
    prometheus: Prometheus = None,
    as_json: Json = False,
) -> int:
    """Show how a run is doing: what a failure now would cost, what saves cost, what goes wrong with them.

    "verified" speaks of what a verification found whole: `ckpt verify`, or the job itself with `verify_rate`. It is no
    newer than "committed". With --watch one report follows another, with --json one line each.
    """
    oldest = None if max_age is None else seconds(max_age, what="--max-age")
    if watch is not None and not 0 < watch <= LONGEST:
        raise CallError(f"--watch {watch:g}: expected seconds between two looks, such as 10, at most {LONGEST:,.0f}")
    store = settings(context).store(url)
    while watch is not None:
        try:
            _once(store, oldest, prometheus, as_json=as_json)
        except StoreUnavailable as error:  # for a while, maybe
            sys.stderr.write(f"ckpt: {shorten(error)}\n")
        time.sleep(watch)
    return Status.NEGATIVE if _once(store, oldest, prometheus, as_json=as_json) is False else Status.DONE


def _once(store: Store, oldest: float | None, prometheus: str | None, *, as_json: bool) -> bool | None:
    """Look and report. Whether the newest checkpoint is young enough; None if nobody asks."""
    found = core.status(store)
    if prometheus is not None:
        _export(prometheus, found)
    made = report(found, oldest)
    emit(made, lambda: _render(found, made), as_json=as_json)
    return made.fresh


def _export(path: str, found: core.Status) -> None:
    try:
        metrics.write_textfile(path, found)
    except ImportError as error:
        raise CallError(str(error)) from error


def report(found: core.Status, oldest: float | None) -> Report:
    """A status as JSON has it."""
    age = None if found.committed is None else found.committed.age
    return Report(
        url=found.url,
        at=found.at,
        fresh=None if oldest is None else age is not None and -AHEAD <= age <= oldest,
        committed=_checkpoint(found.committed),
        verified=_checkpoint(found.verified),
        on_nodes=_checkpoint(found.on_nodes),
        steps_at_risk=found.steps_at_risk,
        save=_save(found.save),
        failures=dict(found.failures),
        backlog=[str(generation) for generation in found.backlog.generations],
        backlog_bytes=found.backlog.bytes,
        undecided=[
            Undecided(generation=str(each.generation), participants=each.participants, missing=list(each.missing))
            for each in found.undecided
        ],
        states=dict(found.states),
        begun=found.begun,
        starts=[started(each) for each in found.starts],
        supervision=msgspec.UNSET if found.supervision is None else supervision(found.supervision),
    )


def _checkpoint(newest: core.Newest | None) -> Checkpoint | None:
    if newest is None:
        return None
    generation = newest.generation
    return Checkpoint(generation=str(generation), step=generation.step, captured=newest.captured, age_seconds=newest.age)


def _save(save: core.SaveCosts | None) -> Save | None:
    if save is None:
        return None
    return Save(
        generation=str(save.generation),
        participants=save.participants,
        bytes=save.bytes,
        stage_seconds=save.stage,
        write_seconds=save.write,
        previous_wait_seconds=save.previous_wait,
        previous_commit_seconds=save.previous_commit,
        bytes_per_second=save.bytes_per_second,
        slowest_rank=save.slowest,
        slowest_rank_seconds=save.slowest_seconds,
    )


def _render(found: core.Status, made: Report) -> RenderableType:
    if not found.begun:
        return _render_unbegun(found)
    late = made.fresh is False and found.committed is not None and (found.committed.age or 0.0) >= 0
    old = " (older than --max-age)" if late else ""
    told = found.supervision
    shown_facts = facts(
        [
            ("run", found.url),
            ("newest committed", _age(found.committed, _uncommitted(found)) + old),
            ("newest verified", _age(found.verified, "none")),
            ("whole on the nodes", _age(found.on_nodes, "")),
            ("steps at risk", "" if found.steps_at_risk is None else f"at least {found.steps_at_risk:,}"),
            *start_facts(found.starts),
            *_save_facts(found.save),
            ("failed saves", ", ".join(f"{count} {kind}" for kind, count in sorted(found.failures.items())) or "none"),
            ("not yet deleted", _backlog(found.backlog)),
            ("undecided", "; ".join(map(_undecided, made.undecided)) or "none"),
            *(told_facts(told, found.at) if told is not None else ()),
        ]
    )
    return _with_incidents(shown_facts, told)


def _render_unbegun(found: core.Status) -> RenderableType:
    told = found.supervision
    if told is None:
        return facts([("run", found.url)])
    shown_facts = facts(
        [
            ("run", found.url),
            ("newest committed", "none: no run has begun here, no job has opened it yet"),
            *told_facts(told, found.at),
            ("next", unbegun.advice(told.newest)),
        ]
    )
    return _with_incidents(shown_facts, told)


def _with_incidents(shown_facts: RenderableType, told: Account | None) -> RenderableType:
    return Group(shown_facts, incident_table(told.incidents)) if told is not None and told.incidents else shown_facts


def _uncommitted(found: core.Status) -> str:
    """What a failure costs as long as nothing is committed."""
    if found.on_nodes is None:
        return "none: a failure now loses all work"
    return "none: all work is lost with the nodes, unless a start there goes on from what is whole on them"


def _age(newest: core.Newest | None, none: str) -> str:
    if newest is None:
        return none
    age = "at an unknown time" if newest.age is None else text.since(newest.age, " ago")
    return f"{age}, step {newest.generation.step:,} ({newest.generation})"


def _save_facts(save: core.SaveCosts | None) -> list[tuple[str, str]]:
    if save is None:
        return []
    speed = "" if save.bytes_per_second is None else f", {text.size(int(save.bytes_per_second))}/s"
    took = [("stage", save.stage), ("write", save.write)]
    before = [("receipt wait", save.previous_wait), ("commit", save.previous_commit)]
    slowest = "" if save.slowest is None else f"{save.slowest} of {save.participants}, {shown(save.slowest_seconds or 0)}"
    return [
        ("newest save", f"{save.generation}, {text.size(save.bytes)}{speed}"),
        ("its phases", _phases(took)),
        ("of the one before", _phases(before)),
        ("slowest rank", slowest),
    ]


def _phases(named: list[tuple[str, float | None]]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in named if value is not None)


def _backlog(backlog: core.Backlog) -> str:
    count = len(backlog.generations)
    return f"{text.plural(count, 'generation')}, {text.size(backlog.bytes)} of retired ones" if count else "nothing"


def _undecided(each: Undecided) -> str:
    return f"{each.generation}, {text.missing(each.missing, each.participants) or 'all receipts are there'}"
