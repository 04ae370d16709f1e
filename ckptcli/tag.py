"""`ckpt tag`: give a checkpoint names, so that retention keeps it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from ckptcli.marked import Chosen, opened
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcore import notes

Tags = Annotated[list[str], typer.Argument(metavar="TAG…", help="Letters, digits, '.', '_' or '-'.")]


class Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="tag"):
    """What `ckpt tag --json` prints. `tags`: all that the checkpoint has now."""

    url: str
    generation: str
    tags: list[str]


def tag(context: typer.Context, url: Url, which: Chosen, tags: Tags, *, as_json: Json = False) -> None:
    """Tag a checkpoint. Retention never takes a tagged one, and tags cannot be taken back."""
    run, generation = opened(settings(context), url, which)
    run.annotate(generation, tags=tags)
    told = notes.read(settings(context).store(url), run.identity.run_id, generation)
    stored = sorted({note.tag for note in told if note.tag is not None})
    made = Tagged(url=run.url, generation=str(generation), tags=stored)
    emit(made, lambda: Text(f"{made.generation} is tagged {', '.join(made.tags)}"), as_json=as_json)
