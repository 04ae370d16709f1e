"""Which ranks are slow, by their own times for the same steps. Pure: times are arguments.

A collective makes the wall time of a step the same on all ranks: the fast ones wait in it. So only a rank's own time tells,
which a training loop says with `heartbeat(seconds=…)`; without that nobody sticks out, and nobody is found. The second measure is
for how long saves stop a rank.

Each step's times are divided by the group's median for that step, so steps that are slow for all (evaluations, an optimizer's
step after several backward passes) do not count. A rank's level is the median of these ratios over a window: outliers do
not move it. A rank is slow in a window if its level is at least `ratio`, and stands out by `CLEAR` times the noise: that of its
own ratios and of the levels of all ranks. If more than an eighth of all ranks are slow, it is how the work is divided, as between
the stages of a pipeline. A straggler is slow in `ROW` windows in a row, so it is found after `ROW + 1` windows at most; what is
slow for as long as that by chance is found as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ckptcore.heartbeat import Beat

CLEAR = 3.0
"""Standard deviations by which a slow rank stands out."""
ROW = 3
"""Windows in a row."""

_SIGMA = 1.4826
"""A normal distribution's standard deviation, of its median absolute deviation."""
_MEDIAN = 1.2533
"""The standard error of a median, of that of a mean: √(π/2)."""

Times = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that has been slow for `ROW` windows in a row.

    `what`: `step` for its own time of a step, `save` for the time that a save stops it: no reason to replace it, since it may be
    waiting for others. In the newest window it was `ratio` times `usual`, the group's median in seconds. `since`: when the first
    of the windows began.
    """

    rank: int
    what: Literal["step", "save"]
    usual: float
    ratio: float
    since: float


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is compared. A window has `samples` steps or saves of the rank with the fewest, and takes `seconds` at least.

    `ratio`: a slow rank takes so many times the group's median at least, and `excess` seconds more than it, and `share` of the
    time from one step to the next: what a rank does alone may be a small part of that, and then it holds up nobody.
    """

    what: Literal["step", "save"]
    samples: int
    seconds: float
    ratio: float
    excess: float = 0.0
    share: float = 0.0


STEPS = Rule(what="step", samples=20, seconds=10.0, ratio=1.3, share=0.02)
SAVES = Rule(what="save", samples=3, seconds=0.0, ratio=2.0, excess=1.0)


class Stragglers:
    """Compares the ranks of one attempt. Show it every look at the heartbeats.

    Steps that are over between two looks are not seen; those that are suffice.
    """

    def __init__(self, size: int, *, steps: Rule = STEPS, saves: Rule = SAVES) -> None:
        self._steps, self._saves = Comparison(size, steps), Comparison(size, saves)
        self._blocked: dict[int, tuple[int, float]] = {}

    def seen(self, beats: Sequence[Beat], now: float) -> list[Straggler]:
        """Take a look at the newest beats; returns who has just been found to be a straggler: once, until it recovers."""
        for beat in beats:
            if beat.step is not None and beat.step_seconds is not None:
                self._steps.add(beat.rank, beat.step, beat.step_seconds, now)
            self._add_save(beat, now)
        return self._steps.close(now) + self._saves.close(now)

    @property
    def slow(self) -> frozenset[int]:
        """The ranks that are stragglers now."""
        return self._steps.slow | self._saves.slow

    def _add_save(self, beat: Beat, now: float) -> None:
        count, before = self._blocked.get(beat.rank, (0, 0.0))
        if beat.blocked > before:
            self._blocked[beat.rank] = (count + 1, beat.blocked)
            self._saves.add(beat.rank, count + 1, beat.blocked - before, now)


class Comparison:
    """One measure of all ranks, window by window."""

    def __init__(self, size: int, rule: Rule) -> None:
        self._size, self._rule = size, rule
        self._times: dict[int, dict[int, float]] = {}
        self._newest: dict[int, int] = {}
        self._closed = -1
        self._began: float | None = None
        self._rows: dict[int, tuple[int, float]] = {}

    @property
    def slow(self) -> frozenset[int]:
        """The ranks that have been slow in the last `ROW` windows."""
        return frozenset(rank for rank, (row, _) in self._rows.items() if row >= ROW)

    def add(self, rank: int, key: int, seconds: float, now: float) -> None:
        """`rank` took `seconds` for the step, or save, of number `key`. What is known already is passed over."""
        if key <= max(self._newest.get(rank, -1), self._closed) or not math.isfinite(seconds):
            return
        self._began = now if self._began is None else self._began
        self._newest[rank] = key
        self._times.setdefault(key, {})[rank] = seconds
        if len(self._times) > 100 * self._rule.samples:  # a rank that tells nothing closes no window
            del self._times[min(self._times)]

    def close(self, now: float) -> list[Straggler]:
        """Close the window if all ranks have got past `samples` of its steps; returns who has just become a straggler."""
        if self._began is None or now - self._began < self._rule.seconds or not 2 <= self._size <= len(self._newest):
            return []
        end = min(self._newest.values())
        rows = [times for key, times in self._times.items() if key <= end and 2 * len(times) > self._size]
        if len(rows) < self._rule.samples:
            return []
        pace = (now - self._began) / max(end - min(self._times), 1)
        rule = replace(self._rule, excess=max(self._rule.excess, self._rule.share * pace))
        usual, levels, slow = judge(self._matrix(rows), rule)
        found = self._count(slow, self._began)
        self._times = {key: times for key, times in self._times.items() if key > end}
        self._closed, self._began = end, now
        return [
            Straggler(rank=rank, what=self._rule.what, usual=usual, ratio=float(levels[rank]), since=self._rows[rank][1])
            for rank in found
        ]

    def _matrix(self, rows: Sequence[dict[int, float]]) -> Times:
        matrix = np.full((len(rows), self._size), np.nan)
        for row, times in zip(matrix, rows, strict=True):
            row[list(times.keys())] = list(times.values())
        return matrix

    def _count(self, slow: NDArray[np.bool_], began: float) -> list[int]:
        ranks = [int(rank) for rank in np.flatnonzero(slow)]
        before = {rank: self._rows.get(rank, (0, began)) for rank in ranks}
        self._rows = {rank: (row + 1, since) for rank, (row, since) in before.items()}
        return [rank for rank in ranks if self._rows[rank][0] == ROW]


def judge(times: Times, rule: Rule) -> tuple[float, Times, NDArray[np.bool_]]:
    """One window. `times`: seconds, a row a step, a column a rank, NaN where unknown; every row has one that is known.

    Returns the group's median of a step, and of each rank its level and whether it is slow.
    """
    group = np.maximum(_median(times, axis=1), 1e-9)
    known = np.count_nonzero(~np.isnan(times), axis=0)
    ratios = np.where(2 * known >= rule.samples, times / group, 1.0)
    levels = _median(ratios, axis=0)[0]
    own = _SIGMA * _MEDIAN * _median(np.abs(ratios - levels), axis=0)[0] / np.sqrt(np.maximum(known, 1))
    middle = _median(levels)
    noise = np.maximum(own, _SIGMA * _median(np.abs(levels - middle)))
    usual = float(_median(group[:, 0])[0])
    slow = (levels >= rule.ratio) & (levels - middle >= CLEAR * noise) & ((levels - 1) * usual >= rule.excess)
    is_minority = np.count_nonzero(slow) <= max(1, times.shape[1] // 8)
    return usual, levels, slow & is_minority


def _median(values: Times, axis: int = 0) -> Times:
    """Along `axis`, which stays; NaN does not count. Of an even number the lower one: of two ranks that of the faster."""
    count = np.count_nonzero(~np.isnan(values), axis=axis, keepdims=True)
    return np.take_along_axis(np.sort(values, axis=axis), np.maximum(count - 1, 0) // 2, axis=axis)
