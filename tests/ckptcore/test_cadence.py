"""When to save: the same answer on every rank."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcore.cadence import Cadence
from ckptcore.channel import LocalChannel
from ckptcore.errors import CallError
from ckptcore.schedule import Every
from tests.ckptcore.support import FakeClock, Hub, ThreadChannel, on_ranks


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
