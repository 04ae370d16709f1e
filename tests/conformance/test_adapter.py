"""Commands of adapters, and what they say of themselves."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.jobs.adapter import AdapterError, command_of, described, problems_of
from tests.conformance.toy_adapter import DESCRIBE

TOY = shlex.join([sys.executable, str(Path(__file__).parent / "toy_adapter.py")])


def test_a_command_is_words_and_a_short_name_a_module() -> None:
    assert command_of("run 'my adapter' -x") == ["run", "my adapter", "-x"]
    assert command_of("torch") == [sys.executable, "-m", "ckpt_conformance.adapters.torch"]


@pytest.mark.parametrize(("command", "message"), [("'x", "no command"), ("", "is empty")])
def test_what_is_no_command(command: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        command_of(command)


def test_an_adapter_has_the_name_that_it_gives() -> None:
    adapter = described(TOY)
    assert (adapter.name, adapter.given, adapter.describe) == ("toy", TOY, DESCRIBE)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no such thing')", "describe: exit status 1: no such thing"),
        ("print('hello')", "describe: the last line of its output is no JSON object"),
        ("print('{}')", "describe: contract is None"),
    ],
)
def test_an_adapter_that_cannot_describe_itself(code: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        described(shlex.join([sys.executable, "-c", code]))


def test_an_adapter_that_is_not_there() -> None:
    with pytest.raises(AdapterError, match="cannot be started"):
        described("/nobody/here")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"contract": 2}, "contract is 2, this suite speaks 1"),
        ({"name": None}, "name is not text"),
        ({"verbs": "save"}, "verbs is no array of texts"),
        ({"dtypes": [1]}, "dtypes is no array of texts"),
        ({"devices_per_process": 2}, "devices_per_process is neither"),
        ({"serve": "yes"}, "serve is no boolean"),
        ({"max_processes": 0}, "max_processes is neither"),
    ],
)
def test_what_is_wrong_with_a_description(change: dict[str, Any], problem: str) -> None:
    (found,) = problems_of({**DESCRIBE, **change})
    assert problem in found


def test_a_right_description_has_no_problems() -> None:
    assert problems_of(DESCRIBE) == []
    assert problems_of({**DESCRIBE, "max_processes": 1}) == []
