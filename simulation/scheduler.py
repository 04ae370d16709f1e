"""Who runs next, and what time it is: one greenlet at a time, in the order of their virtual time.

Greenlets, not threads: a switch takes a microsecond, nothing runs at the same time by accident, and a lock that a
suspended task holds (`functools.cached_property` has one) is no dead end, since all tasks are one thread to it.
"""

from __future__ import annotations

import contextvars
import heapq
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from greenlet import getcurrent, greenlet

from simulation.violation import Died, Violation


class Process:
    """What dies as a whole: one or more tasks. `incarnation` is the one it has claimed or was told, if any."""

    def __init__(self, scheduler: Scheduler, name: str, role: str) -> None:
        self.scheduler, self.name, self.role = scheduler, name, role
        self.dead = False
        self.frozen_until = 0.0
        self.cut_off_until = 0.0
        """Until then the store does not answer to this process."""
        self.incarnation: int | None = None
        self.operations = 0
        self.tasks: list[Task] = []

    def spawn(self, name: str, body: Callable[[], Any]) -> Task:
        """Start a task of this process."""
        task = Task(self, f"{self.name}/{name}" if name else self.name, body)
        self.tasks.append(task)
        self.scheduler.alive += 1
        self.scheduler.resume(task)
        return task

    def decides_as(self, incarnation: int) -> int:
        """The incarnation for which it decides a generation of `incarnation`: its own, or that one if anybody may (P-58)."""
        return incarnation if self.role == "finisher" else self.incarnation or 0

    def kill(self) -> None:
        """From now on nothing that this process does has any effect."""
        self.dead = True
        for task in self.tasks:
            if not task.ended:
                self.scheduler.resume(task)

    @property
    def over(self) -> bool:
        """Whether all of its tasks have ended."""
        return all(task.ended for task in self.tasks)


class Task(greenlet):
    """One thread of control. After its end, `raised` is what it raised, if anything, and `result` what it returned."""

    def __init__(self, process: Process, name: str, body: Callable[[], Any]) -> None:
        super().__init__(parent=process.scheduler.hub)
        self.gr_context = contextvars.copy_context()
        self.process, self.name, self.body = process, name, body
        self.waits_for, self.turn, self.ended = "", 0, False
        self.asked: tuple[str, str, object] = ("", "", None)
        """The last operation of the store, its key, and something about its answer."""
        self.result: Any = None
        self.raised: BaseException | None = None

    def run(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - what a greenlet calls
        """The body, whatever comes of it."""
        try:
            self.result = self.body()
        except BaseException as error:  # noqa: BLE001 - the simulation looks at it
            self.raised = error
        self.ended = True
        self.process.scheduler.ended(self)


class Scheduler:
    """Runs tasks. `now` is the virtual time in seconds."""

    def __init__(self, chance: random.Random) -> None:
        self.hub = getcurrent()
        self.chance, self.now, self.steps = chance, 0.0, 0
        self._queue: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0
        self._blocked: dict[Task, None] = {}
        self.alive = 0
        """How many tasks have not ended."""
        self.on_end: Callable[[Task], None] = lambda _: None

    # Called in tasks

    @property
    def task(self) -> Task:
        """The task that runs."""
        return cast("Task", getcurrent())

    def pause(self, seconds: float) -> None:
        """Let virtual time pass, and others run. Raises `Died` when the own process is killed meanwhile."""
        task = self.task
        if task.process.dead:
            raise Died(task.name)
        self.resume(task, seconds)
        self.hub.switch()

    def wait(self, ready: Callable[[], bool], what: str, timeout: float = math.inf) -> bool:
        """Wait until `ready()`, which somebody makes true and then calls `notify`. Returns whether it is so in time."""
        task, deadline = self.task, self.now + timeout
        task.waits_for = what
        while not ready():
            if task.process.dead:
                raise Died(task.name)
            if self.now >= deadline:
                task.waits_for = ""
                return False
            self._blocked[task] = None
            if deadline < math.inf:
                self.resume(task, deadline - self.now)
            self.hub.switch()
            self._blocked.pop(task, None)
        task.waits_for = ""
        return True

    # Called by anybody

    def notify(self) -> None:
        """Have every waiting task look again."""
        for task in self._blocked:
            self.resume(task)

    def resume(self, task: Task, seconds: float = 0.0) -> None:
        """Let `task` run in so many seconds; what it was to be woken by before no longer counts."""
        task.turn += 1
        self.later(seconds, partial(self._switch, task, task.turn))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` in so many seconds, outside of all tasks. Of what happens at one time the order is drawn."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self.chance.random(), self._count, action))

    def ended(self, task: Task) -> None:
        """Called at the end of a task."""
        self.alive -= 1
        self.on_end(task)
        self.notify()

    def run(self, done: Callable[[], bool], *, most_steps: int) -> None:
        """Run until `done()`. Raises `Violation` when everybody waits for nothing, or it takes too many steps."""
        while not done():
            if not self._queue:
                raise Violation("P-2", f"nothing can go on: {self.waiting()}")
            if self.steps >= most_steps:
                raise Violation("P-55", f"not finished after {self.steps} steps, {self.now:.0f} s: {self.waiting()}")
            when, _, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            self.steps += 1
            action()

    def waiting(self) -> str:
        """Who waits for what."""
        return "; ".join(f"{task.name} waits for {task.waits_for}" for task in self._blocked) or "nobody waits"

    def end(self) -> None:
        """Unwind every task, so that nothing of this simulation is left."""
        for _ in range(1000):
            if not self._queue and not self._blocked:
                break
            for task in list(self._blocked):
                task.process.kill()
            while self._queue:
                action = heapq.heappop(self._queue)[3]
                if isinstance(action, partial) and action.func == self._switch:
                    action.args[0].process.dead = True
                    action()

    def _switch(self, task: Task, turn: int) -> None:
        if task.ended or turn != task.turn:
            return
        process = task.process
        if process.dead:
            self._blocked.pop(task, None)
            if task:
                task.throw(Died(task.name))
            else:  # it has never run
                task.ended = True
                task.raised = Died(task.name)
                self.ended(task)
        elif process.frozen_until > self.now:
            self.resume(task, process.frozen_until - self.now)
        else:
            task.switch()
