"""An engine without processes: ranks do what a script says at each moment of a clock that moves when somebody sleeps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptcore import heartbeat
from ckptcore.heartbeat import Beat, Phase
from ckptsupervise.engine import Gone
from ckptsupervise.orders import Order
from tests.ckptcore.support import FakeClock

Script = Callable[["FakeRunning", float], object]
"""Called with the attempt and the seconds since its launch, at each look."""


class NodeClock(FakeClock):
    """A clock of a machine that has been up for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0


@dataclass
class FakeRunning:
    """`Running`: what its script says, and what was done to it."""

    order: Order
    clock: FakeClock
    script: Script
    launched: float = 0.0
    error: str = ""
    sent: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    killed: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    last_words: dict[int, str] = field(default_factory=dict)
    beats: dict[int, Beat] = field(default_factory=dict)
    ended: list[Gone] = field(default_factory=list)
    obeys: bool = True
    """Whether SIGTERM makes ranks save and end a second later."""

    def __post_init__(self) -> None:
        self.launched = self.clock.now
        self.alive = set(range(len(self.order.slots)))

    @property
    def seconds(self) -> float:
        return self.clock.now - self.launched

    @property
    def over(self) -> bool:
        return not self.alive

    def processes(self) -> dict[int, int]:
        return {rank: 1000 + rank for rank in range(len(self.order.slots))}

    def gone(self) -> list[Gone]:
        return list(self.ended)

    def words(self, rank: int) -> str:
        return self.last_words.get(rank, "")

    def send(self, number: int, ranks: Sequence[int]) -> None:
        self.sent.append((number, tuple(ranks)))
        self.told_at = self.seconds

    def kill(self, ranks: Sequence[int] | None = None) -> None:
        chosen = tuple(sorted(self.alive if ranks is None else self.alive & set(ranks)))
        if chosen:
            self.killed.append((round(self.seconds, 3), chosen))
        for rank in chosen:
            self.die(rank, -signal.SIGKILL)

    def finish(self, timeout: float) -> list[int]:  # noqa: ARG002
        return []

    # For scripts

    def tick(self) -> None:
        """Let time pass."""
        if self.alive:
            self.script(self, self.seconds)
        if self.obeys and self.sent and self.seconds >= self.told_at + 1:
            for rank in sorted(self.alive):
                self.die(rank, 143)

    def beat(self, *ranks: int, phase: Phase = "train", step: int | None = None, **facts: Any) -> None:
        """A sign of life."""
        for rank in ranks or sorted(self.alive):
            if rank in self.alive:
                self._beat(rank, phase, step, facts)

    def _beat(self, rank: int, phase: Phase, step: int | None, facts: dict[str, Any]) -> None:
        now, before = self.clock.now, self.beats.get(rank)
        since = before.since if before and before.phase == phase else now
        marks = {"init": self.launched, **(before.marks if before else {}), **({"restored": now} if phase == "train" else {})}
        if step is not None:
            marks = {"first-step": now} | marks
        told = {"restored_step": 0, "step": step} | facts
        self.beats[rank] = Beat(rank=rank, pid=1000 + rank, phase=phase, at=now, since=since, marks=marks, **told)
        heartbeat.write(self.order.folder, self.beats[rank])

    def die(self, rank: int, status: int) -> None:
        """The end of a rank."""
        if rank in self.alive:
            self.alive.remove(rank)
            self.ended.append(Gone(rank=rank, status=status, at=self.clock.now))


@dataclass
class FakeEngine:
    """`Engine`: a script for each attempt; the last one is that of all that follow."""

    clock: FakeClock
    scripts: Sequence[Script]
    attempts: list[FakeRunning] = field(default_factory=list)
    obeys: bool = True

    def start(self, order: Order) -> FakeRunning:
        script = self.scripts[min(len(self.attempts), len(self.scripts) - 1)]
        running = FakeRunning(order, self.clock, script, obeys=self.obeys)
        self.attempts.append(running)
        self.clock.on_sleep = running.tick
        return running
