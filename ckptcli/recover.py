"""`ckpt recover`: finish what a dead job left undecided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ckptcli import text
from ckptcli.ending import Status
from ckptcli.options import Apply, Json, Url, settings
from ckptcli.output import emit
from ckptcore.operate.recovery import Undecided
from ckptcore.operate.recovery import recover as finish

MOST = 12
"""Findings about one generation that people are shown."""
_SHOWN = {
    "complete": ("complete: --apply commits it", "green"),
    "committed": ("rolled forward: it is a checkpoint now", "green"),
    "aborted": ("aborted by its own job", "yellow"),
    "incomplete": ("incomplete: left as it is; its own job, or the next start, decides", "red"),
    "superseded": ("of an older incarnation: the next start settles it", "yellow"),
    "undetermined": ("undetermined: nothing can be said, and nothing was done", "red"),
}


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the proof lacks: a receipt, a file."""

    kind: str
    text: str
    clause: str
    rank: int | None
    key: str | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One undecided generation. `outcome`: complete, committed, aborted, incomplete, superseded or undetermined."""

    generation: str
    outcome: str
    reason: str
    clause: str
    missing: list[int]
    details: list[Detail]


class Recovery(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="recover"):
    """What `ckpt recover --json` prints."""

    url: str
    applied: bool
    generations: list[Found]


def recover(context: typer.Context, url: Url, *, apply: Apply = False, as_json: Json = False) -> Status:
    """Commit what a dead job left complete but undecided, as its own coordinator would have.

    Nothing is claimed, aborted or deleted, so it is safe while the job lives. Exit status 1 if something stays undecided that
    is not complete, 3 if that could not be found out.
    """
    store = settings(context).store(url)
    found = finish(store, apply=apply)
    emit(
        Recovery(url=store.url, applied=apply, generations=[_row(each) for each in found]),
        lambda: _render(found),
        as_json=as_json,
    )
    outcomes = {each.outcome for each in found}
    if "undetermined" in outcomes:
        return Status.STORE
    return Status.DONE if outcomes <= {"complete", "committed"} else Status.NEGATIVE


def _row(found: Undecided) -> Found:
    details = [Detail(kind=each.kind, text=each.text, clause=each.clause, rank=each.rank, key=each.key) for each in found.details]
    return Found(
        generation=str(found.generation),
        outcome=found.outcome,
        reason=found.reason,
        clause=found.clause,
        missing=list(found.missing),
        details=details,
    )


def _render(found: Sequence[Undecided]) -> RenderableType:
    if not found:
        return Text("nothing is undecided")
    return Group(*(line for each in found for line in _lines(each)))


def _lines(found: Undecided) -> Iterator[Text]:
    shown, style = _SHOWN[found.outcome]
    yield Text.assemble((f"{found.generation}", "bold"), f"  step {found.generation.step:,}  ", (shown, style))
    if found.outcome != "committed":
        yield Text(text.plain(f"  {text.first_line(found.reason, 400)} ({found.clause})"))
    for each in found.details[:MOST]:
        yield Text(text.plain(f"  - {each.text} ({each.clause})"))
    if len(found.details) > MOST:
        yield Text(f"  - and {len(found.details) - MOST} more: --json has them all")
