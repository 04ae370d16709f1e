"""`ckpt report`: the command."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from ckptcli import durations
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcli.report.page import page
from ckptcore.errors import CallError
from ckptcore.inspect.chronicle import NEWEST, chronicle


class Written(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="report"):
    """What `ckpt report --json` prints: where the page is."""

    path: str


def report(
    context: typer.Context,
    url: Url,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    newest: Annotated[int, typer.Option(min=1, help="Of how many checkpoints the receipts are read.")] = NEWEST,
    mtbf: Annotated[
        str | None, typer.Option(help="Mean time between failures of the job, such as 8h: adds the goodput curve.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page: timeline, durations, sizes, mesh, and every generation."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise CallError(f"{out} cannot be written: {'it is a folder' if out.is_dir() else f'there is no folder {out.parent}'}")
    failures = None if mtbf is None else durations.seconds(mtbf, what="--mtbf")
    told = chronicle(settings(context).store(url), newest=newest)
    try:
        out.write_text(page(told, datetime.now(UTC), mtbf=failures), encoding="utf-8")
    except OSError as error:
        raise CallError(f"{out} cannot be written: {error.strerror}") from error
    emit(Written(path=str(out.absolute())), lambda: Text(str(out.absolute())), as_json=as_json)
