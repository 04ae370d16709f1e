"""`ckpt report`: the command."""

from __future__ import annotations

import errno
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from ckptcli import durations, text
from ckptcli.options import Json, Url, settings
from ckptcli.output import emit
from ckptcli.report.page import page
from ckptcore import interval
from ckptcore.errors import CallError, StoreFull
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
    path = _checked(out)
    failures = None if mtbf is None else _mtbf(mtbf)
    told = chronicle(settings(context).store(url), newest=newest)
    try:
        _write(path, page(told, datetime.now(UTC), mtbf=failures).encode())
    except OSError as error:
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else CallError
        raise kind(f"{out} cannot be written: {error.strerror}") from error
    emit(Written(path=str(path)), lambda: Text(text.plain(str(path))), as_json=as_json)


def _checked(out: Path) -> Path:
    """The absolute path. Raises `CallError` for one where no file can be."""
    try:
        path = out.absolute()
        wrong = "it is a folder" if path.is_dir() else "" if path.parent.is_dir() else f"there is no folder {out.parent}"
    except OSError as error:
        wrong = str(error.strerror)
        raise CallError(f"{out} cannot be written: {wrong}") from error
    if wrong:
        raise CallError(f"{out} cannot be written: {wrong}")
    return path


def _mtbf(given: str) -> float:
    """Seconds. Raises `CallError` also where the curve cannot be computed."""
    try:
        interval.lambert()
    except ImportError as error:
        raise CallError(str(error)) from error
    found = durations.seconds(given, what="--mtbf")
    interval.young(0, found)  # refuses what is no MTBF
    return found


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: whoever looks at the page meanwhile sees the old one."""
    if path.exists() and not path.is_file():  # a pipe, /dev/stdout
        path.write_bytes(content)
        return
    target = path.resolve()  # through a link, as it would be written
    temporary = target.with_name(f".tmp-{secrets.token_hex(16)}")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
