"""What the demo of failures claims of a run's records, and that it does not of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import AttemptIncident, Attempts, Supervisor
from ckptcore.store import open_store
from demo.compare import Check
from demo.failures.claims import Claims
from demo.failures.course import Course
from demo.failures.plan import Mark, Plan

KILLED = {"kind": "signal", "rank": 1, "slot": 1, "node": "a", "status": -9, "message": "SIGKILL"}
HANGS = {"kind": "hang", "rank": 2, "slot": 2, "node": "a", "status": None, "message": "no sign of life for 5 s"}
STACK = "Thread 1\n    work (demo/failures/rank.py:90)\n"
SLOW = {"event": "slow", "slot": 2, "message": "rank 2 takes 2.25 times as long as the others for a step (0.45 s, 0.2 s)"}

Make = Callable[..., Course]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A course of two attempts: what ended the first, and from where the second went on."""

    def made(*, told: dict[str, Any] | None = None, restored: int = 65, **end: Any) -> Course:
        attempts, url = Attempts(open_store(str(tmp_path))), str(tmp_path)
        for number in (1, 2):
            own = Supervisor(nonce="00" * 8, host="a", pid=1)
            attempts.plan(number, supervisor=own, slots=[0, 1, 2, 3], nodes=["a"] * 4, cause="start")
        incident = AttemptIncident(**told) if told else None
        common = {"stopped": at(30), "last_step": 65}
        attempts.end(1, **{"outcome": "failed", "incident": incident, "detected": at(21), **common, **end})
        attempts.end(2, outcome="finished", detected=at(60), restored_step=restored, **common)
        plan = Plan(framework="jax", url=url, folder=url, cache=url, faults=True)
        return Course(
            plan=plan,
            reference=plan,
            events=[SLOW],
            statuses=[143, 0],
            reference_statuses=[0],
            marks={name: Mark(attempt=1, step=66, at=at(20).timestamp()) for name in ("straggler", "kill", "hang", "preemption")},
            logs={},
            reference_logs={},
            left=[],
        )

    return made


def at(second: int) -> datetime:
    return datetime(2030, 1, 1, 12, 0, second % 60, tzinfo=UTC)


def about(course: Course, name: str) -> list[bool]:
    found: dict[str, Callable[[Mark], list[Check]]] = {
        "straggler": Claims(course)._straggler,
        "kill": Claims(course)._killed,
        "hang": Claims(course)._hung,
        "preemption": Claims(course)._preempted,
    }
    return [check.held for check in found[name](course.marks[name])]


@pytest.mark.parametrize(
    ("told", "end", "held"),
    [
        (KILLED, {}, [True, True]),
        (KILLED | {"slot": 2}, {}, [False, True]),
        (KILLED | {"status": -6}, {}, [False, True]),
        (HANGS, {}, [False, True]),
        (None, {"outcome": "lost"}, [False, True]),
        (KILLED, {"detected": at(23)}, [True, False]),
    ],
)
def test_of_a_kill(make: Make, told: dict[str, Any] | None, end: dict[str, Any], held: list[bool]) -> None:
    assert about(make(told=told, **end), "kill") == held


@pytest.mark.parametrize(
    ("end", "held"),
    [
        ({"stack": STACK, "detected": at(26)}, [True, True, True]),
        ({"stack": STACK, "detected": at(33)}, [True, False, True]),
        ({"stack": "Thread 1\n    wait (threading.py:90)", "detected": at(26)}, [True, True, False]),
        ({"detected": at(26)}, [True, True, False]),
    ],
)
def test_of_a_hang(make: Make, end: dict[str, Any], held: list[bool]) -> None:
    assert about(make(told=HANGS, **end), "hang") == held


def test_of_a_straggler(make: Make) -> None:
    course = make(told=KILLED)
    assert about(course, "straggler") == [True]
    assert about(replace(course, events=[]), "straggler") == [False]
    assert about(replace(course, events=[SLOW, SLOW | {"slot": 0}]), "straggler") == [False]
    assert about(replace(course, events=[SLOW | {"slot": 0}]), "straggler") == [False]


@pytest.mark.parametrize(
    ("end", "statuses", "held"),
    [
        ({"outcome": "preempted"}, [143, 0], [True, True]),
        ({"outcome": "preempted", "restored": 60}, [143, 0], [True, False]),
        ({"outcome": "preempted"}, [143, 1], [False, True]),
        ({"outcome": "resized"}, [143, 0], [False, True]),
        ({"outcome": "preempted", "told": KILLED}, [143, 0], [False, True]),
    ],
)
def test_of_a_preemption(make: Make, end: dict[str, Any], statuses: list[int], held: list[bool]) -> None:
    assert about(replace(make(**end), statuses=statuses), "preemption") == held


def test_what_never_came_is_no_success(make: Make) -> None:
    course = replace(make(told=KILLED), marks={})
    assert [check.detail for check in Claims(course)._about("kill", None)] == ["it never came"]
    assert [check.held for check in Claims(course)._about("kill", None)] == [False]
