"""Arguments and options that commands share, and what is made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import ckptcore
from ckptcli.text import first_line
from ckptcore.errors import CallError
from ckptcore.names import GenerationId
from ckptcore.store import Storage, Store, open_store

LONGEST = 86400.0
"""The most seconds that an option may wait."""

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
        _check(url)
        return open_store(url, self.storage)

    def run(self, url: str) -> ckptcore.Run:
        """The run at a URL, for reading."""
        _check(url)
        return ckptcore.open_run(url, storage=self.storage)


def _check(url: str) -> None:
    """Raise `CallError` for what a command cannot use, though a program can."""
    if url.startswith("memory://"):
        raise CallError(f"{url} would be in the memory of this command, which ends: use a path, file://, s3:// or gs://")


def settings(context: typer.Context) -> Settings:
    """The settings of this call."""
    return context.ensure_object(dict)["settings"]


def named(which: str | None) -> dict[str, Any]:
    """`WHICH` as an argument of `Run.checkpoint`: `step=…`, `generation=…`, or nothing."""
    if which is None:
        return {}
    if re.fullmatch(r"[0-9]{1,12}", which):
        return {"step": int(which)}
    try:
        return {"generation": GenerationId.parse(which)}
    except Exception as error:
        raise CallError(
            f"{first_line(which)!r} is neither a step nor a generation ID (IIIIII-SSSSSSSSSSSS-A); `ckpt ls` shows them"
        ) from error
