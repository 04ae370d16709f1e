"""When to save: rules whose answer is the same on every rank. Pure.

A rule by steps is evaluated by each rank alone. A rule by seconds rests on a measurement,
and clocks differ: rank 0 computes the next step to save at and announces it, as a future step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ckptcore.errors import CallError


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
