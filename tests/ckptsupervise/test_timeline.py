from __future__ import annotations

from datetime import UTC, datetime

from ckptcore.heartbeat import Beat
from ckptsupervise.timeline import Instant, Timeline
from tests.ckptsupervise.beats import beat

START = Timeline(launched=0.5, size=2, target=20)


def trained(step: int, at: float, *, rank: int = 0, restored: int = 10, first: float = 8.0, blocked: float = 0.0) -> Beat:
    marks = {"init": 1.0, "restore": 2.0 + rank, "restored": 5.0 + rank, "first-step": first + rank}
    return beat(rank, at=at, step=step, restored_step=restored, marks=marks, blocked=blocked)


def seen(line: Timeline, *beats: Beat) -> Timeline:
    return line.seen(beats)


def test_before_the_first_beat_nothing_is_known() -> None:
    line = seen(START)
    assert (line.restoring, line.restored, line.first_step, line.recovered, line.last_step) == (None,) * 5
    assert (line.restored_step, line.blocked, line.trained, line.last_sign()) == (None, 0.0, 0.0, 0.5)


def test_a_point_is_reached_when_the_last_rank_has_reached_it() -> None:
    half = seen(START, trained(11, 9.0))
    assert (half.restoring, half.restored, half.first_step, half.restored_step) == (None, None, None, 10)
    line = seen(half, trained(11, 9.5, rank=1))
    assert (line.restoring, line.restored, line.first_step, line.last_step) == (3.0, 6.0, 9.0, 11)


def test_training_has_recovered_when_all_are_where_the_attempt_before_was() -> None:
    line = seen(START, trained(20, 30.0), trained(19, 29.0, rank=1))
    assert line.recovered is None
    line = seen(line, trained(20, 30.0), trained(20, 31.0, rank=1))
    assert line.recovered == 31.0
    assert seen(line, trained(30, 40.0), trained(30, 41.0, rank=1)).recovered == 31.0


def test_a_look_that_comes_late_dates_it_no_later_than_itself() -> None:
    line = seen(START, trained(25, 36.0), trained(23, 35.0, rank=1))
    assert line.recovered == 35.0


def test_where_nothing_has_to_be_computed_again_the_first_step_is_the_recovery() -> None:
    line = seen(START, trained(25, 36.0, restored=20), trained(23, 35.0, rank=1, restored=20))
    assert line.recovered == line.first_step == 9.0
    fresh = Timeline(launched=0.0, size=1)
    assert seen(fresh, beat(0, "init", step=0, restored_step=0, marks={"restored": 3.0})).recovered is None
    assert seen(fresh, beat(0, step=1, restored_step=0, at=7.0)).recovered == 4.0


def test_a_rank_whose_file_is_missing_keeps_its_last_beat() -> None:
    line = seen(seen(START, trained(11, 9.0), trained(11, 9.5, rank=1)), trained(12, 10.0))
    assert line.last_step == 11
    assert line.last_sign(1) == 9.5


def test_the_last_sign_of_life_is_that_of_the_rank_that_is_behind() -> None:
    line = seen(START, trained(12, 10.0), trained(11, 10.5, rank=1))
    assert (line.last_sign(), line.last_sign(0), line.last_sign(7)) == (10.5, 10.0, 10.5)


def test_training_is_from_the_first_step_on_without_saves() -> None:
    line = seen(START, trained(20, 30.0, blocked=5.0), trained(20, 30.0, rank=1, blocked=7.0))
    assert (line.trained, line.blocked) == (30.0 - 8.0 - 5.0, 7.0)


def test_an_instant_dates_moments() -> None:
    instant = Instant(monotonic=1000.0, utc=1_700_000_000.0)
    assert instant.date(1000.0) == datetime.fromtimestamp(1_700_000_000, UTC)
    assert instant.date(990.5).timestamp() == 1_700_000_000 - 9.5
