"""`ckpt mirror`: keep a copy of a run up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from ckptcli.copies import Copy, Dest, Failed, Limit, copy_all, failures, rate_of, render, rows
from ckptcli.ending import Status
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcore.clock import Clock
from ckptcore.errors import StoreUnavailable
from ckptcore.events import log
from ckptcore.operate.copying import Copier

PAUSE = 10.0
"""Seconds between two looks for new commits."""

Follow = Annotated[bool, typer.Option("--follow", help="Go on for ever, and copy what is committed meanwhile.")]


class Mirrored(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="mirror"):
    """What `ckpt mirror --json` prints; with --follow, one line each time that something was new."""

    url: str
    target: str
    copied: list[Copy]
    failed: list[Failed]


def mirror(
    context: typer.Context, url: Url, dest: Dest, *, follow: Follow = False, limit: Limit = None, as_json: Json = False
) -> Status:
    """Copy every commit that is not in the copy yet, and new notes; called again, or with --follow, what came since.

    As `ckpt cp --all`. What the run retires stays in the copy: `ckpt gc` collects there, and what it takes does not come back.
    """
    clock = Clock()
    copier = Copier(settings(context).store(url), settings(context).store(dest), clock, rate_of(limit))
    if not follow:
        return _round(copier, as_json=as_json)
    known: tuple[str, ...] | None = None
    while True:
        try:
            known = _follow(copier, known, as_json=as_json)
        except StoreUnavailable as error:
            log.warning("the copy goes on when the store answers: %s", error)
        clock.sleep(PAUSE)


def _round(copier: Copier, *, as_json: bool) -> Status:
    made, shown = _copy(copier)
    emit(made, shown, as_json=as_json)
    return Status.DAMAGED if made.failed else Status.DONE


def _follow(copier: Copier, known: tuple[str, ...] | None, *, as_json: bool) -> tuple[str, ...]:
    """One round, of which is told what is new; what failed before fails again and is told once."""
    made, shown = _copy(copier)
    failed = tuple(each.generation for each in made.failed)
    if made.copied or failed != known:
        emit(made, shown, as_json=as_json)
    return failed


def _copy(copier: Copier) -> tuple[Mirrored, Callable[[], RenderableType]]:
    copier.open()
    copied, failed = copy_all(copier)
    made = Mirrored(url=copier.source.url, target=copier.target.url, copied=rows(copied), failed=failures(failed))
    return made, lambda: render(copier.target.url, copied, failed)
