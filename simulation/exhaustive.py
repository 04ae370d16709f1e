"""Every moment of a save, of a settle and of a collection: a process dies there, in every way, and the job starts again.

A case is a procedure and one or two faults at numbered operations of one process. The numbers come from a run without the
last fault, which is the same up to there. After the faults come another start, which is checked as in a random run, and a
last save.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from ckptcore.names import GenerationId
from simulation import others
from simulation.contents import Contents
from simulation.faults import Fault, ScriptedFaults, decisive
from simulation.job import Launch, Start
from simulation.prepared import history
from simulation.run import finish, quiet
from simulation.scenario import Scenario
from simulation.scheduler import Process
from simulation.violation import Violation
from simulation.world import Kind, World, alone

UNKNOWN = ("lost", "late")
DELAYS = MappingProxyType({"late": 50.0})
_PAST = MappingProxyType({"save": 1, "settle": 1, "collect": 2})
"""How many incarnations there were before each procedure."""


@dataclass(frozen=True)
class Case:
    """A procedure, on which store, and at which operations of which process what goes wrong."""

    procedure: str
    kind: Kind
    process: str
    faults: tuple[tuple[int, str], ...] = ()
    arrays: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        where = ", ".join(f"{fault} at operation {number}" for number, fault in self.faults)
        return f"{self.procedure} on a {self.kind}{' with arrays' if self.arrays else ''}, {self.process}: {where}"


@dataclass(frozen=True)
class Step:
    """One operation of the process that is to die."""

    number: int
    operation: str
    key: str

    @property
    def changes(self) -> bool:
        """Whether it changes the store."""
        return self.operation in ("put", "write", "delete", "sync")

    @property
    def deaths(self) -> tuple[str, ...]:
        """The ways to die here that differ."""
        torn = ("torn",) if self.operation in ("delete", "sync") else ()
        return ("crash", *(("crash-after",) if self.changes else ()), *torn)


@dataclass(frozen=True)
class Played:
    """What became of a case: the violation, if any, and every operation of the process that was to die."""

    problem: BaseException | None
    steps: tuple[Step, ...]


def families(*, every: bool = True) -> Mapping[str, Iterator[Case]]:
    """All cases, by name. Without `every`, deaths before reads are left out: the store is then as before the next change."""
    return {
        "a rank dies in a save": deaths("save", ("r0", "r1"), every=every),
        "a rank dies in a save of arrays": deaths("save", ("r0", "r1"), arrays=True, kinds=("disk",), every=every),
        "an opener dies while it opens and settles": deaths("settle", ("r0",), every=every),
        "an opener dies while it settles arrays": deaths("settle", ("r0",), arrays=True, kinds=("disk",), every=every),
        "a collector dies": deaths("collect", ("",), every=every),
        "a put has no answer, then the process dies": pairs(),
    }


def deaths(
    procedure: str, ranks: tuple[str, ...], *, arrays: bool = False, kinds: tuple[Kind, ...] = ("disk", "bucket"), every: bool
) -> Iterator[Case]:
    """One death at each operation of each of the processes."""
    for kind in kinds:
        for rank in ranks:
            process = f"{procedure}{rank}"
            for step in run(Case(procedure, kind, process, arrays=arrays)).steps:
                if every or step.changes:
                    yield from (Case(procedure, kind, process, ((step.number, death),), arrays=arrays) for death in step.deaths)


def pairs() -> Iterator[Case]:
    """A decisive put without an answer, and a death at a later change."""
    for procedure in ("save", "settle", "collect"):
        process = procedure if procedure == "collect" else f"{procedure}r0"
        for first in run(Case(procedure, "disk", process)).steps:
            if first.operation != "put" or not decisive(first.key):
                continue
            for unknown in UNKNOWN:
                fault = (first.number, unknown)
                steps = run(Case(procedure, "disk", process, (fault,))).steps
                later = [step for step in steps if step.number > first.number and step.changes]
                yield from (Case(procedure, "disk", process, (fault, (step.number, "crash"))) for step in later)


def play(case: Case) -> BaseException | None:
    """What is violated in a case, None if nothing is."""
    return run(case).problem


def run(case: Case) -> Played:
    """Play one case."""
    script = {(case.process, number): Fault(fault, DELAYS.get(fault, 0.0)) for number, fault in case.faults}
    faults = Recording(script, process=case.process)
    with alone():
        world = World(
            random.Random(7), faults, case.kind, Contents(*history(_PAST[case.procedure], arrays=case.arrays, frozen=False))
        )
        problem: BaseException | None = None
        try:
            _PROCEDURES[case.procedure](world, case.arrays)
            faults.over = True
            quiet(world)
            world.run(lambda: world.over)
            finish(world, _scenario(case))
            if len(faults.hit) != len(case.faults):
                raise Violation("exhaustive", f"only {len(faults.hit)} of {len(case.faults)} faults were met")
        except (Exception, Violation) as error:  # noqa: BLE001 - a defect of whatever kind
            problem = error
        finally:
            world.scheduler.end()
    return Played(problem, tuple(faults.steps))


@dataclass
class Recording(ScriptedFaults):
    """Also tells all operations of `process` until `over`; of a rank that saves, those after it has opened the run."""

    process: str = ""
    over: bool = False
    steps: list[Step] = field(default_factory=list)

    def draw(self, process: Process, operation: str, key: str) -> Fault | None:
        """See `Plan.draw`."""
        if self.over:
            return None
        if process.name == self.process and (not process.name.startswith("save") or process.incarnation is not None):
            self.steps.append(Step(process.operations, operation, key))
        return super().draw(process, operation, key)


def _save(world: World, arrays: bool) -> None:  # noqa: FBT001 - as all procedures
    """A job of two ranks opens and saves."""
    _launch(world, "save", Start(size=2, saves=1, timeout=10.0, arrays=arrays))


def _settle(world: World, arrays: bool) -> None:  # noqa: FBT001
    """One save is complete, one is not, both undecided; then a job starts."""
    before = Launch(world, "before", Start(size=2, saves=2, timeout=10.0, arrays=arrays))
    before.begin()
    ready: Callable[[], bool] = lambda: len(world.judge.complete_since) > 0  # noqa: E731
    world.run(lambda: ready() or before.over)
    before.kill()
    world.run(lambda: world.over)
    process, number = before.ranks[1].process, before.ranks[1].process.incarnation or 0
    world.contents.put(f"generations/{GenerationId(number, 90, 1)}/values/00001.json", b"{}", process)
    _launch(world, "settle", Start(size=1, saves=0, arrays=arrays))


def _collect(world: World, arrays: bool) -> None:  # noqa: ARG001, FBT001
    """A collector without an incarnation retires two commits and deletes them."""
    process = world.process("collect", "collector")
    process.spawn("", partial(others.collect, world, process, times=1, keep=2, every=1.0))
    world.run(lambda: world.over)


def _launch(world: World, name: str, start: Start) -> None:
    launch = Launch(world, name, start)
    launch.begin()
    world.run(lambda: launch.over)


_PROCEDURES: Mapping[str, Callable[[World, bool], None]] = {"save": _save, "settle": _settle, "collect": _collect}


def _scenario(case: Case) -> Scenario:
    """What `finish` needs to know."""
    return Scenario(
        seed=0,
        kind=case.kind,
        arrays=case.arrays,
        past=2,
        frozen=False,
        kinds=(),
        rate=0.0,
        jobs=(),
        collectors=0,
        readers=0,
        operators=0,
        quarantine=False,
        within=1.0,
        horizon=0.0,
        operations=0,
        last=Start(size=1, saves=1, arrays=case.arrays, final=True),
    )
