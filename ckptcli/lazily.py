"""A group of commands whose modules are imported when somebody calls them: a command begins without what it does not use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = {
    "ls": "ls",
    "show": "show",
    "tree": "tree",
    "cat": "cat",
    "diff": "diff",
    "verify": "verify",
    "explain": "explain",
    "status": "status",
    "interval": "interval",
    "report": "report.command",
    "supervise": "supervise",
    "recover": "recover",
    "rollback": "rollback",
    "quarantine": "quarantine",
    "tag": "tag",
    "pin": "pin",
    "gc": "gc",
    "fork": "fork",
    "cp": "cp",
    "mirror": "mirror",
    "export": "formats.groups",
    "import": "formats.groups",
    "schema": "schema",
}
"""Command → the module of `ckptcli` that has a function of that name, or a group in `GROUPS`."""


class Commands(TyperGroup):
    """The commands, in the order in which help lists them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - what typer calls it with
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of a name, from its module; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"ckptcli.{COMMANDS[cmd_name]}")
        groups = getattr(module, "GROUPS", {})
        if cmd_name in groups:
            made = get_command(groups[cmd_name])
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            single.command(cmd_name, context_settings={"help_option_names": ["-h", "--help"]})(getattr(module, cmd_name))
            made = get_command(single)
        made.name = cmd_name
        return made
