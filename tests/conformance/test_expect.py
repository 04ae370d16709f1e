"""How processes end and what they answer, against what is expected of them."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_conformance.cases.steps import EXITS, Expect
from ckpt_conformance.jobs.expect import Ended, cannot, judge, match, same


def ended(status: int = 0, answer: Any = None, **rest: Any) -> Ended:
    return Ended(pid=7, status=status, answer={} if answer is None else answer, **rest)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}),
        ({"a": "*"}, {"a": 0}),
        ({"a": None}, {"a": None}),
        ({"a": {"one_of": [1, {"b": "*"}]}}, {"a": {"b": 2, "c": 3}}),
        ([], []),
    ],
)
def test_matches(expected: Any, found: Any) -> None:
    assert match(expected, found) == []


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ({"a": 1}, {}, "answer.a is missing"),
        ({"a": 1}, {"a": True}, "answer.a is True"),
        ({"a": 0}, {"a": None}, "answer.a is None"),
        ({"a": "*"}, {"a": None}, "anything but null"),
        ({"a": None}, {"a": 0}, "answer.a is 0"),
        ({"a": [1]}, {"a": [1, 2]}, "answer.a is [1, 2]"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "answer.a[0].b is 2"),
        ({"a": {}}, {"a": []}, "answer.a is []"),
        ({"a": 5}, {"a": 5.0}, "answer.a is 5.0"),
        ({"a": 5.0}, {"a": 5}, "answer.a is 5"),
        ({"a": 0}, {"a": False}, "answer.a is False"),
        ({"a": {"one_of": [1, [2]]}}, {"a": 2}, "answer.a is 2, expected one of [1, [2]]"),
    ],
)
def test_does_not_match(expected: Any, found: Any, where: str) -> None:
    (problem,) = match(expected, found)
    assert where in problem


@pytest.mark.parametrize(
    ("wanted", "fits", "does_not"),
    [
        ("done", [0], [10, 11, 1, -9, -6, 134]),
        ("refused", [10], [0, 11, 1, -9]),
        ("killed", [-9], [0, 10, 1, -6, 137]),
        ("gone", [0, 10, -6, -9, -15, 134, 137, 143], [1, 11, 2, 128, 255, -11, 139]),
        ("done-or-refused", [0, 10], [1, 11, -9, -6, 134]),
    ],
)
def test_exits(wanted: str, fits: list[int], does_not: list[int]) -> None:
    answer = {"error": "deadline", "message": ""}
    assert [status for status in [*fits, *does_not] if not judge(Expect(exit=wanted), [ended(status, answer)])] == fits


def test_nothing_accepts_a_crash() -> None:
    """A traceback, a segmentation fault, and that it cannot, which is no answer to half of a job."""
    expects = [Expect(exit=wanted) for wanted in EXITS]
    assert all(judge(expect, [ended(status, {"error": "deadline"})]) for expect in expects for status in (1, 11, -11, 139, -8))


def test_who_is_left_alone_says_so() -> None:
    """Another error than one that follows from the death of a peer is no excuse, unless the case names it."""
    found = [ended(10, {"error": "damaged", "message": "?"})]
    assert "expected the error deadline or superseded" in judge(Expect(exit="gone"), found)[0]
    assert judge(Expect(exit="gone", error=("damaged",)), found) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [(5, 5.0), (True, 1), ({"a": [1]}, {"a": [True]}), ([{"a": 0}], [{"a": False}]), ({"a": 1}, {"a": 1, "b": 2}), ([1], [1, 2])],
)
def test_equal_is_equal_in_type_at_every_depth(one: Any, other: Any) -> None:
    assert same(one, one)
    assert not same(one, other)
    assert not same(other, one)


def test_each_rank_has_its_exit_and_its_answer() -> None:
    expect = Expect(exit=("done", "killed"), answer={"base": 1, "ranks": [{"own": 0}, {"own": 1}]})
    assert judge(expect, [ended(0, {"base": 1, "own": 0}), ended(-9)]) == []
    assert judge(expect, [ended(0, {"base": 2, "own": 1}), ended(0)]) == [
        "rank 0: answer.base is 2, expected 1",
        "rank 0: answer.own is 1, expected 0",
        "rank 1: expected killed, found done",
    ]


def test_survivors_that_are_done_answer_too() -> None:
    assert judge(Expect(exit="gone", answer={"a": 1}), [ended(0, {"a": 2}), ended(-6)]) == ["rank 0: answer.a is 2, expected 1"]


def test_an_answer_is_an_object() -> None:
    process = Ended(pid=7, status=0)
    assert judge(Expect(exit="done"), [process]) == ["rank 0: the last line of its output is no JSON object"]


@pytest.mark.parametrize(
    ("accepted", "kind", "problem"),
    [
        (("damaged",), "damaged", None),
        ((), "damaged", None),
        (("damaged", "retired"), "not-found", "expected the error damaged or retired, found not-found: why"),
        ((), "oops", "refused with the error 'oops', which is no kind"),
        (("damaged",), None, "refused with the error None"),
    ],
)
def test_kinds_of_refusals(accepted: tuple[str, ...], kind: str | None, problem: str | None) -> None:
    found = judge(Expect(exit="refused", error=accepted), [ended(10, {"error": kind, "message": "why"})])
    assert (problem is None and not found) or (problem is not None and problem in found[0])


def test_a_process_that_was_late_is_one_whatever_its_status() -> None:
    assert judge(Expect(exit="killed"), [ended(-9, late="did not end")]) == ["rank 0: did not end"]


def test_wrong_ends_say_what_was_said() -> None:
    (problem,) = judge(Expect(exit="done"), [ended(10, {"error": "call", "message": "no such thing"})])
    assert problem == "rank 0: expected done, found refused (call): no such thing"
    assert judge(Expect(exit="done"), [ended(1)]) == ["rank 0: expected done, found exit status 1"]
    assert judge(Expect(exit="done"), [ended(-11)]) == ["rank 0: expected done, found killed by signal 11"]


def test_a_job_of_another_size_is_a_problem() -> None:
    assert judge(Expect(exit=("done",)), [ended(), ended()]) == ["1 exits are expected, and the job has 2 processes"]


def test_who_cannot_says_why() -> None:
    assert cannot([ended(11), ended(11, {"message": "no int4"})]) == "no reason is given"
    assert cannot([ended(0), ended(11, {"message": "no int4"})]) is None, "one of several hides nothing"
    assert cannot([ended(11)]) == "no reason is given"
    assert cannot([ended(0), ended(10)]) is None
