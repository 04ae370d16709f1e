"""`ckpt cp`: a checkpoint, or all of a run's, in another store."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from ckptcli.copies import Copy, Dest, Failed, Limit, copy_all, copy_one, failures, rate_of, render, rows
from ckptcli.ending import Status
from ckptcli.options import Json, Url, Which, named, settings
from ckptcli.output import emit
from ckptcore.errors import CallError
from ckptcore.operate.copying import Copier

All = Annotated[bool, typer.Option("--all", help="Copy every checkpoint that is not there yet.")]


class Copies(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="cp"):
    """What `ckpt cp --json` prints."""

    url: str
    target: str
    copied: list[Copy]
    failed: list[Failed]


def cp(
    context: typer.Context,
    url: Url,
    dest: Dest,
    which: Which = None,
    *,
    every: All = False,
    limit: Limit = None,
    as_json: Json = False,
) -> Status:
    """Copy a checkpoint (the resume point by default), with what it refers to, to another store; or every one.

    The copy is read from end to end before it counts as a checkpoint. It keeps the run's ID, for reading: to train on from it,
    fork it. What is there is not sent again, so a copy that was broken off goes on.
    """
    if every and which is not None:
        raise CallError("--all copies every checkpoint: leave WHICH out, or --all")
    copier = Copier(settings(context).store(url), settings(context).store(dest), rate=rate_of(limit))
    chosen = None if every else settings(context).run(url).checkpoint(**named(which)).generation
    copier.open()
    if chosen is None:
        copied, failed = copy_all(copier)
    else:
        copied, failed = [copy_one(copier, generation) for generation in copier.pending(chosen)], {}
    target = copier.target.url
    made = Copies(url=copier.source.url, target=target, copied=rows(copied), failed=failures(failed))
    emit(made, lambda: render(target, copied, failed), as_json=as_json)
    return Status.DAMAGED if failed else Status.DONE
