"""When to save: the same answer on every rank."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptcore.cadence import Cadence
from ckptcore.channel import LocalChannel
from ckptcore.errors import CallError
from ckptcore.schedule import Every, Optimal
from tests.ckptcore.support import FakeClock, Hub, ThreadChannel, checkpointer, on_ranks, state


def test_a_rule_by_steps_needs_no_talk() -> None:
    cadence = Cadence(10, ThreadChannel(Hub(2), 1), FakeClock())
    cadence.begin(0)
    assert [step for step in range(1, 35) if cadence.due(step)] == [10, 20, 30]
    cadence.saved(10)


def steps_saved(cadence: Cadence, clock: FakeClock, steps: int, step_seconds: float, start: int = 0) -> list[int]:
    cadence.begin(start)
    saved = []
    for step in range(start + 1, start + steps + 1):
        clock.now += step_seconds
        if cadence.due(step):
            cadence.saved(step)
            saved.append(step)
    return saved


def test_a_rule_by_seconds_learns_the_time_of_a_step_from_an_early_save() -> None:
    clock = FakeClock()
    assert steps_saved(Cadence(Every(seconds=60.0), LocalChannel(), clock), clock, 200, 2.0) == [1, 31, 61, 91, 121, 151, 181]


def test_the_default_is_every_ten_minutes() -> None:
    clock = FakeClock()
    assert steps_saved(Cadence(None, LocalChannel(), clock), clock, 25, 60.0) == [1, 11, 21]


def test_whichever_comes_first() -> None:
    clock = FakeClock()
    assert steps_saved(Cadence(Every(steps=4, seconds=60.0), LocalChannel(), clock), clock, 12, 30.0, 0) == [
        1,
        3,
        4,
        6,
        8,
        10,
        12,
    ]


def test_a_resumed_loop_begins_where_it_is() -> None:
    clock = FakeClock()
    assert steps_saved(Cadence(Every(seconds=60.0), LocalChannel(), clock), clock, 70, 2.0, start=500) == [501, 531, 561]


def test_ranks_with_different_clocks_agree() -> None:
    def run(link: Any) -> list[int]:
        clock = FakeClock()
        return steps_saved(Cadence(Every(seconds=60.0), link, clock), clock, 100, 1.0 + link.rank)

    found = on_ranks(3, run)
    assert found == [[1, 61]] * 3


def test_saves_that_nobody_asked_for_move_the_next_one() -> None:
    clock = FakeClock()
    cadence = Cadence(Every(seconds=60.0), LocalChannel(), clock)
    cadence.begin(0)
    for step in range(1, 41):
        clock.now += 2.0
        if cadence.due(step) or step == 20:
            cadence.saved(step)
    assert not any(cadence.due(step) for step in range(41, 50))
    assert cadence.due(50)


@pytest.mark.parametrize("interval", [True, 1.5, "10", 0, -3])
def test_an_interval_is_a_number_of_steps_or_a_rule(interval: Any) -> None:
    with pytest.raises(CallError, match=r"interval|Every"):
        Cadence(interval, LocalChannel(), FakeClock())


# The best interval


RULE = Optimal(mtbf=10800, slowdown=0.05, blocking=1.0, persist=60.0)


def steps_saved_at_cost(
    cadence: Cadence, clock: FakeClock, steps: int, step_seconds: float, cost: Callable[[int], tuple[float, float]]
) -> list[int]:
    """As the `Checkpointer` does it: what a save cost is told when it has ended, which is before the next one begins."""
    cadence.begin(0)
    saved = []
    for step in range(1, steps + 1):
        clock.now += step_seconds
        if cadence.due(step):
            cadence.saved(step)
            saved.append(step)
            clock.now += cost(step)[0]
            cadence.cost(*cost(step))
    return saved


def test_the_best_interval_goes_by_what_the_save_before_has_cost() -> None:
    clock = FakeClock()
    saved = steps_saved_at_cost(
        Cadence(RULE, LocalChannel(), clock), clock, 600, 5.0, lambda step: (0.0, 1.0 if step < 250 else 400.0)
    )
    periods = [(later - sooner) * 5.0 for sooner, later in itertools.pairwise(saved)]
    assumed, cheap = RULE.seconds(RULE.costs()), RULE.seconds(RULE.costs(0.0, 1.0))
    dear = RULE.seconds(RULE.costs(0.0, 400.0))
    assert saved[0] == 1
    assert [assumed <= periods[0] < assumed + 5, cheap <= periods[1] < cheap + 5, periods[1] == periods[2]] == [True] * 3
    assert dear <= periods[-1] < dear + 5
    assert cheap < assumed < dear


def test_saves_are_no_closer_than_they_take() -> None:
    clock = FakeClock()
    rule = Optimal(mtbf=3600)
    saved = steps_saved_at_cost(Cadence(rule, LocalChannel(), clock), clock, 400, 10.0, lambda _: (0.5, 900.0))
    assert {later - sooner for sooner, later in itertools.pairwise(saved[1:])} <= {90, 91}
    assert len(saved) > 4


def test_ranks_whose_saves_cost_differently_agree() -> None:
    def run(link: Any) -> list[int]:
        clock = FakeClock()
        cost = (0.1 + link.rank, 10.0 + 100 * link.rank)
        return steps_saved_at_cost(Cadence(RULE, link, clock), clock, 400, 1.0 + link.rank, lambda _: cost)

    found = on_ranks(3, run)
    assert found == [found[0]] * 3
    clock = FakeClock()
    alone = steps_saved_at_cost(Cadence(RULE, LocalChannel(), clock), clock, 400, 1.0, lambda _: (0.1, 10.0))
    assert found[0] == alone  # rank 0 decides


def test_a_job_learns_what_its_saves_cost_and_its_ranks_agree(place: Path) -> None:
    rule = Optimal(mtbf=3600.0, slowdown=1e-9, blocking=1e-9, persist=1e-9)

    def run(link: Any) -> tuple[list[int], Any]:
        with checkpointer(place, link, interval=rule) as ckpt:
            saved = []
            for step in range(1, 9):
                if ckpt.should_save(step):
                    ckpt.save(step, state(step, link.rank, 2)).result()
                    saved.append(step)
            ckpt.wait()
            return saved, ckpt._cadence._measured

    (one, measured), (other, _) = on_ranks(2, run)
    assert one == other
    assert one[0] == 1
    assert measured is not None
    assert all(0 < seconds < 20 for seconds in measured)


def test_what_is_best_and_why_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    rule = Optimal(mtbf=10800, slowdown=0.05, restart=120, downtime=60)
    with caplog.at_level(logging.INFO, "ckptcore"):
        steps_saved_at_cost(Cadence(rule, LocalChannel(), clock), clock, 100, 5.0, lambda _: (0.2, 20.0))
    first, second, *_ = [record.getMessage().split(": ") for record in caplog.records]
    assert first == [
        "a save stops training for 1 s and is written for 60 s (assumed)",
        "saving every 295 s is best, with a goodput of 0.9516",
    ]
    assert second == [
        "a save stops training for 0.2 s and is written for 20 s (measured)",
        "saving every 161 s is best, with a goodput of 0.9671",
    ]


@pytest.mark.parametrize(
    "wrong", [{"mtbf": 0}, {"mtbf": -1}, {"mtbf": math.inf}, {"mtbf": 9, "slowdown": 1}, {"mtbf": 9, "persist": -1}]
)
def test_an_optimum_of_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CallError, match=r"mtbf|slowdown|persist"):
        Optimal(**wrong)


def test_a_save_that_costs_nothing_is_made_all_the_time() -> None:
    clock = FakeClock()
    assert steps_saved(Cadence(Optimal(mtbf=60, blocking=0, persist=0), LocalChannel(), clock), clock, 5, 1.0) == [1, 2, 3, 4, 5]
