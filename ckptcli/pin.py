"""`ckpt pin`: keep a checkpoint, whatever the policy of retention says."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from ckptcli import text
from ckptcli.marked import Chosen, opened, reason_of
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcore import notes

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="What it is kept for.")]


class Pinned(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="pin"):
    """What `ckpt pin --json` prints. `reason`: as it is stored, where a very long one is cut."""

    url: str
    generation: str
    reason: str


def pin(context: typer.Context, url: Url, which: Chosen, *, reason: Reason, as_json: Json = False) -> None:
    """Pin a checkpoint. Retention never takes a pinned one, and a pin cannot be taken back."""
    run, generation = opened(settings(context), url, which)
    run.annotate(generation, pin=reason_of(reason))
    told = notes.read(settings(context).store(url), run.identity.run_id, generation)
    # Others may pin it too: the longest one that ours begins with is ours.
    stored = max((note.text for note in told if note.kind == "pin" and reason.startswith(note.text)), key=len, default="")
    made = Pinned(url=run.url, generation=str(generation), reason=stored)
    emit(made, lambda: Text(text.plain(f"{made.generation} is pinned: {made.reason}")), as_json=as_json)
