"""What a finished job left behind, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demo.compare import Check, array_differences, identical, percent, step_differences
from demo.processes import Launch
from demo.run_log import RankLog


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished job: every rank's log, and every rank's final shards, named `rank R ['component']…[box]`."""

    logs: list[RankLog]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, launch: Launch) -> Outcome:
        """Wait for the end of a job and read what it left."""
        logs = launch.finish()
        arrays: dict[str, np.ndarray] = {}
        for rank in range(launch.job.ranks):
            with np.load(launch.job.final(rank)) as stored:
                arrays |= {f"rank {rank} {name}": stored[name] for name in stored}
        return cls(logs=logs, arrays=arrays)

    def arrays_of(self, rank: int) -> dict[str, np.ndarray]:
        """What one rank left, by the names that it gave."""
        return {key.split(" ", 2)[2]: array for key, array in self.arrays.items() if key.startswith(f"rank {rank} ")}

    def component(self, name: str) -> dict[str, np.ndarray]:
        """The final shards of one component."""
        return {key: array for key, array in self.arrays.items() if key.split(" ", 2)[2].startswith(f"['{name}']")}


def bit_identical(reference: Outcome, outcome: Outcome, wreck: Sequence[RankLog]) -> list[Check]:
    """The final state and every step on every rank: `wreck` is what was logged up to the kill, `outcome` what came after."""
    return [
        _final("parameters", "params", reference, outcome),
        _final("optimizer moments and count", "optimizer", reference, outcome),
        _final("random key", "rng", reference, outcome),
        *_steps(reference.logs, outcome.logs, wreck),
        _ends(reference.logs, outcome.logs),
    ]


def batches(logs: Sequence[RankLog]) -> dict[int, list[int]]:
    """Step → the samples of the global batch, in rank order, of the steps that every rank logged."""
    steps = set.intersection(*(set(log.steps) for log in logs))
    return {step: [sample for log in logs for sample in log.steps[step].samples] for step in sorted(steps)}


def _final(title: str, component: str, reference: Outcome, outcome: Outcome) -> Check:
    expected, given = reference.component(component), outcome.component(component)
    values = sum(array.size for array in expected.values())
    differences = array_differences(expected, given) if expected else ["there is nothing to compare"]
    return identical(title, differences, f"{len(expected)} shards, {values:,} values, bit-identical")


def _steps(reference: Sequence[RankLog], resumed: Sequence[RankLog], wreck: Sequence[RankLog]) -> list[Check]:
    found: dict[str, list[str]] = {"loss": [], "rng": [], "samples": []}
    for rank, (expected, before, after) in enumerate(zip(reference, wreck, resumed, strict=True)):
        for log in (before, after):
            for name, differences in step_differences(expected.steps, log.steps).items():
                found[name] += [f"rank {rank} {difference}" for difference in differences]
        never_run = sorted(expected.steps.keys() - before.steps.keys() - after.steps.keys())
        for differences in found.values():
            differences += [f"rank {rank} never ran step {step}" for step in never_run]
    twice = len(wreck[0].steps.keys() & resumed[0].steps.keys())
    detail = f"{len(reference[0].steps)} steps on {len(reference)} ranks, {twice} of them run twice: identical"
    titles = {"loss": "losses", "rng": "random key of every step", "samples": "sample IDs"}
    return [identical(title, found[name], detail) for name, title in titles.items()]


def _ends(reference: Sequence[RankLog], resumed: Sequence[RankLog]) -> Check:
    expected, given = ([(log.cursor, log.accuracy) for log in logs] for logs in (reference, resumed))
    differences = [
        f"rank {rank} ended with {ours} instead of {theirs}"
        for rank, (theirs, ours) in enumerate(zip(expected, given, strict=True))
        if theirs != ours or None in ours
    ]
    position, accuracy = (resumed[0].cursor or {}).get("position"), resumed[0].accuracy or 0.0
    detail = f"position {position}, accuracy {percent(accuracy)}, identical"
    return identical("data cursor and test accuracy", differences, detail)
