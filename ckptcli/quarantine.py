"""`ckpt quarantine`: nobody resumes from this checkpoint any more."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from ckptcli import text
from ckptcli.marked import Chosen, head, opened, reason_of
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcore import notes

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="What is wrong with it.")]


class Quarantined(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="quarantine"):
    """What `ckpt quarantine --json` prints. `reason`: of the first note, which stays. `head`: the resume point now."""

    url: str
    generation: str
    reason: str
    head: str | None


def quarantine(context: typer.Context, url: Url, which: Chosen, *, reason: Reason, as_json: Json = False) -> None:
    """Mark a checkpoint as one that nobody may resume from. It stays readable by its name, and the mark stays."""
    run, generation = opened(settings(context), url, which)
    run.quarantine(generation, reason_of(reason))
    told = notes.read(settings(context).store(url), run.identity.run_id, generation)
    stored = next((note.text for note in told if note.kind == "quarantine"), reason)
    made = Quarantined(url=run.url, generation=str(generation), reason=stored, head=head(run))
    emit(made, lambda: _render(made), as_json=as_json)


def _render(made: Quarantined) -> Group:
    following = f"the next start resumes from {made.head}" if made.head else "nothing is left that a start could resume from"
    return Group(Text(text.plain(f"{made.generation} is quarantined: {made.reason}")), Text(following))
