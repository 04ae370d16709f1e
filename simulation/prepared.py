"""Runs that have a history already, so that a short simulation meets retention, references and rollbacks too."""

from __future__ import annotations

import random
from functools import cache

from simulation.contents import Contents
from simulation.faults import ScriptedFaults
from simulation.job import Launch, Start
from simulation.violation import Violation
from simulation.world import World, alone

Copy = tuple[dict[str, bytes], dict[str, bytes]]


@cache
def history(incarnations: int, *, arrays: bool, frozen: bool) -> Copy:
    """What is stored after so many incarnations of a job of two ranks without faults: three saves each, none retired."""
    with alone():
        return _history(incarnations, arrays=arrays, frozen=frozen)


def _history(incarnations: int, *, arrays: bool, frozen: bool) -> Copy:
    world = World(random.Random(0), ScriptedFaults({}), "disk", Contents())
    for number in range(incarnations):
        start = Start(size=2, saves=3, keep=None, arrays=arrays, frozen=frozen, weights=3 if number == 1 else 0)
        launch = Launch(world, f"past{number}", start)
        launch.begin()
        world.run(lambda launch=launch: launch.over)
        if not all(rank.finished for rank in launch.ranks):
            raise Violation("P-55", f"a job without faults fails: {launch.ranks[0].error}")
    return world.contents.copy()
