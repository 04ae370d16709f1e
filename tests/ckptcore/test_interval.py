"""How often to save: the published values, the model's own words as a simulation, and what cannot be."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptcore.interval import Costs, best_period, curve, daly, exact, goodput, young
from tests.processes import ROOT

ASYNCHRONOUS = Costs(blocking=1, persist=60, slowdown=0.05, restart=120, downtime=60)
MTBF = 10800.0


@pytest.mark.parametrize(
    ("cost", "mtbf", "by_young", "by_daly", "exactly"),
    [(5, 1440, 120, 116.689815, 116.690073), (5, 360, 60, 56.712963, 56.714002), (5, 15, 12.2474, 9.140920, 9.166503)],
)
def test_published_values(cost: float, mtbf: float, by_young: float, by_daly: float, exactly: float) -> None:
    assert young(cost, mtbf) == pytest.approx(by_young, abs=5e-5)
    assert daly(cost, mtbf) == pytest.approx(by_daly, abs=5e-7)
    assert exact(cost, mtbf) == pytest.approx(exactly, abs=5e-7)


def test_an_asynchronous_save() -> None:
    assert ASYNCHRONOUS.counted == 4
    period = best_period(ASYNCHRONOUS, MTBF)
    assert period == pytest.approx(295.278, abs=5e-4)
    assert goodput(period, ASYNCHRONOUS, MTBF) == pytest.approx(0.95165, abs=5e-6)


def test_a_period_that_is_kept_is_one_that_was_committed() -> None:
    """The model word by word: between two failures the k-th period counts if its save is committed before the second."""
    costs, period = ASYNCHRONOUS, best_period(ASYNCHRONOUS, MTBF)
    between = np.random.default_rng(7).exponential(MTBF, 2_000_000)
    periods = np.maximum(np.floor((between - costs.downtime - costs.restart - costs.persist) / period), 0)
    simulated = (period - costs.counted) * periods.sum() / between.sum()
    assert simulated == pytest.approx(goodput(period, costs, MTBF), abs=1e-4)  # its standard error is about 1e-5


class Training:
    """A job that trains, saves in the background, fails and goes on from its newest commit; a piece of time after another."""

    def __init__(self, costs: Costs, mtbf: float, period: float, chance: random.Random) -> None:
        self.costs, self.mtbf, self.period, self.chance = costs, mtbf, period, chance
        self.left = chance.expovariate(1 / mtbf)
        self.time = self.kept = 0.0

    def spend(self, seconds: float) -> bool:
        """Whether that long passes without a failure."""
        alive = seconds < self.left
        self.time += seconds if alive else self.left
        self.left = self.left - seconds if alive else self.chance.expovariate(1 / self.mtbf)
        return alive

    def until_failure(self) -> None:
        costs = self.costs
        if not self.spend(costs.downtime) or not self.spend(costs.restart):
            return
        full, done, persisting = self.period - costs.blocking, self.kept, False
        while True:
            if persisting:
                captured = done
                if not self.spend(costs.persist):
                    return
                self.kept, done = captured, done + (1 - costs.slowdown) * costs.persist
            rest = full - costs.persist if persisting else full
            if not self.spend(rest):
                return
            done += rest
            if not self.spend(costs.blocking):
                return
            persisting = True


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_goodput_is_what_a_job_gets_that_lives_it(factor: float) -> None:
    period = factor * best_period(ASYNCHRONOUS, MTBF)
    training = Training(ASYNCHRONOUS, MTBF, period, random.Random(11))
    failures = 4000
    for _ in range(failures):
        training.until_failure()
    found, told = training.kept / training.time, goodput(period, ASYNCHRONOUS, MTBF)
    # The spread of one failure's loss is below `period` and the time between two of them about the MTBF.
    deviation = 6 * (period + 180) / MTBF / math.sqrt(failures)
    assert told - deviation < found < told + deviation + 0.05 * 60 / MTBF
    assert found < goodput(best_period(ASYNCHRONOUS, MTBF), ASYNCHRONOUS, MTBF) + deviation


@given(
    st.floats(0.01, 600), st.floats(0, 3600), st.floats(0, 0.5), st.floats(600, 1e7), st.floats(0.05, 20).filter(lambda f: f != 1)
)
def test_no_other_period_is_better(blocking: float, persist: float, slowdown: float, mtbf: float, factor: float) -> None:
    costs = Costs(blocking=blocking, persist=persist, slowdown=slowdown)
    best = best_period(costs, mtbf)
    assert best >= costs.shortest
    other = max(best * factor, costs.shortest)
    assert goodput(other, costs, mtbf) <= goodput(best, costs, mtbf) * (1 + 1e-9)


def test_the_persist_time_bounds_the_period_from_below() -> None:
    assert best_period(Costs(blocking=1, persist=900, slowdown=0.001), 3600) == 901
    assert best_period(Costs(blocking=1, persist=10, slowdown=0.001), 3600) == pytest.approx(85.614, abs=0.001)


def test_a_save_that_blocks_is_the_same_with_nothing_in_the_background() -> None:
    costs = ASYNCHRONOUS.synchronous
    assert (costs.blocking, costs.persist, costs.counted) == (61, 0, 61)
    assert best_period(costs, MTBF) == exact(61, MTBF) + 61
    assert goodput(best_period(costs, MTBF), costs, MTBF) < goodput(best_period(ASYNCHRONOUS, MTBF), ASYNCHRONOUS, MTBF)


def test_a_curve_has_its_top_in_the_middle() -> None:
    found = curve(ASYNCHRONOUS, MTBF)
    periods = [period for period, _ in found]
    assert periods == sorted(periods)
    assert periods[0] >= ASYNCHRONOUS.shortest
    assert max(found, key=lambda point: point[1])[0] == pytest.approx(best_period(ASYNCHRONOUS, MTBF))


def test_what_hardly_ever_works() -> None:
    assert daly(100, 10) == exact(1e6, 10) == 10
    assert goodput(1e6, Costs(blocking=1), 10) == 0
    assert exact(0, 10) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: Costs(blocking=-1),
        lambda: Costs(blocking=math.nan),
        lambda: Costs(blocking=1, persist=math.inf),
        lambda: Costs(blocking=1, slowdown=1),
        lambda: young(1, 0),
        lambda: exact(-1, 10),
        lambda: goodput(5, Costs(blocking=1, persist=9), 100),
        lambda: goodput(0, Costs(blocking=0), 100),
    ],
)
def test_what_cannot_be_is_refused(call: Any) -> None:
    with pytest.raises(CallError):
        call()


def test_without_scipy_the_extra_is_named() -> None:
    program = "import sys; sys.modules['scipy.special'] = None\nfrom ckptcore import interval; interval.exact(1, 100)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: the best interval needs scipy: pip install 'jaxckpt[interval]'" in done.stderr


@pytest.mark.parametrize("ratio", [1e-300, 1e-20, 1e-16, 1e-12, 1e-9, 1.1e-9, 1e-8])
def test_a_save_that_costs_next_to_nothing(ratio: float) -> None:
    """Beside W's branch point a double cannot hold its argument; there the first order is exact."""
    assert exact(ratio, 1.0) == pytest.approx(young(ratio, 1.0), rel=1e-3)
