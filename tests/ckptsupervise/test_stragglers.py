"""Simulated step times. `make_noise` gives what a step takes, as a multiple of its usual time: a row a step, a column a rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from ckptsupervise.stragglers import ROW, SAVES, STEPS, Comparison, Rule, Straggler, Stragglers, judge
from tests.ckptsupervise.beats import beat

Times = NDArray[np.float64]
Noise = Callable[[Generator, int, int], Times]
WINDOW = STEPS.samples


def normal(sigma: float) -> Noise:
    return lambda chance, steps, ranks: np.exp(sigma * chance.standard_normal((steps, ranks)))


def heavy_tails(chance: Generator, steps: int, ranks: int) -> Times:
    """Now and then a step takes many times as long."""
    return 1 + 0.05 * chance.pareto(1.5, (steps, ranks))


def correlated(chance: Generator, steps: int, ranks: int) -> Times:
    """A rank that is 10 % slow stays so for about ten steps."""
    noise = 0.1 * np.sqrt(1 - 0.9**2) * chance.standard_normal((steps, ranks))
    for step in range(1, steps):
        noise[step] += 0.9 * noise[step - 1]
    return np.exp(noise)


def collections(chance: Generator, steps: int, ranks: int) -> Times:
    """Every rank collects garbage at every tenth step, each at its own."""
    times = normal(0.05)(chance, steps, ranks)
    return times * np.where((np.arange(steps)[:, None] + np.arange(ranks)) % 10 == 0, 4, 1)


def all_at_once(chance: Generator, steps: int, ranks: int) -> Times:
    """Every second step is twice as long for all, every fiftieth is an evaluation."""
    every = np.where(np.arange(steps) % 2, 2, 1) * np.where(np.arange(steps) % 50 == 0, 30, 1)
    return normal(0.05)(chance, steps, ranks) * every[:, None]


NOISES: dict[str, Noise] = {
    "1 %": normal(0.01),
    "10 %": normal(0.1),
    "20 %": normal(0.2),
    "50 %": normal(0.5),
    "heavy tails": heavy_tails,
    "correlated": correlated,
    "collections": collections,
    "all at once": all_at_once,
}
WINDOWS = {2: 150, 3: 150, 8: 100, 64: 30, 4096: 3}
"""Size of the job → windows that are simulated."""


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("size", WINDOWS)
def test_noise_raises_no_alarm(noise: str, size: int) -> None:
    """The rate, from how often a rank is slow in one window: it has to be so in `ROW` windows of `WINDOW` steps in a row.

    p may be at most ∛(10⁻⁵ × WINDOW / size): then there is less than one false alarm in 10⁵ steps, if the windows of a rank are
    independent. Those of correlated noise are not quite: alarms themselves are looked for as well.
    """
    windows = WINDOWS[size]
    times = NOISES[noise](np.random.default_rng(7), windows * WINDOW, size).reshape(windows, WINDOW, size)
    slow = np.array([judge(window, STEPS)[2] for window in times])
    allowed = (1e-5 * WINDOW / size) ** (1 / ROW)
    assert slow.mean() <= allowed
    assert not np.any(slow[2:] & slow[1:-1] & slow[:-2])


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["10 %", "50 %", "heavy tails", "correlated"])
@pytest.mark.parametrize("size", [2, 8])
def test_no_alarm_in_a_hundred_thousand_steps(noise: str, size: int) -> None:
    chance, rows = np.random.default_rng(11), np.zeros(size)
    for _ in range(50):
        times = NOISES[noise](chance, 100 * WINDOW, size)
        for window in times.reshape(100, WINDOW, size):
            rows = np.where(judge(window, STEPS)[2], rows + 1, 0)
            assert rows.max() < ROW


def found_after(times: Times, *, step_seconds: float = 1.0, rule: Rule = STEPS) -> dict[int, int]:
    """Rank → how many steps of the job had been seen when it was found."""
    comparison, found, now = Comparison(times.shape[1], rule), {}, 0.0
    for step, row in enumerate(times):
        for rank, seconds in enumerate(row):
            comparison.add(rank, step, seconds * step_seconds, now)
        now += step_seconds
        found.update({each.rank: step + 1 for each in comparison.close(now)})
    return found


def test_a_rank_that_takes_half_as_long_again_is_found_within_four_windows() -> None:
    for size in (2, 3, 4, 8, 64):
        for noise in ("1 %", "heavy tails", "collections", "all at once"):
            times = NOISES[noise](np.random.default_rng(size), 150, size)
            times[37:, size - 1] *= 1.5
            found = found_after(times)
            assert list(found) == [size - 1], (size, noise)
            assert found[size - 1] <= 37 + (ROW + 1) * WINDOW


def test_one_of_thousands_is_found_in_every_window() -> None:
    times = normal(0.1)(np.random.default_rng(3), WINDOW, 4096)
    times[:, 77] *= 1.5
    usual, levels, slow = judge(times, STEPS)
    assert list(np.flatnonzero(slow)) == [77]
    assert usual == pytest.approx(1, rel=0.05)
    assert levels[77] == pytest.approx(1.5, rel=0.15)


def test_one_slow_step_is_no_straggler_nor_is_a_slow_minute() -> None:
    times = normal(0.05)(np.random.default_rng(5), 400, 8)
    times[100, 3] = 1000.0
    times[200:250, 3] *= 3
    assert found_after(times) == {}
    times[300:, 3] *= 3
    assert list(found_after(times)) == [3]


def test_fast_steps_are_watched_for_long_enough() -> None:
    """A window takes ten seconds at least, so what is slow for a second is not found."""
    times = normal(0.05)(np.random.default_rng(5), 6000, 4)
    times[1000:1200, 1] *= 3
    assert found_after(times, step_seconds=0.01) == {}
    times[1000:, 1] *= 3
    found = found_after(times, step_seconds=0.01)
    assert list(found) == [1]
    assert found[1] <= 1000 + (ROW + 1) * STEPS.seconds / 0.01


def test_work_that_is_divided_unequally_is_no_straggler() -> None:
    times = normal(0.05)(np.random.default_rng(5), 200, 8)
    assert found_after(times * np.array([1, 1, 1, 1, 1, 1, 1.5, 1.5])) == {}
    assert found_after(times * np.array([1, 1.4, 1, 1.4, 1, 1.4, 1, 1.4])) == {}
    assert found_after(times * np.linspace(1, 2, 8)) == {}


def test_a_little_slower_is_not_slow() -> None:
    times = normal(0.01)(np.random.default_rng(5), 200, 8)
    times[:, 2] *= 1.25
    assert found_after(times) == {}


def test_a_straggler_is_told_once_until_it_has_recovered() -> None:
    times = normal(0.01)(np.random.default_rng(5), 400, 4)
    times[:200, 2] *= 2
    comparison, told, slow = Comparison(4, STEPS), [], []
    for step, row in enumerate(np.concatenate([times, times])):
        for rank, seconds in enumerate(row):
            comparison.add(rank, step, seconds, float(step))
        told += [(step, each) for each in comparison.close(float(step))]
        slow.append(comparison.slow)
    assert [(step, each.rank) for step, each in told] == [(59, 2), (459, 2)]
    assert (slow[58], slow[59], slow[199], slow[230]) == (set(), {2}, {2}, set())
    found = told[0][1]
    assert found.ratio == pytest.approx(2, rel=0.02)
    assert found.usual == pytest.approx(1, rel=0.02)
    assert found.since == 0.0


def test_with_wall_times_of_collectives_nobody_sticks_out() -> None:
    times = normal(0.05)(np.random.default_rng(5), 200, 4)
    times[:, 2] *= 2
    assert found_after(np.broadcast_to(times.max(axis=1, keepdims=True), times.shape)) == {}


# --- heartbeats


def look(stragglers: Stragglers, times: list[float], step: int, now: float, **other: list) -> list[Straggler]:
    beats = [
        beat(rank, step=step, step_seconds=seconds, **{name: values[rank] for name, values in other.items()})
        for rank, seconds in enumerate(times)
    ]
    return stragglers.seen(beats, now)


def test_looks_that_see_a_step_twice_or_miss_some_still_tell() -> None:
    stragglers, found = Stragglers(4), []
    for number in range(400):
        found += look(stragglers, [1, 1, 1.6, 1], step=number // 2 * 3, now=number * 0.5)
    assert [(each.rank, each.what) for each in found] == [(2, "step")]
    assert stragglers.slow == {2}


def test_ranks_that_run_apart_are_compared_by_their_steps() -> None:
    """Nothing holds them together, so the slow one is at step 100 when the others are at 160."""
    stragglers, found = Stragglers(3), []
    for now in range(200):
        steps = [now, now, int(now / 1.6)]
        beats = [beat(rank, step=step, step_seconds=1.6 if rank == 2 else 1.0) for rank, step in enumerate(steps)]
        found += stragglers.seen(beats, float(now))
    assert [each.rank for each in found] == [2]


def test_steps_that_were_seen_of_a_slow_rank_alone_do_not_hide_it() -> None:
    comparison, found = Comparison(3, STEPS), []
    for step in range(300):
        for rank in range(3):
            if rank == 2 or step % 3 == 0:
                comparison.add(rank, step, 1.6 if rank == 2 else 1.0, float(step))
        found += comparison.close(float(step))
    assert [each.rank for each in found] == [2]


def test_a_rank_that_tells_no_times_stops_the_comparison_and_costs_no_memory() -> None:
    stragglers = Stragglers(3)
    for step in range(5000):
        beats = [beat(0, step=step, step_seconds=1.0), beat(1, step=step, step_seconds=9.0), beat(2, step=step)]
        assert stragglers.seen(beats, float(step)) == []
    assert len(stragglers._steps._times) <= 100 * WINDOW


def test_one_rank_alone_is_compared_with_nobody() -> None:
    stragglers = Stragglers(1)
    assert [look(stragglers, [1.0 + step], step, float(step)) for step in range(100)] == [[]] * 100


def test_saves_that_stop_one_rank_for_longer() -> None:
    stragglers, found = Stragglers(4), []
    for save in range(1, 20):
        blocked = [save * 2.0, save * 2.1, save * 5.0, save * 2.0]
        found += look(stragglers, [1.0] * 4, save * 10, save * 60.0, blocked=blocked)
    assert [(each.rank, each.what) for each in found] == [(2, "save")]
    assert found[0].ratio == pytest.approx(2.5)
    assert found[0].usual == pytest.approx(2.0)


def test_milliseconds_in_saves_do_not_count() -> None:
    stragglers = Stragglers(2)
    for save in range(1, 20):
        assert look(stragglers, [1.0] * 2, save, save * 60.0, blocked=[save * 0.01, save * 0.02]) == []
    assert SAVES.excess > 0


@pytest.mark.parametrize("times", [(2e-5, 3e-5), (0.0, 1e-3)])
def test_what_is_next_to_nothing_of_a_step_holds_up_nobody(times: tuple[float, float]) -> None:
    watched, found = Stragglers(2), list[Straggler]()
    for step in range(200):
        found += watched.seen([beat(rank, step=step, step_seconds=each) for rank, each in enumerate(times)], float(step))
    assert found == []
