"""What a store must hold, against what it holds."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_conformance.jobs.stored import check

NODE = {"generations": {"a": {"whole": [0], "half": [2]}}}
SURVEY = {
    "incarnations": {"1": "base", "2": "claim"},
    "generations": {
        "a": {"decision": "commit", "retired": False, "complete": [0, 1], "reason": None},
        "b": {"decision": "abort", "retired": False, "complete": [], "reason": "rank 1 is missing"},
    },
}


def test_what_is_named_must_be_so() -> None:
    facts = {"a": {"decision": "commit", "complete": [0, 1]}, "b": {"reason": "rank 1"}}
    assert check({"incarnations": {"1": "base", "2": "claim"}, "generations": facts}, SURVEY) == []
    assert check({}, SURVEY) == []


@pytest.mark.parametrize(
    ("expected", "problems"),
    [
        ({"incarnations": {"1": "base"}}, ["incarnation 2 is in the store, and none is expected"]),
        ({"incarnations": {"1": "claim", "2": "claim"}}, ["incarnation 1 is 'base', expected 'claim'"]),
        ({"incarnations": {"1": "base", "2": "claim", "3": "base"}}, ["incarnation 3 is not in the store"]),
        ({"generations": {"a": {}}}, ["generation b is in the store, and none is expected"]),
        ({"generations": {"a": {}, "b": {}, "c": {}}}, ["generation c is not in the store"]),
        ({"generations": {"a": {"complete": [0]}, "b": {}}}, ["generation a: complete is [0, 1], expected [0]"]),
        ({"generations": {"a": {"retired": 0}, "b": {}}}, ["generation a: retired is False, expected 0"]),
        ({"generations": {"a": {"reason": "x"}, "b": {}}}, ["generation a: reason is None, expected 'x'"]),
    ],
)
def test_what_is_not_so_is_named(expected: dict[str, Any], problems: list[str]) -> None:
    assert check(expected, SURVEY) == problems


def test_what_a_node_must_have() -> None:
    assert check({"generations": {"a": {"whole": [0], "half": [2], "gone": [1, 3]}}}, NODE) == []
    assert check({"generations": {"a": {"whole": [0, 2], "gone": [0, 1, 2]}}}, NODE) == [
        "generation a: there is something of rank 0, expected nothing",
        "generation a: there is something of rank 2, expected nothing",
        "generation a: whole is [0], expected [0, 2]",
    ]
