"""One seed, from the first operation to the last check."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ckptcore.names import GenerationId
from simulation import others
from simulation.contents import Contents
from simulation.faults import Injected, RandomFaults
from simulation.job import Launch, supervise
from simulation.prepared import history
from simulation.scenario import Scenario, draw
from simulation.scheduler import Process
from simulation.service import Line
from simulation.violation import Violation
from simulation.world import World, alone

Setup = Callable[[World], None]
"""What is done to a world before anything runs in it, for tests: a store that breaks the rules, say."""


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What is left out of a seed's run to make it smaller. `only`: the operations at which faults may happen, None: all."""

    without: frozenset[str] = frozenset()
    """Kinds of faults, and names of those who take part."""
    only: frozenset[int] | None = None

    def arguments(self) -> str:
        """As options of the command line."""
        parts = [f"--without {','.join(sorted(self.without))}"] if self.without else []
        parts += [] if self.only is None else [f"--only {','.join(map(str, sorted(self.only))) or 'none'}"]
        return " ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `violation` is None if all invariants held."""

    seed: int
    scenario: Scenario
    violation: BaseException | None
    faults: tuple[Injected, ...]
    trace: tuple[Line, ...]
    counts: dict[str, int]
    operations: int
    seconds: float
    contents: tuple[tuple[str, bytes], ...] = field(repr=False, default=())

    @property
    def clause(self) -> str | None:
        """The clause that was violated."""
        if self.violation is None:
            return None
        return self.violation.clause if isinstance(self.violation, Violation) else type(self.violation).__name__


def run_seed(seed: int, reduced: Reduced = Reduced(), setup: Setup = lambda _: None) -> Outcome:
    """Run the world of a seed. Never raises for what it finds: see `Outcome.violation`."""
    chance = random.Random(seed)
    scenario = draw(seed, chance)
    kinds = [kind for kind in scenario.kinds if kind not in reduced.without]
    faults = RandomFaults(chance, scenario.rate, kinds, reduced.only)
    with alone():
        past = Contents(*history(scenario.past, arrays=scenario.arrays, frozen=scenario.frozen)) if scenario.past else Contents()
        world = World(chance, faults, scenario.kind, past)
        setup(world)
        violation: BaseException | None = None
        try:
            _play(world, scenario, faults, reduced.without)
        except (Exception, Violation) as error:  # noqa: BLE001 - a defect of whatever kind
            violation = error
        finally:
            world.scheduler.end()
    return Outcome(
        seed,
        scenario,
        violation,
        tuple(faults.injected),
        tuple(world.service.trace),
        world.judge.counts,
        faults.count,
        world.scheduler.now,
        tuple(world.contents.items()),
    )


def _play(world: World, scenario: Scenario, faults: RandomFaults, left_out: Collection[str]) -> None:
    _populate(world, scenario, left_out)
    world.run(lambda: world.over or world.scheduler.now > scenario.horizon or faults.count > scenario.operations)
    world.service.note("world", "quiet", outcome="faults stop here")
    faults.active = False
    quiet(world)
    world.run(lambda: world.over)
    finish(world, scenario)


def quiet(world: World) -> None:
    """Faults have stopped: the store answers again. Who stands still will wake up in time."""
    world.quiet = True
    world.service.full_until = 0.0
    for process in world.processes:
        process.cut_off_until = 0.0


def finish(world: World, scenario: Scenario) -> None:
    """A last job opens the run, saves, and ends; then a collection, and a reader. All of that must work."""
    last = Launch(world, "last", scenario.last)
    world.service.note("world", "launch", "last")
    began = world.scheduler.now
    last.begin()
    world.run(lambda: last.over)
    if not any(rank.session for rank in last.ranks) and world.judge.oracle.head() is None and world.judge.oracle.marked:
        return  # everything is marked: a job must not silently begin anew (P-17)
    for rank in last.ranks:
        if not rank.finished:
            raise Violation("P-55", f"after the faults {rank.process.name} fails: {type(rank.error).__name__}: {rank.error}")
    if world.scheduler.now - began > 1000.0:
        raise Violation("P-55", f"after the faults a job takes {world.scheduler.now - began:.0f} s")
    number = last.ranks[0].process.incarnation or 0
    saved = last.ranks[0].latest
    after = scenario.seed % 4
    if after == 0:
        _alone(world, "collector", others.collect_once)
    elif after == 1:
        _alone(world, "collector", lambda world, process: others.collect_as(world, process, number))
    elif after == 2:
        _alone(world, "reader", others.restore_newest)
    world.judge.final(GenerationId.parse(str(saved.generation)) if saved else None)


def _alone(world: World, role: str, body: Callable[[World, Process], Any]) -> None:
    process = world.process(f"last-{role}", role)
    process.spawn("", lambda: body(world, process))
    world.run(lambda: world.over)


def _populate(world: World, scenario: Scenario, left_out: Collection[str]) -> None:
    for plan in scenario.jobs:
        process = world.process(f"job-{plan.name}", "supervisor")
        if plan.name not in left_out:
            process.spawn("", partial(supervise, world, plan, process))
    crowd = [
        ("collector", scenario.collectors, partial(others.collect, times=3, keep=2, every=2.0 * scenario.within)),
        ("reader", scenario.readers, partial(others.read, times=3, every=2.0 * scenario.within)),
        (
            "operator",
            scenario.operators,
            partial(others.operate, times=4, every=2.0 * scenario.within, quarantine=scenario.quarantine),
        ),
        ("finisher", scenario.finishers, partial(others.finish, times=12, every=0.3 * scenario.within)),
    ]
    for role, count, body in crowd:
        for number in range(count):
            process = world.process(f"{role}{number}", role)
            if process.name not in left_out:
                process.spawn("", partial(body, world, process))
