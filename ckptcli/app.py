"""The commands, put together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from ckptcli.ending import Status, guarded
from ckptcli.lazily import COMMANDS, Commands
from ckptcli.options import Settings
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


@app.callback()
def options(
    context: typer.Context,
    *,
    endpoint: Annotated[str | None, typer.Option(envvar="CKPT_ENDPOINT", help="URL of an S3-compatible service.")] = None,
    region: Annotated[str | None, typer.Option(envvar="CKPT_REGION", help="AWS region.")] = None,
    profile: Annotated[str | None, typer.Option(envvar="CKPT_PROFILE", help="Profile of the AWS credentials.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until one request to the store is given up.")] = 60.0,
) -> None:
    """See what is in a training run's checkpoints, and what can be resumed from."""
    credentials = None if profile is None else {"type": "profile", "profile": profile}
    storage = Storage(endpoint=endpoint, region=region, credentials=credentials, timeout=timeout)
    context.obj = {"settings": Settings(storage)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `--debug`, anywhere, shows tracebacks."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if given == ["--version"]:
        sys.stdout.write(f"ckpt {version('jaxckpt')}\n")
        return Status.DONE
    return guarded(lambda: _run([argument for argument in given if argument != "--debug"]), debug=debug)


def _run(arguments: list[str]) -> int:
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
        known = next((name for name in arguments if name in COMMANDS), None)
        sys.stderr.write(f"ckpt: {message} (see `ckpt {known + ' ' if known else ''}-h`)\n")
        return Status.CALL
