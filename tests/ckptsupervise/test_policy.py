from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptsupervise.policy import Launch, Past, Policy, Stop, without_progress

FOUR = Policy(nproc=4, min_nproc=2)
ALL = (0, 1, 2, 3)


def failed(blamed: int | None = None, *, at: float = 0.0, progressed: bool = False, slots: tuple[int, ...] = ALL) -> Past:
    return Past(slots=slots, outcome="failed", ended=at, progressed=progressed, blamed=blamed)


def launched(history: list[Past], *, now: float = 0.0, chance: float = 0.0, policy: Policy = FOUR) -> Launch:
    decision = policy.decide(history, now, chance)
    assert isinstance(decision, Launch), decision
    return decision


def test_the_first_launch_has_all_slots_and_no_delay() -> None:
    assert launched([]) == Launch(slots=ALL, delay=0.0, cause="start")


def test_one_failure_is_followed_by_a_restart_on_the_same_slots() -> None:
    assert launched([failed(1)]) == Launch(slots=ALL, delay=0.0, cause="restart")


def test_a_slot_that_fails_twice_in_a_row_is_left_out() -> None:
    again = launched([failed(1), failed(1)])
    assert (again.slots, again.cause) == ((0, 2, 3), "shrunk")


def test_a_newly_committed_step_forgives_failures_before_it() -> None:
    assert launched([failed(1), failed(1, progressed=True)]).slots == ALL
    assert launched([failed(1, progressed=True), failed(1)]).slots == (0, 2, 3)
    assert launched([failed(1), failed(2, progressed=True), failed(1)]).slots == ALL


def test_failures_of_different_slots_are_nobodys_fault() -> None:
    assert launched([failed(1), failed(2), failed(3)]).slots == ALL


def test_a_failure_without_a_culprit_leaves_nobody_out() -> None:
    assert launched([failed(), failed(), failed()]).slots == ALL


def test_a_slot_comes_back_and_is_on_probation_then() -> None:
    out = [failed(1, at=10), failed(1, at=20)]
    assert launched(out, now=618).slots == (0, 2, 3)
    assert launched(out, now=620) == Launch(slots=ALL, delay=1.0, cause="restart")
    assert FOUR.grows_at(out, (0, 2, 3)) == 620
    again = [*out, Past(slots=(0, 2, 3), outcome="resized", ended=620, progressed=True)]
    assert launched(again, now=620).cause == "grown"
    assert launched([*again, failed(1, at=700)], now=700).slots == (0, 2, 3)
    assert FOUR.grows_at([*again, failed(1, at=700)], (0, 2, 3)) == 700 + 1200


def test_a_slot_that_has_proven_itself_starts_anew() -> None:
    out = [failed(1, at=10), failed(1, at=20)]
    proven = [*out, failed(2, at=900, progressed=True)]
    assert launched([*proven, failed(1, at=1000)], now=1000).slots == ALL
    assert FOUR.grows_at([*proven, failed(1, at=1000), failed(1, at=1100)], (0, 2, 3)) == 1100 + 600


def test_a_slot_that_comes_back_during_the_delay_is_used() -> None:
    out = [failed(1, at=0), failed(1, at=0), failed(at=599.5, slots=(0, 2, 3))]
    assert launched(out, now=599.5) == Launch(slots=ALL, delay=2.0, cause="grown")


def test_a_slow_rank_is_left_out_at_once() -> None:
    drained = Past(slots=ALL, outcome="failed", ended=0.0, progressed=True, blamed=3, drained=True)
    assert launched([drained]).slots == (0, 1, 2)


def test_never_fewer_than_the_minimum_and_the_one_out_longest_comes_back_for_another() -> None:
    two_out = [
        failed(0, at=1),
        failed(0, at=2),
        failed(1, at=3, progressed=True, slots=(1, 2, 3)),
        failed(1, at=4, slots=(1, 2, 3)),
    ]
    assert launched(two_out, now=5).slots == (2, 3)
    three = [*two_out, failed(2, at=6, progressed=True, slots=(2, 3)), failed(2, at=7, slots=(2, 3))]
    assert launched(three, now=8).slots == (0, 3)


def test_the_one_that_has_just_failed_does_not_come_back_for_itself() -> None:
    """Slot 0 has failed often, so it is out for longer than slot 1 would be."""
    three = Policy(nproc=3, min_nproc=2, max_restarts=20)
    often = [failed(0, at=1, slots=(0, 1, 2)), failed(0, at=2, slots=(0, 1, 2))]
    often += [failed(0, at=time, slots=(0, 1, 2)) for time in (1000, 5000)]
    assert launched(often, now=5001, policy=three).slots == (1, 2)
    both = [*often, failed(1, at=5002, slots=(1, 2)), failed(1, at=5003, slots=(1, 2))]
    assert launched(both, now=5004, policy=three).slots == (0, 2)


def test_without_room_to_shrink_the_same_slots_are_tried_again() -> None:
    fixed = Policy(nproc=2, min_nproc=2)
    assert launched([failed(1, slots=(0, 1))] * 3, policy=fixed).slots == (0, 1)
    assert fixed.grows_at([failed(1, slots=(0, 1))] * 3, (0, 1)) is None
    assert not fixed.can_drop((0, 1))
    assert FOUR.can_drop((0, 1, 2))


def test_the_job_ends_after_so_many_restarts_without_a_step() -> None:
    assert launched([failed()] * 3)
    assert FOUR.decide([failed()] * 4, 0, 0) == Stop(reason="no-progress", message="3 restarts without a newly committed step")
    assert launched([failed(progressed=True), *[failed()] * 2])
    assert isinstance(FOUR.decide([failed(progressed=True), *[failed()] * 3], 0, 0), Stop)
    assert launched([*[failed()] * 3, failed(progressed=True)])


def test_no_restart_at_all_can_be_asked_for() -> None:
    never = Policy(nproc=4, min_nproc=4, max_restarts=0)
    assert isinstance(never.decide([failed()], 0, 0), Stop)
    assert isinstance(never.decide([failed(progressed=True)], 0, 0), Launch)


def test_resized_attempts_are_no_failures() -> None:
    resized = Past(slots=(0, 1, 2), outcome="resized", ended=0.0, progressed=False)
    assert launched([failed(), resized, failed(), resized, failed()]).delay == 2.0
    assert launched([failed(), failed(), failed(), resized]).delay == 0.0
    assert without_progress([failed(), resized, failed()]) == 1
    assert launched([failed(1), resized, failed(1)]).slots == (0, 2, 3)


def test_what_follows_progress_that_did_not_fail_is_no_restart() -> None:
    """The job had gone on with more ranks: that these fail is the first failure since the newly committed step."""
    resized = Past(slots=(0, 2, 3), outcome="resized", ended=0.0, progressed=True)
    assert launched([failed(1), failed(1), resized, failed(1)]).delay == 0.0
    assert launched([failed(1), failed(1), resized, failed(1), failed(1)]).delay == 1.0
    assert launched([failed(1, progressed=True), failed(1)]).delay == 1.0, "this one was a restart, which has led to nothing"


def test_how_a_job_that_is_over_is_told() -> None:
    stop = FOUR.decide([Past(slots=ALL, outcome="finished", ended=0.0, progressed=True)], 0.0, 0.0)
    assert stop == Stop(reason="finished", message="the job has finished")


def test_the_delay_doubles_to_its_limit() -> None:
    patient = Policy(nproc=4, min_nproc=4, max_restarts=100)
    delays = [launched([failed()] * count, policy=patient).delay for count in range(1, 10)]
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert launched([failed()] * 3, policy=patient, chance=1.0).delay == 1.0
    assert patient.delay(10**9) == 60


@pytest.mark.parametrize("outcome", ["finished", "preempted", "superseded"])
def test_what_ends_a_job(outcome: Any) -> None:
    decision = FOUR.decide([Past(slots=ALL, outcome=outcome, ended=0.0, progressed=True)], 0, 0)
    assert isinstance(decision, Stop)
    assert decision.reason == outcome


def test_a_supervisor_that_died_is_followed_by_a_launch_at_once() -> None:
    lost = Past(slots=ALL, outcome="lost", ended=0.0, progressed=False)
    assert launched([failed(), failed(), failed(), failed(), lost]) == Launch(slots=ALL, delay=0.0, cause="resumed-supervisor")


@pytest.mark.parametrize(
    "wrong",
    [
        {"nproc": 2, "min_nproc": 3},
        {"min_nproc": 0},
        {"tries": 0},
        {"max_restarts": -1},
        {"first_delay": 2.0, "longest_delay": 1.0},
        {"longest_delay": float("inf")},
        {"grow_after": 0.0},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CallError):
        Policy(**{"nproc": 4, "min_nproc": 2, **wrong})


POLICIES = st.integers(1, 6).flatmap(
    lambda nproc: st.builds(
        Policy,
        nproc=st.just(nproc),
        min_nproc=st.integers(1, nproc),
        tries=st.integers(1, 3),
        max_restarts=st.integers(0, 6),
        grow_after=st.sampled_from([1.0, 100.0]),
    )
)
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 7),  # whose fault: a rank, or nobody's
        st.sampled_from(["fails", "fails", "commits, fails", "drained", "lives until it may grow"]),
        st.floats(0, 200),
    ),
    max_size=30,
)


def played(policy: Policy, events: list[tuple[int, str, float]], chance: float) -> list[tuple[list[Past], Launch | Stop]]:
    """Every decision for a job to which `events` happen, with what had happened before it."""
    history: list[Past] = []
    decisions: list[tuple[list[Past], Launch | Stop]] = []
    now = 0.0
    for whose, what, seconds in events:
        decision = policy.decide(history, now, chance)
        decisions.append((list(history), decision))
        if isinstance(decision, Stop):
            return decisions
        now += decision.delay + seconds
        slots, grows = decision.slots, policy.grows_at(history, decision.slots)
        if what.startswith("lives"):
            now = now if grows is None else max(now, grows)
            history.append(Past(slots=slots, outcome="resized", ended=now, progressed=False))
            continue
        blamed = slots[whose] if whose < len(slots) else None
        drained = what == "drained" and blamed is not None and policy.can_drop(slots)
        history.append(
            Past(slots=slots, outcome="failed", ended=now, progressed=what.startswith("commits"), blamed=blamed, drained=drained)
        )
    return [*decisions, (list(history), policy.decide(history, now, chance))]


@given(POLICIES, EVENTS, st.floats(0, 1))
@example(Policy(nproc=3, min_nproc=2, max_restarts=6), [(0, "fails", 0.0)] * 9, 0.5)
def test_what_always_holds(policy: Policy, events: list[tuple[int, str, float]], chance: float) -> None:
    for history, decision in played(policy, events, chance):
        failures = 0
        for past in history:
            failures = 0 if past.progressed else failures + (past.outcome == "failed")
        if isinstance(decision, Stop):
            assert decision.reason == "no-progress"
            assert failures >= policy.max_restarts
            continue
        assert policy.min_nproc <= len(decision.slots) <= policy.nproc
        assert sorted(set(decision.slots)) == list(decision.slots)
        assert set(decision.slots) <= set(range(policy.nproc))
        assert 0 <= decision.delay <= policy.longest_delay
        assert failures <= policy.max_restarts + 1
        size = len(history[-1].slots) if history else policy.nproc
        assert (decision.cause == "shrunk") == (len(decision.slots) < size)
        assert (decision.cause == "grown") == (len(decision.slots) > size)


@given(POLICIES, EVENTS, st.floats(0, 1))
def test_a_job_that_is_left_alone_grows_back(policy: Policy, events: list[tuple[int, str, float]], chance: float) -> None:
    history, decision = played(policy, events, chance)[-1]
    if isinstance(decision, Launch):
        running, turns = decision.slots, 0
        while len(running) < policy.nproc:
            due = policy.grows_at(history, running)
            assert due is not None
            history.append(Past(slots=running, outcome="resized", ended=due, progressed=True))
            again = policy.decide(history, due, chance)
            assert isinstance(again, Launch)
            assert len(again.slots) > len(running)
            running, turns = again.slots, turns + 1
        assert turns <= policy.nproc
        assert policy.grows_at(history, running) is None


@given(POLICIES, st.lists(st.integers(0, 7), min_size=40, max_size=40), st.floats(0, 1))
def test_a_job_that_only_fails_stops(policy: Policy, whose: list[int], chance: float) -> None:
    decisions = played(policy, [(rank, "fails", 1.0) for rank in whose], chance)
    assert isinstance(decisions[-1][1], Stop)
    assert len(decisions) == policy.max_restarts + 2


@given(POLICIES, st.integers(1, 20), st.floats(0, 1))
def test_a_dead_slot_is_left_out_and_the_others_get_on(policy: Policy, commits: int, chance: float) -> None:
    """Slot 0 is dead. Attempts without it commit; it comes back ever later."""
    history: list[Past] = []
    now, bad = 0.0, 0
    waits: list[float] = []
    while (decision := policy.decide(history, now, chance)) and isinstance(decision, Launch) and commits:
        dead = 0 in decision.slots
        bad, commits = (bad + 1, commits) if dead else (0, commits - 1)
        assert bad <= policy.max_restarts + 1
        due = policy.grows_at(history, decision.slots)
        now += decision.delay + 1 if dead or due is None else max(due - now, 0) + 1
        waits += [] if dead or due is None else [due]
        outcome = "failed" if dead else "resized"
        history.append(Past(slots=decision.slots, outcome=outcome, ended=now, progressed=not dead, blamed=0 if dead else None))
    gaps = [later - sooner for sooner, later in pairwise(waits)]
    assert all(later > sooner for sooner, later in pairwise(gaps))
    assert isinstance(decision, Stop) == (commits > 0)
