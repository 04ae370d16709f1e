"""How often to save: the interval that wastes the least, by Young, by Daly, and exactly. Pure.

Times are seconds here (any one unit will do, if all are in it). Failures come at random, at a constant rate of one in `mtbf`.

The model. A running job makes periods of length T. Each ends with a snapshot that stops training for `blocking`; the data is
made durable during the first `persist` of the next period, in which training runs slower by the fraction `slowdown`.
So T of time does T − c of work, with the *cost that counts* c = blocking + slowdown × persist. After a failure
`downtime` passes until somebody begins again and `restart` until training runs; a failure in there begins that anew. Of what a
job does between two failures, X apart, the k-th period is kept if X ≥ downtime + restart + kT + persist. X is exponential,
so the expected number of periods kept is the sum over k ≥ 1 of exp(−(downtime + restart + persist + kT) / mtbf), and

    goodput(T) = (T − c) / (mtbf (exp(T / mtbf) − 1)) × exp(−(persist + restart + downtime) / mtbf),

the share of all time that becomes work which no failure takes back. With `persist` = 0 this is Daly's model of a save that
blocks. The first factor alone depends on T, so T* = c + mtbf (1 + W(−exp(−1 − c / mtbf))), with the principal branch of
Lambert's W. A save waits for the one before: T is at least blocking + persist, and since the first factor has one maximum,
the best T is the larger of the two. (The first period after a restart has no save under way: the formula is too low by at most
slowdown × persist / mtbf.)

Young: A first order approximation to the optimum checkpoint interval, CACM 17 (1974). Daly: A higher order estimate of the
optimum checkpoint interval for restart dumps, FGCS 22 (2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ckptcore.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What saves and failures cost, in seconds; `slowdown` is a fraction of training's speed.

    `blocking`: a snapshot stops training for that long. `persist`: from there until the save is committed. `slowdown`: how much
    slower training is meanwhile (0.05: 5 %). `restart`: from the start of a job until it trains. `downtime`: from a failure until
    that start. Raises `CallError` for what cannot be.
    """

    blocking: float
    persist: float = 0.0
    slowdown: float = 0.0
    restart: float = 0.0
    downtime: float = 0.0

    def __post_init__(self) -> None:
        for name in ("blocking", "persist", "restart", "downtime"):
            if not 0 <= getattr(self, name) < math.inf:
                raise CallError(f"{name}={getattr(self, name)!r}: expected seconds, not negative")
        if not 0 <= self.slowdown < 1:
            raise CallError(f"slowdown={self.slowdown!r}: expected a fraction of training's speed, 0 to 1 (0.05 is 5 %)")

    @property
    def counted(self) -> float:
        """The cost that counts: what one save takes from training."""
        return self.blocking + self.slowdown * self.persist

    @property
    def shortest(self) -> float:
        """The shortest period: a save waits for the one before."""
        return self.blocking + self.persist

    @property
    def synchronous(self) -> Costs:
        """The costs if training stopped until the save is committed."""
        return Costs(blocking=self.blocking + self.persist, restart=self.restart, downtime=self.downtime)


def young(cost: float, mtbf: float) -> float:
    """Young's interval between saves, without the save itself: √(2 cost mtbf)."""
    _check(cost, mtbf)
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher order interval, without the save itself.

    √(2 cost mtbf) (1 + √(cost / 2 mtbf) / 3 + (cost / 2 mtbf) / 9) − cost; the MTBF itself where the cost is twice that or more.
    """
    _check(cost, mtbf)
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return young(cost, mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def exact(cost: float, mtbf: float) -> float:
    """The interval, without the save itself, that is best in this model: mtbf (1 + W(−exp(−1 − cost / mtbf))).

    Raises `ImportError` where scipy is not installed.
    """
    _check(cost, mtbf)
    if (
        cost < 1e-9 * mtbf
    ):  # next to W's branch point, where a double cannot tell −exp(−1 − x) from −1/e: the first order is exact
        return young(cost, mtbf)
    return mtbf * (1 + float(lambert()(-math.exp(-1 - cost / mtbf)).real))


def best_period(costs: Costs, mtbf: float) -> float:
    """The period T from one save to the next that is best, the save included. Raises `ImportError` without scipy."""
    return max(exact(costs.counted, mtbf) + costs.counted, costs.shortest)


def goodput(period: float, costs: Costs, mtbf: float) -> float:
    """The share of all time that becomes work which no failure takes back, saving every `period` seconds; 0 to 1."""
    _check(costs.counted, mtbf)
    if not costs.shortest <= period < math.inf or period == 0:
        raise CallError(f"period={period!r}: a save and the wait for the one before take {costs.shortest:g} s")
    after_failure = costs.persist + costs.restart + costs.downtime
    exponent = (period + after_failure) / mtbf
    if exponent > 700:
        return 0.0
    kept = (period - costs.counted) / (mtbf * math.expm1(period / mtbf))
    return kept * math.exp(-after_failure / mtbf)


def curve(costs: Costs, mtbf: float, *, points: int = 61, spread: float = 16.0) -> list[tuple[float, float]]:
    """`(period, goodput)` around the best period, from a `spread`-th of it to `spread` times it, evenly on a logarithmic axis."""
    best = best_period(costs, mtbf)
    periods = (best * spread ** (2 * number / (points - 1) - 1) for number in range(points))
    return [(period, goodput(period, costs, mtbf)) for period in periods if period >= costs.shortest and period > 0]


def lambert() -> Callable[..., complex]:
    """Lambert's W. Raises `ImportError` that names the extra."""
    try:
        from scipy.special import lambertw  # noqa: PLC0415 -- only who asks for the optimum needs it
    except ImportError as error:
        raise ImportError("the best interval needs scipy: pip install 'jaxckpt[interval]'") from error
    return lambertw


def _check(cost: float, mtbf: float) -> None:
    if not 0 < mtbf < math.inf:
        raise CallError(f"mtbf={mtbf!r}: expected the mean time between failures of the whole job, in seconds")
    if not 0 <= cost < math.inf:
        raise CallError(f"cost={cost!r}: expected seconds, not negative")
