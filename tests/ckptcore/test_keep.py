from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptcore.keep import Best, Candidate, Keep, expendable
from ckptcore.names import GenerationId


def commit(step: int, level: Any = "exact", incarnation: int = 1, **facts: Any) -> Candidate:
    return Candidate(generation=GenerationId(incarnation, step, 1), level=level, **facts)


def steps_left(commits: list[Candidate], keep: Keep, protected: set[GenerationId] | None = None) -> list[int]:
    gone = {generation for generation, _ in expendable(commits, keep, protected or set())}
    return [item.generation.step for item in commits if item.generation not in gone]


def test_the_newest_are_kept() -> None:
    assert steps_left([commit(step) for step in range(10, 60, 10)], Keep(last=2)) == [40, 50]


def test_the_newest_are_those_of_the_newest_incarnation_not_of_the_largest_step() -> None:
    history = [commit(70), commit(80), commit(71, incarnation=2), commit(72, incarnation=2)]
    assert steps_left(history, Keep(last=2)) == [71, 72]


def test_multiples_of_a_number_of_steps_are_kept() -> None:
    assert steps_left([commit(step) for step in range(25, 301, 25)], Keep(last=2, every=100)) == [100, 200, 275, 300]


def test_the_best_are_kept_and_never_at_the_cost_of_the_newest() -> None:
    losses = [0.5, 0.1, 0.4, 0.2, 0.9, 0.9]
    history = [commit(step, metrics={"loss": loss}) for step, loss in enumerate(losses)]
    assert steps_left(history, Keep(last=2, best=Best("loss", 2))) == [1, 3, 4, 5]
    assert steps_left(history, Keep(last=2, best=Best("loss", 1, "max"))) == [4, 5]
    assert steps_left(history, Keep(last=2, best=Best("accuracy", 2))) == [4, 5]


def test_of_equally_good_ones_the_newer_is_kept_and_nan_does_not_compete() -> None:
    history = [commit(step, metrics={"loss": loss}) for step, loss in enumerate([1.0, 1.0, math.nan, math.inf, 2.0, 2.0])]
    assert steps_left(history, Keep(last=2, best=Best("loss", 1))) == [1, 4, 5]
    assert steps_left(history, Keep(last=2, best=Best("loss", 1, "max"))) == [3, 4, 5]
    assert steps_left(history, Keep(last=2, best=Best("loss", 9))) == [0, 1, 3, 4, 5]


def test_saves_of_weights_have_a_budget_of_their_own() -> None:
    history = [commit(step, "weights" if step % 2 else "exact") for step in range(12)]
    assert steps_left(history, Keep(last=2, weights=1)) == [8, 10, 11]
    assert steps_left(history, Keep(last=3)) == [6, 7, 8, 9, 10, 11]
    many = [commit(0), commit(1), *(commit(step, "weights") for step in range(2, 20))]
    assert steps_left(many, Keep(last=2, weights=2)) == [0, 1, 18, 19]


def test_what_something_else_needs_is_kept() -> None:
    history = [commit(0, pinned=True), commit(1, needed_by_reference=True), commit(2), commit(3), commit(4), commit(5)]
    assert steps_left(history, Keep(last=2), {GenerationId(1, 2, 1)}) == [0, 1, 2, 4, 5]


def test_the_newest_verified_one_is_kept_until_a_newer_one_is_verified() -> None:
    history = [commit(0, verified=True), commit(1, verified=True), commit(2), commit(3), commit(4)]
    assert steps_left(history, Keep(last=2)) == [1, 3, 4]


def test_verified_weights_do_not_stand_in_for_a_verified_resume_point() -> None:
    history = [commit(0, verified=True), commit(1, "weights", verified=True), commit(2), commit(3), commit(4, "weights")]
    assert steps_left(history, Keep(last=2, weights=1)) == [0, 1, 2, 3, 4]


def test_unusable_ones_push_nothing_out() -> None:
    history = [
        commit(0),
        commit(1, usable=False),
        commit(2),
        commit(3),
        commit(4, usable=False),
        commit(5, usable=False, verified=True),
    ]
    assert steps_left(history, Keep(last=2)) == [2, 3, 4, 5]
    assert steps_left([commit(0), *history[4:]], Keep(last=2)) == [0, 4, 5]
    best = [commit(0, metrics={"loss": 1.0}), commit(1, metrics={"loss": 0.0}, usable=False), commit(2), commit(3)]
    assert steps_left(best, Keep(last=2, best=Best("loss", 1))) == [0, 2, 3]


def test_the_reason_says_what_was_asked_for() -> None:
    history = [commit(step, metrics={"loss": -step}) for step in range(1, 6)] + [
        commit(9, "weights"),
        commit(10, "weights"),
        commit(11),
    ]
    found = expendable(history, Keep(last=2, every=100, best=Best("loss", 2), weights=1))
    assert found[0] == (
        GenerationId(1, 1, 1),
        "not among the newest 2; not at a multiple of 100 steps; not among the best 2 by loss (min)",
    )
    assert found[-1] == (GenerationId(1, 9, 1), "not among the newest 1 saves of weights; not among the best 2 by loss (min)")


CANDIDATES = st.builds(
    Candidate,
    generation=st.builds(GenerationId, st.integers(1, 3), st.integers(0, 30), st.integers(1, 2)),
    level=st.sampled_from(["exact", "coverage", "replay", "weights"]),
    metrics=st.dictionaries(st.sampled_from(["loss", "other"]), st.floats()),
    pinned=st.booleans(),
    verified=st.booleans(),
    needed_by_reference=st.booleans(),
    usable=st.booleans(),
)
HISTORIES = st.lists(CANDIDATES, unique_by=lambda item: item.generation, max_size=25)
POLICIES = st.builds(
    Keep,
    last=st.integers(2, 5),
    every=st.none() | st.integers(1, 10),
    best=st.none() | st.builds(Best, st.just("loss"), st.integers(1, 4), st.sampled_from(["min", "max"])),
    weights=st.none() | st.integers(1, 4),
)


@given(HISTORIES, POLICIES, st.sets(st.integers(0, 24)), st.randoms())
def test_no_policy_takes_away_what_must_stay(history: list[Candidate], keep: Keep, marked: set[int], random: Any) -> None:
    protected = {item.generation for place, item in enumerate(history) if place in marked}
    found = expendable(history, keep, protected)
    gone = [generation for generation, _ in found]
    ordered = sorted(history, key=lambda item: item.generation)
    usable = [item for item in ordered if item.usable]
    resumable = [item.generation for item in usable if item.level != "weights"]
    weights = [item.generation for item in usable if item.level == "weights"]
    verified = [item.generation for item in usable if item.verified]
    stay = {item.generation for item in history if item.pinned or item.needed_by_reference} | protected
    stay |= {item.generation for item in ordered[-1:]} | set(verified[-1:]) | set(resumable[-keep.last :])
    stay |= set(weights[-(keep.weights or keep.last) :])
    assert not stay & set(gone)
    assert gone == sorted(set(gone))
    assert set(gone) <= {item.generation for item in history}
    shuffled = random.sample(history, len(history))
    assert expendable(shuffled, keep, protected) == found


@given(HISTORIES, POLICIES)
def test_a_second_collection_finds_nothing_more(history: list[Candidate], keep: Keep) -> None:
    gone = {generation for generation, _ in expendable(history, keep)}
    assert expendable([item for item in history if item.generation not in gone], keep) == []


@given(HISTORIES, POLICIES)
def test_what_is_kept_is_bounded(history: list[Candidate], keep: Keep) -> None:
    plain = [Candidate(generation=item.generation, level=item.level, metrics=item.metrics) for item in history]
    best = keep.best.count if keep.best else 0
    multiples = sum(1 for item in plain if keep.every and item.generation.step % keep.every == 0)
    most = keep.last + (keep.weights or keep.last) + best + multiples
    assert len(plain) - len(expendable(plain, keep)) <= most


@pytest.mark.parametrize("arguments", [{"last": 1}, {"last": 0}, {"last": 2.0}, {"every": 0}, {"weights": 0}], ids=repr)
def test_policies_that_keep_too_little_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError, match=next(iter(arguments))):
        Keep(**arguments)


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": True}, {"mode": "least"}], ids=repr)
def test_a_best_that_means_nothing_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="Best"):
        Best(**{"metric": "loss", "count": 1, **arguments})
