from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptcore.heartbeat import Beat, Phase
from ckptsupervise.deadlines import Deadlines, hung
from tests.ckptsupervise.beats import beat

SHORT = Deadlines(init=300, restore=400, train=60, save=200, final=100)
PHASES: list[Phase] = ["init", "restore", "train", "save", "final"]


def ranks(beats: list[Beat], now: float) -> list[int]:
    return [hang.rank for hang in hung(beats, now, SHORT)]


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_has_its_own_deadline(phase: Phase) -> None:
    only = [beat(0, phase, at=100)]
    assert ranks(only, 100 + SHORT.of(phase)) == []
    assert ranks(only, 100 + SHORT.of(phase) + 0.1) == [0]


def test_a_hang_says_where_and_for_how_long() -> None:
    (hang,) = hung([beat(3, "save", at=100, step=7)], 350, SHORT)
    assert (hang.rank, hang.pid, hang.phase, hang.seconds, hang.step) == (3, 1003, "save", 250, 7)


def test_the_rank_with_the_fewest_steps_comes_first() -> None:
    beats = [beat(0, at=100, step=5), beat(1, at=100.5, step=4), beat(2, at=99, step=5)]
    assert ranks(beats, 170) == [1, 2, 0]


def test_of_equal_steps_the_earliest_beat_comes_first() -> None:
    assert ranks([beat(0, at=100, step=5), beat(1, at=99, step=5)], 170) == [1, 0]


def test_who_waits_for_a_long_save_does_not_hang() -> None:
    saving = [beat(0, "train", at=100, step=8), beat(1, "save", at=99, step=8)]
    assert ranks(saving, 250) == []
    assert ranks(saving, 300) == [1, 0]


def test_who_waits_for_a_long_restore_does_not_hang() -> None:
    beats = [beat(0, "train", at=100, step=0), beat(1, "restore", at=90)]
    assert ranks(beats, 480) == []
    assert ranks(beats, 491) == [1, 0]


def test_who_has_just_been_waited_for_gets_the_time_for_its_step() -> None:
    """Rank 1 has left its save 95 s after rank 0 fell silent: now both do the next step."""
    beats = [beat(0, at=100, step=8), beat(1, at=195, step=8, since=195.0)]
    assert ranks(beats, 200) == []
    assert ranks(beats, 256) == [0, 1]


def test_a_rank_that_does_not_depend_on_the_others_is_found_at_its_deadline() -> None:
    assert ranks([beat(0, at=100, step=8), beat(1, at=160, step=5)], 160.5) == [0]
    assert ranks([beat(0, at=100, step=8), beat(1, "save", at=160, step=9)], 160.5) == [0]


def test_who_is_done_does_not_hold_up_the_others() -> None:
    assert ranks([beat(0, at=100, step=8), beat(1, "final", at=100, step=8)], 161) == [0]
    assert ranks([beat(0, "train", at=150, step=8), beat(1, "final", at=100, step=9)], 205) == []


def test_a_deadline_is_more_than_nothing() -> None:
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(CallError, match="deadline save"):
            Deadlines(save=wrong)


BEATS = st.lists(
    st.tuples(st.sampled_from(PHASES), st.floats(0, 1000), st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=6
).map(lambda all_: [beat(rank, phase, at, step=step, since=at * part) for rank, (phase, at, part, step) in enumerate(all_)])


@given(BEATS, st.floats(1000, 2000))
def test_nobody_hangs_in_time_and_everybody_does_in_the_end(beats: list[Beat], now: float) -> None:
    late = {each.rank for each in beats if now - each.at > SHORT.of(each.phase)}
    found = ranks(beats, now)
    assert set(found) <= late
    assert found or len(late) < len(beats)
    assert sorted(ranks(beats, 1000 + 401)) == [each.rank for each in beats]


@given(BEATS, st.floats(1000, 2000), st.floats(0, 500))
def test_a_hang_stays_one_until_there_is_a_sign_of_life(beats: list[Beat], now: float, more: float) -> None:
    assert set(ranks(beats, now)) <= set(ranks(beats, now + more))
