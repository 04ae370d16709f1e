"""Why an attempt ended: which rank failed first, and whose end only followed from that. Pure.

One rank that fails takes the others along: collectives break, JAX's coordination service aborts who is left, the launcher ends
the rest. That takes between a hundredth of a second and the ten of JAX's heartbeat, so the first status that is noticed need not
be the cause. What decides, in this order: what the supervisor itself did (it killed a rank that hung), whose last words do not
blame another rank, and the time.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ckptcore.attempts import Outcome
from ckptcore.heartbeat import Beat
from ckptsupervise import lastwords
from ckptsupervise.deadlines import Hang, hindmost, position

Kind = Literal["exit", "signal", "hang", "straggler", "out-of-memory", "node"]
"""What an incident is: a status other than 0, a signal that nobody of ours sent, silence, slowness, no memory, a lost node."""

Stopping = Literal["preempted", "resized"]
"""Why the supervisor asked all ranks to stop: it was told to, or goes on with more of them."""

LATE = 0.5
"""Seconds. A rank killed so much later than another has failed was killed for that, by the launcher."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a rank's process.

    `status`: its exit status, or less than 0: the signal that ended it. `at`: when that was noticed (`CLOCK_MONOTONIC`).
    `asked`: it was noticed after a signal had been sent to it. `words`: the end of what it wrote to standard error.
    """

    rank: int
    status: int
    at: float
    asked: bool = False
    words: str = ""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, or the command that it was wrapped in."""
        return -self.status if self.status < 0 else self.status - 128 if 128 < self.status < 160 else None


@dataclass(frozen=True, kw_only=True)
class LostNode:
    """A node whose supervisor cannot be reached any more, `since` when (`CLOCK_MONOTONIC`), and why that is thought."""

    node: str
    since: float
    message: str


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended. `kind` is None if there was no incident. `node`: that was lost.

    `rank`: who failed first, None if that cannot be told; with its `status` (None: it did not end by itself), and its last
    `phase` and `step`.
    """

    outcome: Outcome
    kind: Kind | None = None
    rank: int | None = None
    status: int | None = None
    phase: str | None = None
    step: int | None = None
    message: str = ""
    node: str | None = None


def ending(
    exits: Sequence[Exit],
    beats: Sequence[Beat],
    *,
    stopping: Stopping | None = None,
    hangs: Sequence[Hang] = (),
    straggler: int | None = None,
    memory_kills: int = 0,
    lost: LostNode | None = None,
) -> Ending:
    """How an attempt ended, of whose ranks `exits` tells the end, and `beats` the last heartbeats.

    `stopping`: why all ranks were asked to stop, if they were. `hangs`: whom the supervisor killed for being silent. `straggler`:
    the rank that was drained for being slow. `memory_kills`: how many processes the kernel killed for memory meanwhile
    (`oom_kill` in the control group's `memory.events`), as far as known. `lost`: the first node that could not be reached.

    A job that is asked to stop and fails to do so in order is `failed` if it was to be `resized`, and stays `preempted`, with an
    incident, if the machine is wanted back.
    """
    case = _Case(tuple(exits), {beat.rank: beat for beat in beats}, memory_kills)
    if hangs:
        return case.hung(hangs[0])
    if lost is None and exits and all(each.status == 0 for each in exits):
        return Ending(outcome="finished")
    superseded = next((each for each in exits if lastwords.is_superseded(each.words)), None)
    if superseded is not None:
        return case.failed(superseded, "superseded")
    if straggler is not None:
        return case.ended("failed", "straggler", straggler, message="slower than the others")
    own = case.own()
    if lost is not None and (own is None or own.at >= lost.since):
        return _without(lost, stopping)
    if stopping:
        return case.failed(own, "failed" if stopping == "resized" else stopping) if own else Ending(outcome=stopping)
    if own is not None:
        return case.failed(own, "failed")
    return case.nobodys()


def _without(lost: LostNode, stopping: Stopping | None) -> Ending:
    outcome: Outcome = "preempted" if stopping == "preempted" else "failed"
    return Ending(outcome=outcome, kind="node", node=lost.node, message=lost.message)


@dataclass(frozen=True)
class _Case:
    """An attempt that has not just finished."""

    exits: tuple[Exit, ...]
    beats: Mapping[int, Beat]
    memory_kills: int

    def own(self) -> Exit | None:
        """The first that failed by itself, as far as can be told.

        An exit status, or an abort, without a word may still be a consequence: what is more certain wins, if it is as early.
        """
        failed = [each for each in self.exits if self._failed(each) and not lastwords.is_consequence(each.words)]
        return min(failed, key=lambda each: (each.at + LATE * self._is_vague(each), self._behind(each.rank)), default=None)

    def nobodys(self) -> Ending:
        """Every rank was ended, or says that another one is the reason."""
        blaming = sorted((each for each in self.exits if self._failed(each)), key=lambda each: each.at)
        if not blaming:
            return Ending(outcome="failed", kind="signal", message="all ranks were ended from outside")
        lost = self._lost(blaming)
        if lost is None:
            return self.failed(blaming[0], "failed")
        silent = f"no sign of life for {blaming[0].at - self.beats[lost].at:.0f} s, " if lost in self.beats else ""
        return self.ended("failed", "hang", lost, message=f"{silent}and rank {blaming[0].rank} failed: {_said(blaming[0])}")

    def failed(self, gone: Exit, outcome: Outcome) -> Ending:
        """`gone` is what ended the attempt."""
        killed = gone.signal == signal.SIGKILL and self.memory_kills > 0
        memory = killed or lastwords.lacks_memory(gone.words)
        kind: Kind = "out-of-memory" if memory else "exit" if gone.signal is None else "signal"
        message = "killed by the kernel, which had no memory left" if killed else _said(gone)
        return self.ended(outcome, kind, gone.rank, status=gone.status, message=message)

    def hung(self, hang: Hang) -> Ending:
        """The supervisor has killed a rank for its silence."""
        message = f"no sign of life for {hang.seconds:.0f} s"
        return Ending(outcome="failed", kind="hang", rank=hang.rank, phase=hang.phase, step=hang.step, message=message)

    def ended(self, outcome: Outcome, kind: Kind, rank: int, *, status: int | None = None, message: str = "") -> Ending:
        """An ending for which `rank` is the reason."""
        beat = self.beats.get(rank)
        phase, step = (beat.phase, beat.step) if beat else (None, None)
        return Ending(outcome=outcome, kind=kind, rank=rank, status=status, phase=phase, step=step, message=message)

    def _failed(self, gone: Exit) -> bool:
        """Whether it ended badly, and not for a signal that was sent to end it."""
        others = [each.at for each in self.exits if each.rank != gone.rank and each.status and each.signal != signal.SIGTERM]
        if gone.signal == signal.SIGTERM:
            return not gone.asked and bool(self._calm()) and not any(at <= gone.at for at in others)
        if gone.signal == signal.SIGKILL:
            return not gone.asked and not any(at + LATE <= gone.at for at in others)
        return gone.status != 0

    def _calm(self) -> list[Exit]:
        """Who was not ended by SIGTERM: if nobody, all were told to stop by somebody else."""
        return [each for each in self.exits if each.signal != signal.SIGTERM]

    def _lost(self, blaming: Sequence[Exit]) -> int | None:
        """The rank that the others miss, and that has not failed: named by them, or it had to be killed, or was behind them."""
        named = frozenset[int]().union(*(lastwords.silent_ranks(each.words) for each in blaming))
        ended = [each for each in self.exits if each.status and each not in blaming and each.rank in self.beats]
        behind = min((self._position(each.rank) for each in blaming), default=(0, 0))
        killed = {each.rank for each in ended if each.signal == signal.SIGKILL or self._position(each.rank) < behind}
        finished = {each.rank for each in self.exits if each.status == 0}  # it was not what they missed
        return min((named - finished) or killed, key=self._behind, default=None)

    def _is_vague(self, gone: Exit) -> bool:
        return gone.signal in (None, signal.SIGABRT) and not lastwords.exception(gone.words)

    def _position(self, rank: int) -> tuple[int, int]:
        return position(self.beats[rank]) if rank in self.beats else (-1, -1)

    def _behind(self, rank: int) -> tuple[int, int, float, int]:
        return hindmost(self.beats[rank]) if rank in self.beats else (-1, -1, 0.0, rank)


def _said(gone: Exit) -> str:
    """Its last words, or how it ended."""
    told = lastwords.exception(gone.words)
    number = gone.signal
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    return told or (f"exit status {gone.status}" if number is None else name)
