"""The commands, put together."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from ckptcli.ending import Status, ended, guarded
from ckptcli.lazily import COMMANDS, Commands
from ckptcli.options import LONGEST, Settings
from ckptcore.errors import CallError, StoreError
from ckptcore.store import Storage

app = typer.Typer(
    name="ckpt",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - what typer calls it with
    if wanted:
        from importlib.metadata import version as version_of  # noqa: PLC0415 - 30 ms that no other command needs

        sys.stdout.write(f"ckpt {version_of('jaxckpt')}\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    endpoint: Annotated[str | None, typer.Option(envvar="CKPT_ENDPOINT", help="URL of an S3-compatible service.")] = None,
    region: Annotated[str | None, typer.Option(envvar="CKPT_REGION", help="AWS region.")] = None,
    profile: Annotated[str | None, typer.Option(envvar="CKPT_PROFILE", help="Profile of the AWS credentials.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until one request to the store is given up.")] = 60.0,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,  # noqa: ARG001 - `main` takes it
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")] = False,  # noqa: ARG001 - its callback does it
) -> None:
    """See what is in a training run's checkpoints, and what can be resumed from."""
    if not 0 < timeout <= LONGEST:
        raise CallError(f"--timeout {timeout:g}: expected seconds, more than 0 and at most {LONGEST:,.0f}")
    credentials = None if profile is None else {"type": "profile", "profile": profile}
    storage = Storage(endpoint=endpoint, region=region, credentials=credentials, timeout=timeout)
    context.obj = {"settings": Settings(storage)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `--debug`, anywhere, shows tracebacks."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed by whoever started us: no file of a store may take its place
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        return ended(StoreError("standard output is closed: nothing was done"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of a terminal that has fewer characters than what is shown
    end = given.index("--") if "--" in given else len(given)  # what follows belongs to another program
    own = [argument for argument in given[:end] if argument != "--debug"]
    return guarded(lambda: _run([*own, *given[end:]]), debug="--debug" in given[:end])


def _run(arguments: list[str]) -> int:
    foreign = next((argument for argument in arguments if not _is_text(argument)), None)
    if foreign is not None:
        raise CallError(f"the argument {foreign!r} is not UTF-8 text: nothing was done")
    try:
        return app(arguments, prog_name="ckpt", standalone_mode=False) or Status.DONE
    except typer.Exit as error:
        return error.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except typer.TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # a group without a command
            sys.stderr.write(f"{message}\n")
            return Status.CALL
        sys.stderr.write(f"ckpt: {message} (see `{' '.join(['ckpt', *_command(arguments)])} -h`)\n")
        return Status.CALL


def _command(arguments: list[str]) -> list[str]:
    """The words of the command, of a group with the one after it."""
    at = next((place for place, argument in enumerate(arguments) if argument in COMMANDS), len(arguments))
    return [
        word for word in arguments[at : at + (2 if arguments[at : at + 1] in (["export"], ["import"]) else 1)] if word[0] != "-"
    ]


def _is_text(argument: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in argument)
