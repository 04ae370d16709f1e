"""One simulated world: a store, a clock, and the processes that use them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ckptcore.events import log
from ckptcore.store import Store
from ckptcore.workers import at_most
from simulation.bucket import Bucket
from simulation.clock import VirtualClock
from simulation.contents import Contents
from simulation.disk import Disk
from simulation.faults import Plan
from simulation.judge import Judge
from simulation.scheduler import Process, Scheduler, Task
from simulation.service import Service
from simulation.violation import Died, Violation
from simulation.witness import Witness

Kind = Literal["disk", "bucket"]


@contextmanager
def alone() -> Iterator[None]:
    """No thread but this one, and no log."""
    disabled, log.disabled = log.disabled, True
    try:
        with at_most(0):
            yield
    finally:
        log.disabled = disabled


class World:
    """What the processes have in common. `finished` is told of every task that ends."""

    def __init__(self, chance: random.Random, plan: Plan, kind: Kind, contents: Contents | None = None) -> None:
        self.chance, self.kind = chance, kind
        self.contents = contents or Contents()
        self.contents.durable_at_once = kind == "bucket"
        self.scheduler = Scheduler(chance)
        self.scheduler.on_end = self._ended
        self.service = Service(self.scheduler, self.contents, plan)
        self.service.on_power = self._power
        self.judge = Judge(self.contents)
        self.judge.adopt(self.contents.in_order())
        self.contents.watch = self.judge.changed
        self.processes: list[Process] = []
        self.quiet = False
        """Whether faults have stopped: nobody begins anything new."""
        self.violation: BaseException | None = None
        self._stores: dict[Process, Disk | Bucket] = {}
        self._wrap: Callable[[Store, Process], Store] = lambda store, _: store

    def process(self, name: str, role: str) -> Process:
        """A new process."""
        process = Process(self.scheduler, name, role)
        self.processes.append(process)
        return process

    def clock(self) -> VirtualClock:
        """The clock of a process; its wall time may be hours wrong."""
        return VirtualClock(self.scheduler, skew=self.chance.uniform(-4000.0, 4000.0))

    def store(self, process: Process) -> Store:
        """The store as a process sees it."""
        if process not in self._stores:
            disk = self.kind == "disk"
            self._stores[process] = Disk(self.service, process) if disk else Bucket(self.service, process, self.clock())
        return Witness(self._stores[process], process, self.judge)

    def run(self, done: Callable[[], bool], *, most_steps: int = 200_000) -> None:
        """Run until `done()`. Raises the first violation, also one that a process was in the middle of."""
        self.scheduler.run(lambda: self.violation is not None or done(), most_steps=most_steps)
        if self.violation is not None:
            raise self.violation

    @property
    def over(self) -> bool:
        """Whether every process has ended."""
        return self.scheduler.alive == 0

    def _ended(self, task: Task) -> None:
        error: Any = task.raised
        if error is None or isinstance(error, Died) or self.violation is not None:
            return
        if isinstance(error, Violation):
            self.violation = error
        else:
            said = Violation("errors", f"{task.name} ended with {type(error).__name__}: {error}")
            said.__cause__ = error
            self.violation = said

    def _power(self, process: Process) -> None:
        before = {key: self.contents.get(key) for key in self.contents.files()}
        if process in self._stores:
            self._stores[process].lose()
        for key, data in before.items():
            if self.contents.get(key) != data and "/ranks/" not in key:
                self.judge.lost(key)
