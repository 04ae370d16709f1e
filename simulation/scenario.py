"""From a seed to a world: which store, which jobs, who else, and what may go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulation.faults import KINDS
from simulation.job import JobPlan, Start
from simulation.world import Kind

ARRAYS_EVERY = 8
"""One seed in so many has arrays: they are real TensorStore databases, which take most of a run's time."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What one seed stands for."""

    seed: int
    kind: Kind
    arrays: bool
    past: int
    """How many incarnations the run has had before."""
    frozen: bool
    kinds: tuple[str, ...]
    rate: float
    jobs: tuple[JobPlan, ...]
    collectors: int
    readers: int
    operators: int
    quarantine: bool
    within: float
    """Seconds in which everybody begins."""
    horizon: float
    """Seconds after which faults stop."""
    operations: int
    """Operations of the store after which they stop at the latest."""
    last: Start = field(default_factory=lambda: Start(size=1, saves=1, final=True))
    finishers: int = 0

    @property
    def everybody(self) -> tuple[str, ...]:
        """The names of all who take part."""
        jobs = tuple(job.name for job in self.jobs)
        return (
            *jobs,
            *(f"collector{number}" for number in range(self.collectors)),
            *(f"reader{number}" for number in range(self.readers)),
            *(f"operator{number}" for number in range(self.operators)),
            *(f"finisher{number}" for number in range(self.finishers)),
        )


def draw(seed: int, chance: random.Random) -> Scenario:
    """The scenario of a seed. A part of the kinds of faults, so that none hides behind another."""
    race = chance.random() < 0.3  # a rollback and a collection at once
    arrays, frozen = seed % ARRAYS_EVERY == 0, chance.random() < 0.3
    within = 1.0 if race else chance.choice([1.0, 20.0, 100.0])
    jobs = tuple(
        _job(name, chance, within, arrays=arrays, frozen=frozen, race=race)
        for name in ("a", "b", "c")[: 1 if race else chance.choice([1, 1, 2, 2, 3])]
    )
    return Scenario(
        seed=seed,
        kind=chance.choice(["disk", "disk", "bucket"]),
        arrays=arrays,
        past=2 if race else chance.choice([0, 0, 1, 2]),
        frozen=frozen,
        kinds=tuple(kind for kind in KINDS if chance.random() < 0.6),
        rate=chance.choice([0.002, 0.006, 0.015, 0.03]),
        jobs=jobs,
        collectors=chance.choice([1, 2]) if race else chance.choice([0, 0, 1, 2]),
        readers=chance.choice([0, 0, 0, 1]),
        operators=chance.choice([0, 0, 0, 1]),
        quarantine=chance.random() < 0.5,
        within=within,
        horizon=chance.choice([60.0, 200.0, 600.0]),
        operations=chance.choice([100, 200, 300, 500]),
        last=Start(size=chance.choice([1, 1, 2]), saves=1, arrays=arrays, final=True),
        finishers=chance.choice([0, 0, 1, 2]),
    )


def _job(name: str, chance: random.Random, within: float, *, arrays: bool, frozen: bool, race: bool) -> JobPlan:
    begins = within * chance.random()
    launches = tuple(
        _start(chance, arrays=arrays, frozen=frozen, rolls=1.0 if race else 0.3) for _ in range(chance.choice([1, 2, 3]))
    )
    return JobPlan(
        name=name, begins=begins, launches=launches, patience=chance.choice([30.0, 100.0, 300.0]), mercy=chance.choice([0.1, 0.6])
    )


def _start(chance: random.Random, *, arrays: bool, frozen: bool, rolls: float) -> Start:
    rollback = 10 * chance.choice([1, 2, 3]) if chance.random() < rolls else None
    return Start(
        size=chance.choice([1, 1, 2, 2, 3]),
        saves=chance.choice([1, 2, 4]),
        timeout=chance.choice([5.0, 30.0]),
        keep=chance.choice([None, 2, 2, 3]),
        rollback=rollback,
        fragile=chance.random() < 0.5,
        weights=chance.choice([0, 0, 3]),
        frozen=frozen,
        arrays=arrays,
        pace=chance.choice([0.5, 5.0, 20.0]),
    )
