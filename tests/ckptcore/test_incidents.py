"""Incidents and goodput, by attempts whose times are written out: where every second went."""

from __future__ import annotations

import itertools
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import interval
from ckptcore.attempts import Attempt, AttemptEnd, AttemptIncident, AttemptPlan, AttemptResumed, Supervisor
from ckptcore.inspect.incidents import LOST, PARTS, account, goodput, incidents, predicted, spans
from ckptcore.interval import Costs

RUN = "3f2a9c5e-0d41-4b7a-9a55-6f0c1d2e3b4a"
ZERO = datetime(2026, 1, 31, 12, tzinfo=UTC)
KILLED = AttemptIncident(kind="signal", rank=2, slot=3, node="n", status=-9, phase="train", step=40, message="killed")


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def text(seconds: float | None) -> str | None:
    return None if seconds is None else at(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plan(number: int, created: float, **told: Any) -> AttemptPlan:
    usual: dict[str, Any] = {"processes": 1, "slots": [0], "nodes": ["n"], "cause": "start", "committed": None}
    owner = Supervisor(nonce="ab" * 8, host="n", pid=1)
    return AttemptPlan(run_id=RUN, attempt=number, created=str(text(created)), supervisor=owner, **usual | told)


TIMES = {"launched", "restoring", "restored", "first_step", "recovered", "last_sign", "detected", "stopped"}


def record(kind: Any, number: int, **told: Any) -> Any:
    return kind(run_id=RUN, attempt=number, **{name: text(value) if name in TIMES else value for name, value in told.items()})


def resumed(number: int, **told: Any) -> AttemptResumed:
    return record(
        AttemptResumed,
        number,
        **{"launched": 0, "restoring": None, "restored": None, "restored_step": 0, "recovered_step": 0} | told,
    )


def end(number: int, outcome: str = "failed", **told: Any) -> AttemptEnd:
    incident = KILLED if outcome == "failed" else None
    usual = {"incident": incident, "last_sign": None, "restored_step": None, "last_step": None, "committed": None}
    return record(AttemptEnd, number, outcome=outcome, **usual | told)


FIRST = Attempt(
    plan(1, 0),
    resumed(1, launched=1, restoring=10, restored=11, first_step=20, recovered=20),
    end(1, last_sign=100, detected=101, stopped=102, restored_step=0, last_step=40, blocked=4_000_000),
)
SECOND = Attempt(
    plan(2, 103),
    resumed(2, launched=104, restoring=112, restored=115, first_step=125, recovered=145, restored_step=20, recovered_step=40),
)
FINISHED = end(2, "finished", last_sign=300, detected=301, stopped=302, restored_step=20, last_step=90)


def parts(attempts: list[Attempt], now: float = 200, **told: Any) -> dict[str, float]:
    found = goodput(attempts, at(now), **told)
    return {part: seconds for part in PARTS if (seconds := getattr(found, part))}


def test_no_second_is_counted_twice() -> None:
    drained = Attempt(
        plan(1, 0),
        resumed(1, launched=1, restoring=10, restored=11, first_step=20, recovered=20),
        end(1, last_sign=100, detected=60, stopped=102, restored_step=0, last_step=40),
    )
    assert goodput([drained, SECOND], at(200)).wall == 200
    without_an_end = Attempt(drained.plan, drained.resumed)
    assert goodput([without_an_end, SECOND], at(200)).wall == 200


def test_every_second_has_its_part() -> None:
    first = {"relaunch": 10 + 9, "restore": 1, "productive": 80 - 4, "blocked": 4, "detect": 1}
    assert parts([FIRST]) == first
    both = [FIRST, SECOND]
    second = {"relaunch": (112 - 101) + 10, "restore": 3, "recompute": 20, "productive": 55}
    assert parts(both) == {part: first.get(part, 0) + second.get(part, 0) for part in {*first, *second}}
    found = goodput(both, at(200))
    assert (found.wall, found.incidents, found.mtbf) == (200, 1, 200)
    assert found.fraction == pytest.approx((76 + 55) / 200)


def test_an_incident_and_what_it_cost() -> None:
    (found,) = incidents([FIRST, SECOND])
    assert (found.attempt, found.kind, found.at, found.message) == (1, "signal", at(101), "killed")
    assert (found.rank, found.slot, found.node, found.phase, found.step) == (2, 3, "n", "train", 40)
    assert (found.detect, found.relaunch, found.restore, found.recompute, found.seconds) == (1, 21, 3, 20, 45)
    assert (found.lost_steps, found.recovered) == (20, True)


def test_an_incident_that_nothing_has_followed_yet() -> None:
    (found,) = incidents([FIRST], at(200))
    assert (found.detect, found.relaunch, found.lost_steps, found.recovered) == (1, 0, None, False)


def test_a_start_that_has_not_got_far_counts_until_now() -> None:
    starting = Attempt(SECOND.plan)
    (found,) = incidents([FIRST, starting], at(161))
    assert (found.detect, found.relaunch, found.restore, found.recovered) == (1, 60, 0, False)
    assert goodput([FIRST, starting], at(161)).wall == 161


@pytest.mark.parametrize(
    ("told", "cost"),
    [
        ({}, {"relaunch": 150 - 101}),
        ({"launched": 104}, {"relaunch": 150 - 101}),
        ({"launched": 104, "restoring": 112}, {"relaunch": 11, "restore": 150 - 112}),
        ({"launched": 104, "restoring": 112, "restored": 115}, {"relaunch": 11 + 35, "restore": 3}),
        (
            {"launched": 104, "restoring": 112, "restored": 115, "first_step": 125, "restored_step": 20, "last_step": 30},
            {"relaunch": 21, "restore": 3, "recompute": 25},
        ),
    ],
)
def test_an_attempt_that_ends_before_it_has_caught_up(told: dict[str, Any], cost: dict[str, float]) -> None:
    """What it got to counts for the incident before; what follows its last sign is its own."""
    failed = Attempt(SECOND.plan, None, end(2, last_sign=150, detected=153, stopped=153, **told))
    one, other = incidents([FIRST, failed, Attempt(plan(3, 154))], at(160))
    assert {part: getattr(one, part) for part in LOST if getattr(one, part)} == {"detect": 1, **cost}
    assert (other.detect, other.relaunch, other.restore, other.recompute) == (3, 7, 0, 0)
    assert not one.recovered


def test_steps_are_lost_once_for_each_time_that_they_are_made_again() -> None:
    again: dict[str, Any] = {
        "launched": 104,
        "restoring": 112,
        "restored": 115,
        "first_step": 125,
        "restored_step": 20,
        "last_step": 30,
    }
    failed = Attempt(SECOND.plan, None, end(2, last_sign=150, detected=153, stopped=153, **again))
    third = Attempt(plan(3, 154), resumed(3, first_step=170, recovered=180, restored_step=25, recovered_step=40))
    found = incidents([FIRST, failed, third])
    assert [each.lost_steps for each in found] == [20, 5]
    assert [each.recovered for each in found] == [True, True]


def test_an_attempt_that_could_not_start_has_lost_no_step() -> None:
    broken = Attempt(SECOND.plan, None, end(2, last_sign=150, detected=153, stopped=153))
    third = Attempt(plan(3, 154), resumed(3, first_step=170, recovered=180, restored_step=25, recovered_step=40))
    assert [each.lost_steps for each in incidents([FIRST, broken, third])] == [15, 0]


def test_a_first_attempt_whose_start_nobody_recorded_has_nothing_to_catch_up_with() -> None:
    marks: dict[str, Any] = {
        "launched": 1,
        "restoring": 10,
        "restored": 11,
        "first_step": 20,
        "restored_step": 0,
        "last_step": 40,
    }
    silent = Attempt(plan(1, 0), None, end(1, last_sign=100, detected=101, stopped=102, **marks))
    assert parts([silent]) == {"relaunch": 19, "restore": 1, "productive": 80, "detect": 1}


@pytest.mark.parametrize("outcome", ["finished", "preempted", "superseded"])
def test_while_nobody_supervises_no_time_passes(outcome: str) -> None:
    ended = Attempt(FIRST.plan, FIRST.resumed, end(1, outcome, last_sign=100, detected=101, stopped=102, last_step=40))
    later = Attempt(plan(2, 5000), resumed(2, launched=5001, first_step=5010, recovered=5010, restored_step=40))
    assert parts([ended, later], 5060) == {"relaunch": 19 + 2 + 10, "restore": 1, "productive": 80 + 50}
    assert incidents([ended, later]) == []
    assert goodput([ended, later], at(5060)).mtbf is None


def test_a_job_that_was_superseded_has_no_incident_and_lost_nothing_of_this_one() -> None:
    told = AttemptIncident(kind="exit", rank=0, slot=0, node="n", status=1, message="Superseded: incarnation 2 has been claimed")
    ended = end(1, "superseded", incident=told, last_sign=100, detected=101, stopped=102, restored_step=0, last_step=40)
    later = Attempt(plan(2, 110), resumed(2, launched=111, first_step=120, recovered=120, restored_step=20))
    attempts = [Attempt(FIRST.plan, FIRST.resumed, ended), later]
    assert incidents(attempts) == []
    found = goodput(attempts, at(160))
    assert (found.incidents, found.detect, found.mtbf) == (0, 0, None)


def test_a_resize_is_no_incident_but_takes_time() -> None:
    ended = Attempt(FIRST.plan, FIRST.resumed, end(1, "resized", last_sign=100, detected=101, stopped=105, last_step=40))
    later = Attempt(plan(2, 106), resumed(2, launched=106, first_step=120, recovered=120, restored_step=40))
    assert incidents([ended, later]) == []
    assert parts([ended, later], 150) == {"relaunch": 19 + 1 + 19, "restore": 1, "productive": 80 + 30}


def test_a_drained_rank_is_an_incident() -> None:
    slow = AttemptIncident(kind="straggler", rank=1, message="1.8 times the median")
    ended = end(1, "resized", incident=slow, last_sign=100, detected=101, stopped=105, last_step=40)
    (found,) = incidents([Attempt(FIRST.plan, FIRST.resumed, ended), SECOND])
    assert (found.kind, found.rank, found.relaunch) == ("straggler", 1, 21)


def test_a_supervisor_that_died_is_an_incident_too() -> None:
    """Its last sign may be unknown: then the latest that is known of the attempt counts."""
    lost = Attempt(FIRST.plan, FIRST.resumed, end(1, "lost", detected=101, stopped=101))
    (found,) = incidents([lost, SECOND])
    assert (found.kind, found.detect, found.recovered) == ("supervisor", 81, True)
    assert found.message == "process 1 on n ended without a word"


def test_training_that_nobody_has_seen_is_not_counted() -> None:
    """A supervisor may have died with its ranks: without a newer sign of training nothing is said of the time since."""
    assert goodput([FIRST, SECOND], at(9000), at(180)).productive == 76 + 35
    assert goodput([FIRST, SECOND], at(9000), at(50)).productive == 76
    assert goodput([FIRST, Attempt(SECOND.plan)], at(9000), at(50)).relaunch == 19 + (9000 - 101)


def test_a_clock_that_goes_back_makes_nothing_negative() -> None:
    back = Attempt(plan(2, -500), resumed(2, launched=-400, restoring=-390, restored=-380, first_step=-370, recovered=-300))
    found = goodput([FIRST, back], at(-200))
    assert all(getattr(found, part) >= 0 for part in PARTS)
    assert all(each.seconds >= 0 for each in incidents([FIRST, back]))


def test_a_date_that_no_calendar_has_is_passed_over() -> None:
    odd = msgspec.structs.replace(plan(1, 0), created="2026-02-31T00:00:00Z")
    assert spans([Attempt(odd)], at(10)) == [[]]
    found = goodput([Attempt(odd)], at(10))
    assert (found.wall, found.fraction) == (0, None)


def test_what_the_model_predicts() -> None:
    found = goodput([FIRST, SECOND], at(200))
    told, costs = incidents([FIRST, SECOND]), Costs(blocking=0.5, persist=3)
    assert predicted(told, found, costs, 30) == interval.goodput(
        30, Costs(blocking=0.5, persist=3, restart=21 + 3, downtime=1), 200
    )
    assert predicted(told, found, costs, 2) is None, "a save waits for the one before"
    assert predicted([], goodput([SECOND], at(200)), costs, 30) is None


def test_an_account() -> None:
    assert account([], at(0)) is None
    whole = account([FIRST, SECOND], at(9000), seen=at(180), costs=Costs(blocking=0.5), period=30)
    assert whole is not None
    assert whole.newest is SECOND
    assert [each.attempt for each in whole.incidents] == [1]
    assert whole.goodput == goodput([FIRST, SECOND], at(9000), at(180))
    assert whole.predicted is not None
    assert 0 < whole.predicted < 1
    bare = account([FIRST], at(200))
    assert bare is not None
    assert bare.predicted is None


moments = st.integers(0, 1000)


@st.composite
def histories(draw: st.DrawFn) -> list[Attempt]:
    """Any attempts one after the other, each with what may be known of it; their clocks agree."""
    found, now = [], 0
    for number in range(1, draw(st.integers(1, 4)) + 1):
        marks = sorted(draw(st.lists(moments, min_size=6, max_size=6)))
        names = ["launched", "restoring", "restored", "first_step", "recovered", "last_sign"]
        told = dict(zip(names, (now + mark for mark in marks), strict=True))
        over = now + marks[-1] + draw(moments)
        reached = draw(st.integers(0, 5))
        known = {name: told[name] for name in names[:reached] if name != "recovered"}
        began = resumed(number, **{name: told[name] for name in names[:5]}) if reached == 5 else None
        outcome = draw(st.sampled_from(["failed", "preempted", "resized", "lost", "finished"]))
        blocked = draw(st.integers(0, 10**9))
        last = draw(st.none() | st.just(told["last_sign"]))
        ended = end(number, outcome, last_sign=last, detected=over, stopped=over, blocked=blocked, **known)
        found.append(Attempt(plan(number, now), began, ended))
        now = over + draw(moments)
    return found


@given(histories())
def test_parts_neither_overlap_nor_leave_a_gap(attempts: list[Attempt]) -> None:
    flat = [span for each in spans(attempts) for span in each]
    aside = {"finished", "preempted", "superseded"}
    gaps = sum(
        (datetime.fromisoformat(later.plan.created) - datetime.fromisoformat(one.end.stopped)).total_seconds()
        for one, later in itertools.pairwise(attempts)
        if one.end is not None and one.end.outcome in aside
    )
    last = attempts[-1].end
    assert last is not None
    whole = (datetime.fromisoformat(last.stopped) - ZERO).total_seconds()
    assert sum(span.seconds for span in flat) == pytest.approx(whole - gaps)
    assert all(one.stop <= later.start for one, later in itertools.pairwise(flat))
    found = goodput(attempts, at(10**6))
    assert found.wall == pytest.approx(sum(getattr(found, part) for part in PARTS))
    costs = sum(each.seconds for each in incidents(attempts))
    assert costs <= sum(getattr(found, part) for part in LOST) + 1e-6
    assert {field.name for field in fields(found)} > set(PARTS)


def test_marks_out_of_order_are_not_counted_twice() -> None:
    odd = Attempt(plan(1, 0), resumed(1, launched=1, restoring=30, restored=20, first_step=40, recovered=35))
    assert parts([odd], 50) == {"relaunch": 30 + 10, "productive": 10}


def test_what_an_attempt_does_after_it_has_caught_up_is_not_the_incidents_cost() -> None:
    """The stop of a resize takes time too, which is that of nobody's failure."""
    resized = Attempt(SECOND.plan, SECOND.resumed, end(2, "resized", last_sign=200, detected=230, stopped=231, last_step=60))
    (found,) = incidents([FIRST, resized, Attempt(plan(3, 232))], at(240))
    assert found.relaunch == 21
    assert goodput([FIRST, resized], at(240)).relaunch == 19 + 21 + 30
