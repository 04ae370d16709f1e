"""`ckpt ls`: the generations of a run, and the runs below a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status, tell
from ckptcli.incidents import attempt_line
from ckptcli.numbers import Number, numbers
from ckptcli.options import Json, Settings, Url, settings
from ckptcli.output import STYLES, emit, table
from ckptcore.attempts import Attempt
from ckptcore.errors import CheckpointError, NotFound
from ckptcore.inspect import unbegun
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.inspect.runs import Place, find_runs
from ckptcore.store import Store

_FOLDED = 4
"""The fewest retired generations after each other that are one line for people."""

All = Annotated[bool, typer.Option("--all", help="A line for each retired generation, too.")]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `at`: when its state was captured; `missing`: ranks that have delivered no receipt."""

    generation: str
    incarnation: int
    step: int
    attempt: int
    state: str
    head: bool
    restorable: bool
    guarantee: str | None
    bytes: int | None
    at: datetime | None
    participants: int | None
    missing: list[int]
    reason: str
    on_nodes: bool
    metrics: dict[str, Number]
    tags: list[str]
    pinned: bool


class RunRows(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `begun`: false where a supervisor has launched a job, and that has not begun the run: `ckpt status` tells more."""

    url: str
    begun: bool
    generations: list[Row]


class Listing(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="ls"):
    """What `ckpt ls --json` prints."""

    runs: list[RunRows]


@dataclass(frozen=True)
class _Found:
    """What there is at a place. `attempts`: of a run that has not begun."""

    store: Store
    entries: Sequence[Entry]
    attempts: Sequence[Attempt] = ()


def ls(context: typer.Context, url: Url, *, every: All = False, as_json: Json = False) -> int:
    """List the generations of a run, or of all runs below a prefix.

    A star marks the resume point. States: committed, verified, stray (committed, but on no path from the resume point),
    undecided, aborted, retired, quarantined, damaged, unreadable. Many retired ones after each other are one line. Of a run
    below a prefix that cannot be listed standard error tells why; the others are listed. A run that a supervised job has never
    begun is there without generations.
    """
    chosen = settings(context)
    top = chosen.store(url)
    places = list(find_runs(top))
    if not places:
        raise NotFound(f"there is no run at {top.url}, nor below it; check the URL")
    if len(places) == 1 and places[0].url == top.url:
        found, status = [_look(top, places[0])], Status.DONE
    else:
        found, status = _below(chosen, places)
    listing = Listing(runs=[_rows(each) for each in found])
    if found or as_json:
        emit(listing, lambda: _render(found, several=len(places) > 1, every=every), as_json=as_json)
    return status


def _below(chosen: Settings, places: Sequence[Place]) -> tuple[list[_Found], Status]:
    """The runs that can be listed, and the worst status; one that cannot be hides no other."""
    found, worst = list[_Found](), Status.DONE
    for place in places:
        try:
            if place.error is not None:
                raise place.error
            found.append(_look(chosen.store(place.url), place))
        except CheckpointError as error:
            worst = max(worst, tell(error, place.url))
    return found, worst


def _look(store: Store, place: Place) -> _Found:
    if place.begun:
        return _Found(store, inventory(store))
    history, attempts = unbegun.look(store)
    return _Found(store, [], attempts) if history is None else _Found(store, inventory(store, history))


def _rows(found: _Found) -> RunRows:
    return RunRows(url=found.store.url, begun=not found.attempts, generations=[row(entry) for entry in found.entries])


def row(entry: Entry) -> Row:
    """An entry as JSON has it."""
    return Row(
        generation=str(entry.generation),
        incarnation=entry.generation.incarnation,
        step=entry.generation.step,
        attempt=entry.generation.attempt,
        state=entry.state,
        head=entry.is_head,
        restorable=entry.restorable,
        guarantee=entry.guarantee,
        bytes=entry.bytes,
        at=entry.at,
        participants=entry.participants,
        missing=list(entry.missing),
        reason=entry.reason,
        on_nodes=entry.on_nodes,
        metrics=numbers(entry.listed.metrics),
        tags=list(entry.listed.tags),
        pinned=entry.listed.pinned,
    )


def _render(found: Sequence[_Found], *, several: bool, every: bool) -> RenderableType:
    now = datetime.now(UTC)
    parts: list[RenderableType] = []
    for each in found:
        if several:
            parts += [Text(each.store.url, style="bold")]
        parts += [_table(each.entries, now, every=every) if each.entries else Text(_nothing(each.attempts)), Text("")]
    return Group(*parts[:-1])


def _nothing(attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "no generations yet"
    count = text.plural(len(attempts), "attempt")
    return f"no run has begun here: {count} of a supervisor, the newest: {attempt_line(attempts[-1])}; `ckpt status` tells more"


def _table(entries: Sequence[Entry], now: datetime, *, every: bool) -> RenderableType:
    made = table("", "generation", "step", "state", "size", "age", "guarantee", "notes", right=("step", "size", "age"))
    for state, group in groupby(entries, lambda entry: entry.state):
        found = list(group)
        folds = state == "retired" and len(found) >= _FOLDED and not every
        for cells in [_folded(found, now)] if folds else [_line(entry, now) for entry in found]:
            made.add_row(*cells)
    return made


def _folded(entries: Sequence[Entry], now: datetime) -> list[RenderableType]:
    """What retention has given up, in one line: in a long job that is nearly all there ever was."""
    first, last = entries[0], entries[-1]
    count = text.plural(len(entries), "generation")
    steps = f"{first.generation.step:,} to {last.generation.step:,}"
    note = f"steps {steps}; --all lists them"
    return ["", count, "", Text("retired", style=STYLES["retired"]), "", text.age(last.at, now), "", text.cell(note)]


def _line(entry: Entry, now: datetime) -> list[RenderableType]:
    return [
        "*" if entry.is_head else "",
        str(entry.generation),
        f"{entry.generation.step:,}",
        Text(entry.state, style=STYLES[entry.state]),
        text.size(entry.bytes),
        text.age(entry.at, now),
        entry.guarantee or "",
        text.cell(_notes(entry)),
    ]


def _notes(entry: Entry) -> str:
    parts = [text.missing(entry.missing, entry.participants, entry.reason)] if entry.missing or entry.state == "undecided" else []
    parts += [text.first_line(entry.reason)] if entry.reason else []
    parts += ["pinned"] if entry.listed.pinned else []
    parts += [f"tag {tag}" for tag in entry.listed.tags]
    parts += [f"{name}={value:.4g}" for name, value in entry.listed.metrics.items()]
    return "; ".join(part for part in parts if part)
