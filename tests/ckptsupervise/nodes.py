"""Nodes of one job, each a supervisor in a thread, over one store and the loopback; ranks do what a script says."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptcore import heartbeat
from ckptcore.attempts import Attempt, Attempts
from ckptcore.clock import Clock
from ckptcore.heartbeat import Beat
from ckptcore.store import Storage
from ckptsupervise.engine import Gone
from ckptsupervise.nodes_policy import NodesPolicy
from ckptsupervise.orders import Order
from ckptsupervise.policy import Policy
from ckptsupervise.rendezvous import Waits
from ckptsupervise.several import SuperviseNodes
from ckptsupervise.supervisor import Result
from ckptsupervise.telling import Told
from ckptsupervise.watching import Asked, Limits
from tests.ckptcore.support import file_store

Script = Callable[["Played", float], object]
"""Called with a node's part of an attempt and the seconds since its launch, at each look."""
PATIENT = 60.0
QUICK = Waits(join=1.5, enough=6.0, assemble=5.0, silence=4.0, look=0.2)


class Died(BaseException):
    """Ends a supervisor at once, as SIGKILL would: nothing is recorded; its connections are closed."""


class Mortal(Clock):
    """The clock of a supervisor that may die whenever it sleeps, or sleep until then."""

    def __init__(self) -> None:
        self.dead, self.stalled, self.asleep = threading.Event(), threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        if self.stalled.is_set():
            self.asleep.set()
            self.dead.wait(PATIENT)
        if self.dead.is_set():
            raise Died
        time.sleep(seconds)


@dataclass
class Played:
    """`Running`, of a node's ranks."""

    order: Order
    script: Script
    launched: float = field(default_factory=time.monotonic)
    error: str = ""
    ended: list[Gone] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.alive = set(self.order.ranks)

    @property
    def over(self) -> bool:
        if self.alive:
            self.script(self, time.monotonic() - self.launched)
        return not self.alive

    def processes(self) -> dict[int, int]:
        return {rank: 10**6 + rank for rank in self.order.ranks}

    def gone(self) -> list[Gone]:
        return list(self.ended)

    def words(self, rank: int) -> str:
        return f"the last words of {rank}"

    def send(self, number: int, ranks: Sequence[int]) -> None:
        assert number == signal.SIGTERM
        for rank in ranks:
            self.die(rank, 143)

    def kill(self, ranks: Sequence[int] | None = None) -> None:
        for rank in sorted(self.alive if ranks is None else self.alive & set(ranks)):
            self.die(rank, -signal.SIGKILL)

    def finish(self, timeout: float) -> list[int]:  # noqa: ARG002
        return []

    def beat(self, step: int) -> None:
        """A sign of life of all ranks."""
        now = time.monotonic()
        for rank in self.alive:
            marks = {"init": self.launched, "restore": self.launched, "restored": self.launched, "first-step": self.launched}
            beat = Beat(rank=rank, pid=10**6 + rank, phase="train", at=now, since=self.launched, step=step, marks=marks)
            heartbeat.write(self.order.folder, beat)

    def die(self, rank: int, status: int) -> None:
        if rank in self.alive:
            self.alive.remove(rank)
            self.ended.append(Gone(rank=rank, status=status, at=time.monotonic()))


class Node:
    """A supervisor. `orders`: of the attempts in which it had a part."""

    def __init__(self, job: Nodes, name: str, scripts: Sequence[Script], rules: NodesPolicy) -> None:
        self.name, self.scripts, self.asked, self.clock = name, scripts, Asked(), Mortal()
        self.told: list[Told] = []
        self.orders: list[Order] = []
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._supervise = SuperviseNodes(
            store=file_store(job.place / "run"),
            storage=Storage(),
            command=["train"],
            policy=rules,
            limits=Limits(patience=0.2),
            engine=self,
            node=name,
            host="127.0.0.1",
            waits=job.waits,
            listener=self.told.append,
            asked=self.asked,
            clock=self.clock,
            top=job.place / f"state-{name}",
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, order: Order) -> Played:
        """As an engine."""
        self.orders.append(order)
        return Played(order, self.scripts[min(len(self.orders), len(self.scripts)) - 1])

    def die(self) -> None:
        """As by SIGKILL."""
        self.clock.dead.set()
        self.join()
        assert isinstance(self.error, Died)

    def stall(self) -> None:
        """Its loop hangs from now on; what it does in threads goes on."""
        self.clock.stalled.set()
        assert self.clock.asleep.wait(PATIENT)

    def join(self) -> Result | None:
        """Its end."""
        self._thread.join(PATIENT)
        assert not self._thread.is_alive(), f"{self.name} did not end: {self.said}"
        return self.result

    @property
    def said(self) -> list[str]:
        return [each.message for each in self.told]

    def wait_for(self, text: str) -> None:
        """Wait until it has told this."""
        deadline = time.monotonic() + PATIENT
        while not any(text in each for each in self.said):
            assert time.monotonic() < deadline, f"{self.name} did not say {text!r}: {self.said}"
            time.sleep(0.02)

    def _run(self) -> None:
        try:
            self.result = self._supervise.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error


class Nodes:
    """A run, and its nodes."""

    def __init__(self, place: Path) -> None:
        self.place, self.waits = place, QUICK
        self.started: list[Node] = []

    def start(self, name: str, *scripts: Script, nnodes: int = 2, min_nnodes: int = 1, **policy: Any) -> Node:
        """Start a node's supervisor."""
        rules = NodesPolicy(each=Policy(**{"nproc": 2, "min_nproc": 2, **policy}), nnodes=nnodes, min_nnodes=min_nnodes)
        self.started.append(Node(self, name, scripts or (train,), rules))
        return self.started[-1]

    @property
    def attempts(self) -> list[Attempt]:
        return Attempts(file_store(self.place / "run")).load()

    def members(self) -> list[list[str]]:
        """The nodes of each attempt."""
        return [[member.node for member in each.plan.members] for each in self.attempts]

    def outcomes(self) -> list[str | None]:
        return [each.end.outcome if each.end else None for each in self.attempts]


@contextmanager
def nodes(place: Path) -> Iterator[Nodes]:
    """No supervisor outlives this."""
    made = Nodes(place)
    try:
        yield made
    finally:
        for node in made.started:
            node.clock.dead.set()
        for node in made.started:
            node.join()


def train(run: Played, seconds: float) -> None:
    run.beat(int(seconds * 10) + 1)


def done(at: float) -> Script:
    """Training that finishes after `at` seconds."""

    def script(run: Played, seconds: float) -> None:
        run.beat(int(seconds * 10) + 1)
        if seconds >= at:
            for rank in list(run.alive):
                run.die(rank, 0)

    return script


def failing(at: float, rank: int = -1) -> Script:
    """Training in which the `rank`-th of the node's dies after `at` seconds."""

    def script(run: Played, seconds: float) -> None:
        run.beat(int(seconds * 10) + 1)
        if seconds >= at:
            run.die(run.order.ranks[rank], -signal.SIGBUS)

    return script
