"""Commands of adapters, and what they say of themselves."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import data
from ckpt_conformance.cases.corpus import load_corpus
from ckpt_conformance.jobs.adapter import MINOR, WORDS, AdapterError, command_of, described, problems_of
from ckpt_conformance.jobs.execute import PAIR
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
        ({"format": "1.O"}, "format: '1.O' is not known; known: 1.0"),
        ({"verbs": ["save", "lastest"]}, "verbs: 'lastest' is not known; known: collect, describe, fork, latest"),
        ({"features": ["unevn"]}, "features: 'unevn' is not known; known: aliases, cast"),
        ({"dtypes": ["f32"]}, "dtypes: 'f32' is not known"),
        ({"failpoints": ["before-lunch"]}, "failpoints: 'before-lunch' is not known"),
        ({"stores": ["tape"]}, "stores: 'tape' is not known; known: file, s3"),
        ({"name": "a/b"}, "name has other characters"),
        ({"minor": "1"}, "minor is no whole number"),
    ],
)
def test_what_is_wrong_with_a_description(change: dict[str, Any], problem: str) -> None:
    (found,) = problems_of({**DESCRIBE, **change})
    assert problem in found


def test_a_newer_minor_version_may_have_other_words() -> None:
    assert problems_of({**DESCRIBE, "minor": MINOR + 1, "features": ["of-tomorrow"]}) == []
    (found,) = problems_of({**DESCRIBE, "minor": MINOR, "features": ["of-tomorrow"]})
    assert "not known" in found


def test_the_words_are_those_of_the_contract_and_of_the_cases() -> None:
    contract = (data.folder("scenarios").parent / "ADAPTER.md").read_text()
    words = {word for name, known in WORDS.items() if name != "dtypes" for word in known}
    assert [word for word in sorted(words) if f"`{word}`" not in contract and f'"{word}"' not in contract] == []
    needs = {need for case in load_corpus(data.folder("scenarios")).cases.values() for need in case.needs}
    assert needs - {PAIR} <= {word for known in WORDS.values() for word in known}


def test_a_right_description_has_no_problems() -> None:
    assert problems_of(DESCRIBE) == []
    assert problems_of({**DESCRIBE, "max_processes": 1}) == []
