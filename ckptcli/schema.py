"""`ckpt schema`: the JSON Schema of what a command prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckptcli import schemas
from ckptcli.ending import printing
from ckptcore.errors import CallError


def schema(command: Annotated[str, typer.Argument(metavar="COMMAND", help="Such as `ls`.")]) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    if command not in schemas.DOCUMENTS:
        raise CallError(f"{command!r} prints no JSON; these do: {', '.join(schemas.DOCUMENTS)}")
    with printing():
        sys.stdout.write(schemas.text(command))
