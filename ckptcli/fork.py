"""`ckpt fork`: a new run that begins from a checkpoint of this one."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from ckptcli import text
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import emit
from ckptcore.history import read_run

NewUrl = Annotated[str, typer.Argument(metavar="NEW_URL", help="Where the new run lies; there must be none yet.")]
Components = Annotated[
    list[str] | None, typer.Option("--component", metavar="NAME", help="Take only this component; may be given several times.")
]


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="fork"):
    """What `ckpt fork --json` prints: the new run, and where it begins."""

    url: str
    run_id: str
    parent_url: str
    parent_run_id: str
    generation: str
    components: list[str]


def fork(
    context: typer.Context, url: Url, new_url: NewUrl, which: Which = None, *, component: Components = None, as_json: Json = False
) -> None:
    """Begin a new run from a checkpoint, which is pinned in its own run. No data is copied: the first start reads it there."""
    run = settings(context).run(url)
    target = settings(context).store(new_url)
    run.fork(new_url, components=component or None, **named(which))
    made = read_run(target)
    if made.parent is not None:
        told = Forked(
            url=target.url,
            run_id=made.run_id,
            parent_url=made.parent.url,
            parent_run_id=made.parent.run_id,
            generation=made.parent.generation,
            components=list(made.parent.components),
        )
        emit(told, lambda: _render(told), as_json=as_json)


def _render(told: Forked) -> Group:
    return Group(
        Text(text.plain(f"{told.url} is a new run, {told.run_id}")),
        Text(text.plain(f"it begins from {told.generation} of {told.parent_url}: {', '.join(told.components)}")),
        Text("that one is pinned; keep it until the new run has a checkpoint of its own"),
    )
