"""What the commands that note something on a checkpoint have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptcli.options import Settings, named
from ckptcore.errors import CallError, DamageError
from ckptcore.names import GenerationId
from ckptcore.run import Run

Chosen = Annotated[str, typer.Argument(metavar="WHICH", help="A generation ID, or a step.")]


def reason_of(given: str) -> str:
    """A reason that says something. Raises `CallError` for an empty one."""
    if not given.strip():
        raise CallError("--reason is empty: whoever finds the note wants to know why")
    return given


def opened(settings: Settings, url: str, which: str) -> tuple[Run, GenerationId]:
    """The run, and the commit that is meant. Raises `NotFound` when there is none."""
    run = settings.run(url)
    return run, run.checkpoint(**named(which)).generation


def head(run: Run) -> str | None:
    """The resume point, None if there is none, or if a lost record leaves it unknown."""
    try:
        found = run.head()
    except DamageError:
        return None
    return found.generation if found else None
