"""One attempt, watched until no process of it is left.

Twice a second and more it is looked whether a rank has ended, hangs, or is slow, and whether the job is to stop. A rank that has
failed takes the others with it: they cannot go on without it, and are killed after a moment. A rank that hangs is killed once its
stack is known. When the job is to stop, all ranks are asked to save and end, and are killed when their time is over.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from ckptcore import heartbeat
from ckptcore.clock import Clock
from ckptcore.heartbeat import Beat
from ckptsupervise import procfs, stacks
from ckptsupervise.deadlines import Deadlines, Hang, hung
from ckptsupervise.ending import Ending, Exit, LostNode, Stopping, ending
from ckptsupervise.engine import Gone, Running
from ckptsupervise.orders import Order
from ckptsupervise.stragglers import Straggler, Stragglers
from ckptsupervise.telling import Event, Listener, Told
from ckptsupervise.timeline import Timeline

LOOK = 0.1
"""Seconds between two looks."""
LAUNCHER = 0.1
"""Seconds after the first failure in which the launcher cannot have sent anybody a signal yet."""
PAUSE = 5.0
"""Seconds between two looks from which on it is taken that not only this process was stopped, but the machine."""
TOGETHER = 1.0
"""Seconds in which several signals are one request: systemd sends SIGHUP right after SIGTERM, shells and schedulers repeat it."""
LAST = 10.0
"""Seconds for what is left after the ranks to end, once it is killed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What ranks are allowed. `grace`: seconds to save and end, once asked. `patience`: seconds that the others have after a rank
    has failed, in which a save that is whole but for its decision is decided. `drain`: end an attempt for a rank that is slow.
    """

    deadlines: Deadlines = field(default_factory=Deadlines)
    grace: float = 60.0
    patience: float = 1.0
    drain: bool = False


class Asking(Protocol):
    """Who tells the supervisor to stop."""

    @property
    def signals(self) -> Sequence[int]:
        """The signals that asked for it, so far."""
        ...


@dataclass
class Asked:
    """What the supervisor is told from outside, by signals."""

    signals: list[int] = field(default_factory=list)
    _taken: float = float("-inf")

    def take(self, number: int, frame: object = None) -> None:  # noqa: ARG002 - what a signal handler is called with
        """Note a signal. The first asks for an end, one more that comes later for an end at once."""
        now = time.monotonic()
        if now - self._taken >= TOGETHER:
            self._taken = now
            self.signals.append(number)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What came of an attempt. Moments are of `CLOCK_MONOTONIC`. `left`: processes that even SIGKILL did not end."""

    ending: Ending
    timeline: Timeline
    detected: float
    stopped: float
    stack: str = ""
    left: tuple[int, ...] = ()


class Watch:
    """Watches one attempt. `grows_at`: when more ranks are possible. `can_drain`: whether the job could do with one rank less.

    `on_opened` is called with the run that ranks have opened, and what they have claimed of it, once in an attempt.

    Of several nodes: `read` says how beats of all ranks are had, `unusable` why they are not, `room` why there is room for more,
    `lost` which node was lost.
    """

    def __init__(
        self,
        running: Running,
        order: Order,
        limits: Limits,
        asked: Asking,
        *,
        target: int = 0,
        grows_at: float | None = None,
        can_drain: bool = False,
        listener: Listener = lambda _: None,
        on_opened: Callable[[str, int], None] = lambda _run, _incarnation: None,
        on_recovered: Callable[[Timeline], None] = lambda _: None,
        clock: Clock | None = None,
        take_stacks: Callable[[Mapping[int, int], Path], str] = stacks.of_ranks,
        read: Callable[[Path], list[Beat]] = heartbeat.read,
        unusable: Callable[[Path], str] = heartbeat.unusable,
        room: Callable[[], str] = lambda: "",
        lost: Callable[[], LostNode | None] = lambda: None,
    ) -> None:
        self._running, self._order, self._limits, self._asked = running, order, limits, asked
        self._grows_at, self._can_drain = grows_at, can_drain
        self._listener, self._on_opened, self._on_recovered, self._stacks = listener, on_opened, on_recovered, take_stacks
        self._read, self._unusable, self._room, self._lost = read, unusable, room, lost
        self._clock = clock or Clock()
        self._size = len(order.slots)
        self._timeline = Timeline(launched=running.launched, size=self._size, target=target)
        self._stragglers = Stragglers(self._size)
        self._memory_kills = procfs.memory_kills()
        self._stopping: Stopping | None = None
        self._straggler: Beat | None = None
        self._hangs: list[Hang] = []
        self._stack = self._unheard = ""
        self._looked = self._resumed = running.launched
        self._asked_at: float | None = None
        self._signalled: set[int] = set()
        self._detected: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._told_lost = self._opened = False

    def run(self) -> Watched:
        """Look again and again until all ranks have ended, then end what they have left."""
        while not self._running.over and not self._is_stuck():
            self._look(self._clock.monotonic())
            self._clock.sleep(LOOK)
        return self._end()

    def _is_stuck(self) -> bool:
        """Whether ranks are there still that were killed a while ago: the kernel holds them, as in a driver that hangs."""
        return self._killed_at is not None and self._clock.monotonic() > self._killed_at + LAST

    def _look(self, now: float) -> None:
        if now - self._looked > PAUSE:
            self._resumed = now
        self._looked = now
        self._check_heard(now)
        beats = self._beats()
        self._follow(beats)
        gone = self._running.gone()
        self._check_asked(now, gone)
        if self._asked_at is not None:
            self._ask(gone)
        self._check_lost(now)
        self._check_failed(now, gone)
        if self._kill_at is None:
            self._check_hung(now, gone)
        if self._kill_at is None:
            self._check_slow(now, beats, gone)
            self._check_growth(now, gone)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _beats(self) -> list[Beat]:
        """Of this attempt's ranks: a launcher inside of one may give its own processes further numbers."""
        return [beat for beat in self._read(self._order.folder) if beat.rank < self._size]

    def _follow(self, beats: Sequence[Beat]) -> None:
        opened = next(((beat.run, beat.incarnation) for beat in beats if beat.run and beat.incarnation), None)
        if opened and not self._opened:
            self._opened = True
            self._on_opened(*opened)
        before, self._timeline = self._timeline, self._timeline.seen(beats)
        if before.recovered is None and self._timeline.recovered is not None:
            step, seconds = self._timeline.last_step, self._timeline.recovered - self._timeline.launched
            self._tell("recovered", f"training is at step {step}, {seconds:.1f} s after the launch", step=step, seconds=seconds)
            self._on_recovered(self._timeline)

    def _check_heard(self, now: float) -> None:
        """While heartbeats cannot be written, nobody's silence says anything."""
        why = self._unusable(self._order.folder)
        if why:
            self._resumed = now
        if why != self._unheard:
            self._unheard = why
            trouble = f"no heartbeat can be written, so no hang is found: {why}"
            self._tell("warning", trouble if why else "heartbeats can be written again")

    def _check_asked(self, now: float, gone: Sequence[Gone]) -> None:
        if self._asked.signals and self._stopping != "preempted":
            self._stopping = "preempted"
            self._stop(now, gone, f"told to stop: ranks have {self._limits.grace:g} s to save and end")
        if len(self._asked.signals) > 1 and self._killed_at is None:
            self._kill_at = now

    def _check_lost(self, now: float) -> None:
        lost = self._lost()
        if lost is None or self._told_lost:
            return
        self._told_lost = True
        self._detected = now if self._detected is None else self._detected
        self._tell("died", f"node {lost.node} is lost: {lost.message}")
        if self._asked_at is None and self._kill_at is None:
            self._kill_at = now + self._limits.patience

    def _check_failed(self, now: float, gone: Sequence[Gone]) -> None:
        failed = next((each for each in gone if each.status), None)
        if failed is None or self._detected is not None:
            return
        self._detected = now
        message = f"rank {failed.rank} has ended: {shown_status(failed.status)}"
        self._tell("died", message, rank=failed.rank, status=failed.status)
        if self._asked_at is None:
            told = failed.status == 128 + signal.SIGTERM  # it was asked to end by somebody else, and so were all: they are done
            self._kill_at = now + (self._limits.grace if told else self._limits.patience)

    def _check_hung(self, now: float, gone: Sequence[Gone]) -> None:
        found = hung(self._all(gone), now, self._limits.deadlines)
        if not found:
            return
        self._hangs, self._detected = found, now
        first = found[0]
        where = f"in phase {first.phase}" + ("" if first.step is None else f" after step {first.step}")
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = f"rank {first.rank}{others} has been silent for {first.seconds:.1f} s {where}"
        self._tell("hung", message, rank=first.rank, step=first.step, seconds=first.seconds)
        self._stack = self._stacks({each.rank: each.pid for each in found}, self._order.folder)
        self._running.kill([each.rank for each in found])
        self._kill_at = self._clock.monotonic() + self._limits.patience

    def _check_slow(self, now: float, beats: Sequence[Beat], gone: Sequence[Gone]) -> None:
        for found in self._stragglers.seen(beats, now):
            message = f"rank {found.rank} takes {found.ratio:.2f} times as long as the others for a {found.what}"
            taken = found.ratio * found.usual
            self._tell("slow", f"{message} ({taken:.3g} s, {found.usual:.3g} s)", rank=found.rank, seconds=taken)
            self._drain(now, found, gone)

    def _drain(self, now: float, found: Straggler, gone: Sequence[Gone]) -> None:
        # Slow in saves may be rank 0, which waits for all the others before it decides.
        if found.what == "step" and self._limits.drain and self._can_drain and self._asked_at is None:
            self._straggler, self._detected = self._timeline.beats[found.rank], now
            self._stop(now, gone, f"rank {found.rank} is slow: the job saves, and goes on without its slot")

    def _check_growth(self, now: float, gone: Sequence[Gone]) -> None:
        due = self._grows_at is not None and now >= self._grows_at
        why, newer = ("there is room for more ranks", "them") if due else (self._room(), "it")
        if why and self._timeline.recovered is not None and self._asked_at is None:
            self._stopping = "resized"
            self._stop(now, gone, f"{why}: the job saves, and goes on with {newer}")

    def _stop(self, now: float, gone: Sequence[Gone], why: str) -> None:
        """Ask all ranks to save and end. Asked once already, they are not asked again: that would end them at once."""
        self._tell("stopping", why)
        if self._asked_at is not None:
            return
        self._asked_at = now
        self._ask(gone)
        self._kill_at = min(self._kill_at or float("inf"), now + self._limits.grace)

    def _ask(self, gone: Sequence[Gone]) -> None:
        """Send SIGTERM to ranks that run and have not got it: in the first moment of an attempt some may not be there yet."""
        there = set(self._running.processes()) - {each.rank for each in gone} - self._signalled
        if there:
            self._running.send(signal.SIGTERM, sorted(there))
            self._signalled |= there

    def _kill(self) -> None:
        if self._killed_at is None:
            self._killed_at = self._clock.monotonic()
            self._tell("killing", "what is left is killed")
        self._running.kill()

    def _all(self, gone: Sequence[Gone]) -> list[Beat]:
        """The last beats known of the ranks that run. One that has not told anything yet has been in `init` since the launch.

        If nobody has looked for a while (the machine slept), or ranks could not be heard, none is silent for longer than since
        then.
        """
        ended = {each.rank for each in gone}
        pids, launched = self._running.processes(), self._running.launched
        silent = {
            rank: Beat(rank=rank, pid=pids.get(rank, 0), phase="init", at=launched, since=launched) for rank in range(self._size)
        }
        found = [beat for rank, beat in sorted({**silent, **self._timeline.beats}.items()) if rank not in ended]
        return [structs.replace(beat, at=max(beat.at, self._resumed)) for beat in found]

    def _end(self) -> Watched:
        over = self._clock.monotonic()
        left = self._running.finish(LAST)
        self._follow(self._beats())
        return Watched(
            ending=self._ending(),
            timeline=self._timeline,
            detected=over if self._detected is None else self._detected,
            stopped=self._clock.monotonic(),
            stack=self._stack,
            left=tuple(left),
        )

    def _ending(self) -> Ending:
        if self._running.error:
            return Ending(outcome="failed", kind="exit", message=f"ranks could not be started: {self._running.error}")
        if not self._running.over and self._stopping is None and not self._hangs:
            return self._held()
        return ending(
            self._exits(),
            list(self._timeline.beats.values()),
            stopping=self._stopping,
            hangs=self._hangs,
            straggler=self._straggler,
            memory_kills=procfs.memory_kills() - self._memory_kills,
            lost=self._lost(),
        )

    def _held(self) -> Ending:
        """The attempt failed, and the kernel does not let go of a rank: that one is the reason, as far as anybody can tell."""
        gone = {each.rank for each in self._running.gone()}
        held = next((rank for rank in range(self._size) if rank not in gone), None)
        beat = None if held is None else self._timeline.beats.get(held)
        phase, step = (beat.phase, beat.step) if beat else (None, None)
        return Ending(outcome="failed", kind="hang", rank=held, phase=phase, step=step, message="not even SIGKILL ends it")

    def _exits(self) -> list[Exit]:
        gone = self._running.gone()
        first = min((each.at for each in gone if each.status), default=float("inf"))
        signalled = min(self._asked_at or float("inf"), first + LAUNCHER)
        return [
            Exit(
                rank=each.rank,
                status=each.status or 0,
                at=each.at,
                asked=each.at > signalled or (each.at > first and each.status == -signal.SIGTERM),
                words=self._running.words(each.rank),
            )
            for each in gone
        ]

    def _tell(self, event: Event, message: str, **facts: Any) -> None:
        slot = self._order.slots[facts["rank"]] if "rank" in facts else None
        at = self._clock.utc()
        self._listener(Told(at=at, event=event, message=message, attempt=self._order.attempt, slot=slot, **facts))


def shown_status(status: int | None) -> str:
    """An exit status for people."""
    if status is None:
        return "status unknown"
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
