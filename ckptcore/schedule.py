"""When to save: rules whose answer is the same on every rank. Pure.

A rule by steps is evaluated by each rank alone. A rule by seconds rests on a measurement,
and clocks differ: rank 0 computes the next step to save at and announces it, as a future step.
So it is with the best interval, which rests on what saves cost as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ckptcore import interval
from ckptcore.errors import CallError

SHORTEST = 1e-3
"""The shortest time between saves that is computed, in seconds: one that costs nothing would be best made all the time."""


@dataclass(frozen=True)
class Every:
    """Save every `steps` steps, every `seconds` seconds, or whichever comes first.

    Raises `CallError` unless at least one is given, and both are positive.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise CallError("Every() needs `steps` or `seconds`")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise CallError(f"Every(steps={self.steps!r}): expected a positive integer")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise CallError(f"Every(seconds={self.seconds!r}): expected a positive number of seconds")

    @property
    def is_measured(self) -> bool:
        """Whether the rule needs rank 0's announcement."""
        return self.seconds is not None

    def due(self, step: int) -> bool:
        """Whether the rule by steps asks for a save after `step` completed updates."""
        return self.steps is not None and step > 0 and step % self.steps == 0

    def next_step(self, step: int, elapsed_since_last_save_s: float, step_seconds: float) -> int:
        """The next step, later than `step`, to save at.

        `step_seconds` is the time a step takes, 0 while it is unknown: then the very next step is chosen by a rule
        by seconds, since saving early costs little and a guess might never come.
        """
        choices = []
        if self.steps is not None:
            choices.append((step // self.steps + 1) * self.steps)
        if self.seconds is not None:
            left = self.seconds - elapsed_since_last_save_s
            choices.append(step + (max(1, math.ceil(left / step_seconds)) if step_seconds > 0 else 1))
        return min(choices)


@dataclass(frozen=True)
class Optimal:
    """Save as often as wastes the least, by what saves of this job cost and how often it fails (`ckptcore.interval`).

    Times are in seconds. `mtbf`: the mean time between failures of the whole job; of N nodes that of one divided by N.
    `slowdown`: how much slower training is while a save is written, as a fraction (0.05 is 5 %). `blocking` and `persist`:
    what a save is taken to cost until the first has ended: how long it stops training, and how long it is written after that.
    From then on what the newest save cost on rank 0 counts. `restart` and `downtime`, from a failure until training goes on,
    do not move the optimum, but the goodput that the log is told. Raises `CallError` for numbers that cannot be, `ImportError`
    without scipy (the extra `interval`).
    """

    mtbf: float
    slowdown: float = 0.0
    restart: float = 0.0
    downtime: float = 0.0
    blocking: float = 1.0
    persist: float = 60.0

    def __post_init__(self) -> None:
        self.seconds(self.costs())

    def costs(self, blocking: float | None = None, persist: float | None = None) -> interval.Costs:
        """What saves cost: as measured, what is not known yet as assumed."""
        return interval.Costs(
            blocking=self.blocking if blocking is None else blocking,
            persist=self.persist if persist is None else persist,
            slowdown=self.slowdown,
            restart=self.restart,
            downtime=self.downtime,
        )

    def seconds(self, costs: interval.Costs) -> float:
        """The time from one save to the next."""
        return max(interval.best_period(costs, self.mtbf), SHORTEST)

    def goodput(self, costs: interval.Costs) -> float:
        """The share of all time that becomes work which no failure takes back."""
        return interval.goodput(self.seconds(costs), costs, self.mtbf)
