"""Who else uses a run: collectors beside the job, readers, and people who mark, pin, verify and finish."""

from __future__ import annotations

from ckptcore import restore
from ckptcore.errors import CheckpointError, CommitUnknown, DeadlineExceeded, NotFound, Retired, StoreError, Superseded
from ckptcore.keep import Keep
from ckptcore.match import Rules
from ckptcore.operate.recovery import recover
from ckptcore.retention import Collector
from ckptcore.run import Run
from ckptcore.store import Storage
from simulation.scheduler import Process
from simulation.violation import Violation
from simulation.world import World


def collect(world: World, process: Process, *, times: int, keep: int, every: float) -> None:
    """A command that collects beside the job, without an incarnation, until faults stop."""
    clock, store = world.clock(), world.store(process)
    for _ in range(times):
        clock.sleep(every * world.chance.random())
        if world.quiet:
            return
        try:
            Collector(store, None, clock).collect(Keep(last=keep))
        except (StoreError, NotFound):
            continue
        except CheckpointError as error:
            raise Violation("errors", f"{process.name}: {type(error).__name__}: {error}") from error


def collect_once(world: World, process: Process) -> None:
    """The same, once, when nothing may go wrong."""
    Collector(world.store(process), None, world.clock()).collect(Keep(last=2))


def collect_as(world: World, process: Process, number: int, *, keep: int = 2) -> None:
    """A collection on behalf of an incarnation, once."""
    process.incarnation = number
    try:
        Collector(world.store(process), number, world.clock()).collect(Keep(last=keep))
    except (StoreError, Superseded, CommitUnknown):
        return


def read(world: World, process: Process, *, times: int, every: float) -> None:
    """A reader that follows the run and restores what it finds."""
    clock, store = world.clock(), world.store(process)
    for _ in range(times):
        clock.sleep(every * world.chance.random())
        if world.quiet:
            return
        try:
            run = Run(store, Storage(), clock=clock)
            manifest = next(run.follow(timeout=every))
            checkpoint = run.checkpoint(generation=manifest.generation)
            components = restore.host(checkpoint, ["params"], rules=Rules(), ranks={})
        except (StoreError, NotFound, DeadlineExceeded):
            continue
        except Retired:
            continue
        except CheckpointError as error:
            raise Violation("O-14", f"{process.name} reads: {type(error).__name__}: {error}") from error
        world.judge.restored("a reader", checkpoint.generation, components)


def restore_newest(world: World, process: Process) -> None:
    """A reader that restores the head, whatever it is."""
    run = Run(world.store(process), Storage(), clock=world.clock())
    checkpoint = run.checkpoint()
    world.judge.restored("a reader", checkpoint.generation, restore.host(checkpoint, ["params"], rules=Rules(), ranks={}))


def finish(world: World, process: Process, *, times: int, every: float) -> None:
    """A person who commits what is complete and undecided, whether its job lives or not."""
    clock, store = world.clock(), world.store(process)
    for _ in range(times):
        clock.sleep(every * world.chance.random())
        if world.quiet:
            return
        try:
            recover(store, apply=True, clock=clock)
        except (StoreError, NotFound):
            continue
        except CheckpointError as error:
            raise Violation("errors", f"{process.name}: {type(error).__name__}: {error}") from error


def operate(world: World, process: Process, *, times: int, every: float, quarantine: bool) -> None:
    """A person who marks, pins and verifies checkpoints."""
    clock, store, chance = world.clock(), world.store(process), world.chance
    for _ in range(times):
        clock.sleep(every * chance.random())
        if world.quiet:
            return
        try:
            run = Run(store, Storage(), clock=clock)
            usable = [found.id for found in run.generations() if found.id in world.judge.oracle.commits()]
            if not usable:
                continue
            chosen = chance.choice(usable)
            what = chance.choice(["pin", "tag", "verify", "metric", "quarantine"])
            world.service.note(process.name, what, str(chosen))
            if what == "quarantine" and quarantine and len(usable) > 2:
                run.quarantine(chosen, "by hand")
            elif what == "verify":
                run.verify(generation=chosen, deep=True, note=True)
            elif what == "pin":
                run.annotate(chosen, pin="by hand")
            elif what == "tag":
                run.annotate(chosen, tags=["good"])
            else:
                run.annotate(chosen, metrics={"loss": chance.random()})
        except (StoreError, NotFound, Retired):
            continue
        except CheckpointError as error:
            raise Violation("errors", f"{process.name}: {type(error).__name__}: {error}") from error
