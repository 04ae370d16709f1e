"""Arguments and options that commands share, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ckptcore.errors import CallError
from ckptcore.names import GenerationId
from ckptcore.run import Run, open_run
from ckptcore.store import Storage, Store, open_store

Url = Annotated[
    str, typer.Argument(metavar="RUN", help="Where the run lies: a path, file://…, s3://bucket/prefix, gs://bucket/prefix.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; `ckpt schema` has its schema.")]
Which = Annotated[
    str | None,
    typer.Argument(metavar="[WHICH]", help="A generation ID, or a step; the resume point if it is left out."),
]
Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without this, only what would be done is shown.")]


@dataclass(frozen=True)
class Settings:
    """What the options before the command say."""

    storage: Storage

    def store(self, url: str) -> Store:
        """The store at a URL."""
        return open_store(url, self.storage)

    def run(self, url: str) -> Run:
        """The run at a URL, for reading."""
        return open_run(url, storage=self.storage)


def settings(context: typer.Context) -> Settings:
    """The settings of this call."""
    return context.ensure_object(dict)["settings"]


def named(which: str | None) -> dict[str, Any]:
    """`WHICH` as an argument of `Run.checkpoint`: `step=…`, `generation=…`, or nothing."""
    if which is None:
        return {}
    if which.isdecimal() and which.isascii():
        return {"step": int(which)}
    try:
        return {"generation": GenerationId.parse(which)}
    except Exception as error:
        raise CallError(
            f"{which!r} is neither a step nor a generation ID (IIIIII-SSSSSSSSSSSS-A); `ckpt ls` shows them"
        ) from error
