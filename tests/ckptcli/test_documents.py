"""docs/command.md tells of every command, of every state and of every exit status, and of none that there is not."""

from __future__ import annotations

import re
from typing import get_args

from ckptcli.ending import Status
from ckptcli.lazily import COMMANDS
from ckptcore.inspect.inventory import State
from tests.processes import ROOT

TEXT = (ROOT / "docs" / "command.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_command() -> None:
    told = set(re.findall(r"`ckpt ([a-z]+)", TEXT))
    assert told == COMMANDS.keys()


def test_every_state() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \|", section("States"), re.MULTILINE)
    assert {state for row in rows for state in row.split(", ")} - {"state"} == set(get_args(State))


def test_every_status() -> None:
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", section("For programs"), re.MULTILINE)}
    assert told == {int(status) for status in Status}
