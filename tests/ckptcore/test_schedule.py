from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptcore.schedule import Every

STEPS = st.integers(0, 10**12)


def test_a_rule_by_steps_is_due_at_its_multiples() -> None:
    assert [step for step in range(22) if Every(steps=5).due(step)] == [5, 10, 15, 20]
    assert not Every(steps=5).is_measured


@given(st.integers(1, 1000), STEPS)
def test_the_next_step_of_a_rule_by_steps_is_the_next_one_due(steps: int, step: int) -> None:
    rule = Every(steps=steps)
    found = rule.next_step(step, 1e9, 0.5)
    assert step < found <= step + steps
    assert rule.due(found)
    assert found == step + steps or not rule.due(step)


def test_a_rule_by_seconds_is_never_due_by_itself() -> None:
    rule = Every(seconds=60)
    assert rule.is_measured
    assert not any(rule.due(step) for step in range(100))


@pytest.mark.parametrize(
    ("elapsed", "step_seconds", "expected"),
    [(0, 1.0, 160), (0, 7.0, 109), (45, 5.0, 103), (60, 1.0, 101), (1e6, 1.0, 101), (0, 1000.0, 101), (0, 0.0, 101)],
)
def test_a_rule_by_seconds_names_the_first_step_at_which_the_time_is_up(
    elapsed: float, step_seconds: float, expected: int
) -> None:
    assert Every(seconds=60).next_step(100, elapsed, step_seconds) == expected


@given(STEPS, st.floats(0, 1e6), st.floats(1e-3, 1e4), st.floats(0.1, 1e5))
def test_the_announced_step_is_in_the_future_and_no_step_too_late(
    step: int, elapsed: float, step_seconds: float, seconds: float
) -> None:
    found = Every(seconds=seconds).next_step(step, elapsed, step_seconds)
    assert found > step
    assert found == step + 1 or (found - step - 1) * step_seconds < seconds - elapsed


def test_the_earlier_of_two_rules_wins() -> None:
    rule = Every(steps=50, seconds=60)
    assert rule.due(50)
    assert rule.next_step(100, 0, 10.0) == 106
    assert rule.next_step(100, 0, 0.1) == 150


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"steps": 0},
        {"steps": -1},
        {"steps": 1.5},
        {"steps": True},
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": math.inf},
        {"seconds": math.nan},
    ],
    ids=repr,
)
def test_rules_that_never_come_or_always_do_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="Every"):
        Every(**arguments)
