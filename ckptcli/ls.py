"""`ckpt ls`: the generations of a run, and the runs below a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status, tell
from ckptcli.numbers import Number, numbers
from ckptcli.options import Json, Settings, Url, settings
from ckptcli.output import STYLES, emit, table
from ckptcore.errors import CheckpointError, NotFound
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.inspect.runs import Place, find_runs
from ckptcore.store import Store


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
    """One run."""

    url: str
    generations: list[Row]


class Listing(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="ls"):
    """What `ckpt ls --json` prints."""

    runs: list[RunRows]


def ls(context: typer.Context, url: Url, *, as_json: Json = False) -> int:
    """List the generations of a run, or of all runs below a prefix.

    A star marks the resume point. States: committed, verified, stray (committed, but on no path from the resume point),
    undecided, aborted, retired, quarantined, damaged, unreadable. Of a run below a prefix that cannot be listed standard
    error tells why; the others are listed.
    """
    chosen = settings(context)
    top = chosen.store(url)
    places = list(find_runs(top))
    if not places:
        raise NotFound(f"there is no run at {top.url}, nor below it; check the URL")
    if places == [Place(top.url)]:
        found, status = [(top, inventory(top))], Status.DONE
    else:
        found, status = _below(chosen, places)
    listing = Listing(runs=[RunRows(url=store.url, generations=[row(entry) for entry in entries]) for store, entries in found])
    if found or as_json:
        emit(listing, lambda: _render(found, several=len(places) > 1), as_json=as_json)
    return status


def _below(chosen: Settings, places: Sequence[Place]) -> tuple[list[tuple[Store, list[Entry]]], Status]:
    """The runs that can be listed, and the worst status; one that cannot be hides no other."""
    found, worst = list[tuple[Store, list[Entry]]](), Status.DONE
    for place in places:
        try:
            if place.error is not None:
                raise place.error
            store = chosen.store(place.url)
            found.append((store, inventory(store)))
        except CheckpointError as error:
            worst = max(worst, tell(error, place.url))
    return found, worst


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


def _render(found: Sequence[tuple[Store, Sequence[Entry]]], *, several: bool) -> RenderableType:
    now = datetime.now(UTC)
    parts: list[RenderableType] = []
    for store, entries in found:
        if several:
            parts += [Text(store.url, style="bold")]
        parts += [_table(entries, now) if entries else Text("no generations yet"), Text("")]
    return Group(*parts[:-1])


def _table(entries: Sequence[Entry], now: datetime) -> RenderableType:
    made = table("", "generation", "step", "state", "size", "age", "guarantee", "notes", right=("step", "size", "age"))
    for entry in entries:
        made.add_row(
            "*" if entry.is_head else "",
            str(entry.generation),
            f"{entry.generation.step:,}",
            Text(entry.state, style=STYLES[entry.state]),
            text.size(entry.bytes),
            text.age(entry.at, now),
            entry.guarantee or "",
            text.cell(_notes(entry)),
        )
    return made


def _notes(entry: Entry) -> str:
    parts = [text.missing(entry.missing, entry.participants)] if entry.missing or entry.state == "undecided" else []
    parts += [text.first_line(entry.reason)] if entry.reason else []
    parts += ["pinned"] if entry.listed.pinned else []
    parts += [f"tag {tag}" for tag in entry.listed.tags]
    parts += [f"{name}={value:.4g}" for name, value in entry.listed.metrics.items()]
    return "; ".join(part for part in parts if part)
