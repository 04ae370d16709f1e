"""`ckpt rollback`: let the run go on from an older checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.options import Apply, Json, Url, named, settings
from ckptcli.output import emit
from ckptcore.inspect.proving import Verdict
from ckptcore.operate.rollback import Plan, plan, roll_back

MOST = 12
"""Strays that people are shown."""

To = Annotated[str, typer.Option("--to", metavar="WHICH", help="The generation ID, or the step, to go on from.")]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """An undecided generation that a rollback has to decide. `decision`: commit or abort; null where that is not known."""

    generation: str
    decision: str | None
    reason: str


class Rollback(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="rollback"):
    """What `ckpt rollback --json` prints.

    `head`: the resume point before, null if there is none, or if it is unknown for the reason in `unknown`. `strays`: what is
    on no path from the resume point any more. `newest_claim` is superseded; `incarnation` was claimed, null without --apply.
    """

    url: str
    applied: bool
    generation: str
    head: str | None
    unknown: str
    strays: list[str]
    settles: list[Settled]
    newest_claim: int | None
    claimed_at: str | None
    incarnation: int | None


def rollback(context: typer.Context, url: Url, *, to: To, apply: Apply = False, as_json: Json = False) -> None:
    """Make a checkpoint the resume point, whatever came after it.

    A job that is running is stopped by that. Nothing is deleted: what came after stays readable by its name.
    """
    store = settings(context).store(url)
    (chosen,) = named(to).values()
    planned = plan(store, chosen)
    number = roll_back(store, planned.chosen).number if apply else None
    emit(_document(store.url, planned, number), lambda: Group(*_lines(planned, number)), as_json=as_json)


def _document(url: str, planned: Plan, number: int | None) -> Rollback:
    return Rollback(
        url=url,
        applied=number is not None,
        generation=str(planned.chosen),
        head=str(planned.head) if planned.head else None,
        unknown=planned.unknown,
        strays=[str(stray) for stray in planned.strays],
        settles=[_settled(verdict) for verdict in planned.settles],
        newest_claim=planned.claim.incarnation if planned.claim else None,
        claimed_at=planned.claim.created if planned.claim else None,
        incarnation=number,
    )


def _settled(verdict: Verdict) -> Settled:
    decision = None if verdict.decided is None else "commit" if verdict.committed else "abort"
    return Settled(generation=str(verdict.generation), decision=decision, reason=verdict.finding.text)


def _lines(planned: Plan, number: int | None) -> Iterator[RenderableType]:
    if number is None:
        yield Text(f"the next start would resume from {planned.chosen} (step {planned.chosen.step:,})")
    else:
        yield Text(
            f"rolled back: the next start resumes from {planned.chosen} (step {planned.chosen.step:,}; incarnation {number})"
        )
    yield Text(text.plain(f"instead of: {planned.head or planned.unknown or 'none'}"))
    yield from _strays(planned)
    yield from (Text(text.plain(f"settled by it: {each.generation}: {each.finding.text}")) for each in planned.settles)
    yield from _running(planned, number)
    if number is None:
        yield Text("nothing was changed: --apply does it", style="bold")


def _strays(planned: Plan) -> Iterator[Text]:
    if planned.strays:
        yield Text(
            f"left behind, readable by name and never resumed from unasked: {text.plural(len(planned.strays), 'checkpoint')}"
        )
        yield from (Text(f"  {stray} (step {stray.step:,})", style="yellow") for stray in planned.strays[:MOST])
    if len(planned.strays) > MOST:
        yield Text(f"  and {len(planned.strays) - MOST} more: --json has them all")
    if planned.head == planned.chosen:
        yield Text("it is the resume point already")


def _running(planned: Plan, number: int | None) -> Iterator[Text]:
    """That somebody may be training: the records of a run do not tell whether its job lives."""
    if planned.claim is None:
        return
    ago = text.ago(_time(planned.claim.created), datetime.now(UTC))
    stops = "stops" if number else "would stop"
    yield Text(
        f"a job that still runs {stops} at its next save, and what it saves is lost: incarnation {planned.claim.incarnation} was"
        f" claimed {ago}, and no record tells whether its job lives",
        style="yellow",
    )


def _time(stored: str) -> datetime | None:
    try:
        return datetime.fromisoformat(stored)
    except ValueError:
        return None
