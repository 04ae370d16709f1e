"""One attempt on several nodes, as a node that does not lead it has it: it starts its ranks when told, says how they are, and
does to them what it is told. When it hears no more of the node that leads, it ends them: then that one, or the link, is lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptcore import heartbeat
from ckptcore.attempts import Member
from ckptcore.clock import Clock
from ckptsupervise import stacks
from ckptsupervise.ending import Ending
from ckptsupervise.endpoint import connect
from ckptsupervise.engine import Running
from ckptsupervise.links import STUCK, TICK
from ckptsupervise.timeline import Timeline
from ckptsupervise.watching import LAST, LOOK, Asking, Watched
from ckptsupervise.wire import (
    AnyMessage,
    Channel,
    Ended,
    Finish,
    Finished,
    Go,
    Join,
    Kill,
    LinkLost,
    Signal,
    Stacks,
    State,
    Taken,
    Tick,
)

TELL = 0.5
"""Seconds between two reports of ranks that run; one that has ended is told at once."""

LEAVE = 10.0
"""Seconds that the node that leads has to end an attempt that has no ranks yet, once this one is told to stop."""


@dataclass
class Following:
    """This node's part of `attempt`, which `leader` leads. `start`: starts its ranks. `folder`: of their heartbeats.

    `timeout`: seconds in which the leader has to be reached, and again until it takes this node in: it may be about to look into
    a slow store. `silence`: after which it is lost from then on.
    """

    attempt: int
    leader: Member
    nonce: str
    start: Callable[[Go], Running]
    folder: Path
    size: int
    asked: Asking
    timeout: float
    silence: float
    clock: Clock
    lost: str = ""
    """Why the leader was lost; empty if it has seen to the end."""
    left: Sequence[int] = ()
    """Processes here that even SIGKILL did not end."""

    def run(self) -> Watched:
        """Take part to the end. What is known here of it: this counts if the leader does not come to record the end (U-20)."""
        launched = self.clock.monotonic()
        self._timeline = Timeline(launched=launched, size=self.size)
        try:
            channel = self._join()
        except LinkLost as error:
            self.lost = str(error)
            return self._watched(self.lost, launched)
        self._running: Running | None = None
        self._asked_at: float | None = None
        self._inbox: queue.SimpleQueue[AnyMessage | LinkLost] = queue.SimpleQueue()
        self._done, self._turned = threading.Event(), launched
        threads = [threading.Thread(target=work, args=(channel,), daemon=True) for work in (self._listen, self._tick)]
        for thread in threads:
            thread.start()
        try:
            self._serve(channel)
            # Until the leader closes the link, having heard that it is over here, or for too long. One that is closed while a
            # sign of life is on its way is reset, and takes with it what was said last.
            threads[0].join(self.silence)
        except LinkLost as error:
            self.lost, detected = str(error), self.clock.monotonic()
            self._end()
            return self._watched(self.lost, detected)
        finally:
            self._done.set()
            channel.close()
            for thread in threads:
                thread.join()
        return self._watched("it has ended the attempt, and was lost before it recorded how", self.clock.monotonic())

    def _join(self) -> Channel:
        for left in self.clock.polls(self.timeout, first=0.1, most=2.0):
            try:
                return self._joined(connect(self.leader.address, self.leader.token, timeout=self.silence))
            except LinkLost:
                if left <= 0 or self.asked.signals:
                    raise
        raise LinkLost("cannot be reached")

    def _joined(self, channel: Channel) -> Channel:
        try:
            channel.send(Join(nonce=self.nonce, attempt=self.attempt))
        except LinkLost:
            channel.close()
            raise
        channel.give(self.timeout)
        return channel

    def _serve(self, channel: Channel) -> None:
        told, told_at = None, float("-inf")
        while True:
            self._turned = self.clock.monotonic()
            if self._obey(channel):
                return
            state, now = self._state(), self.clock.monotonic()
            news = (state.gone, state.over, state.asked, state.processes)
            if news != told or now - told_at >= TELL:
                channel.send(state)
                told, told_at = news, now
            self._check_kept(now)
            if self._running is not None and len(self.asked.signals) > 1:
                self._running.kill()
            self.clock.sleep(LOOK)

    def _check_kept(self, now: float) -> None:
        """Told to stop before ranks were started, this node leaves after a while: the store may keep the one that leads."""
        if self._running is not None or not self.asked.signals:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > LEAVE:
            raise LinkLost("this node was told to stop, and is not told to end what has not begun")

    def _obey(self, channel: Channel) -> bool:
        """Do all that was told meanwhile; whether that was all."""
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, LinkLost):
                raise message
            if isinstance(message, Finish):
                channel.send(self._finished(message))
                return True
            self._do(message, channel)
        return False

    def _do(self, message: AnyMessage, channel: Channel) -> None:
        if isinstance(message, Go) and self._running is None:
            self._running = self.start(message)
            self._timeline = Timeline(launched=self._running.launched, size=self.size)
        elif isinstance(message, Stacks):
            channel.send(Taken(text=stacks.of_ranks(self._processes(message.ranks), self.folder)))
        elif isinstance(message, Signal) and self._running is not None:
            self._running.send(message.number, message.ranks)
        elif isinstance(message, Kill) and self._running is not None:
            self._running.kill(message.ranks)

    def _processes(self, ranks: Sequence[int]) -> dict[int, int]:
        own = {} if self._running is None else self._running.processes()
        return {rank: own[rank] for rank in ranks if rank in own}

    def _finished(self, message: Finish) -> Finished:
        left = self.left = [] if self._running is None else self._running.finish(message.timeout)
        state = self._state()
        running = self._running
        words = {} if running is None else {each.rank: running.words(each.rank) for each in state.gone}
        return Finished(state=state, left=left, words=words)

    def _state(self) -> State:
        running, asked = self._running, len(self.asked.signals)
        if running is None:
            return State(now=self.clock.monotonic(), beats=[], gone=[], processes={}, asked=asked)
        over = running.over  # before what has ended is looked at, not after
        beats = heartbeat.read(self.folder)
        self._timeline = self._timeline.seen(beats)
        return State(
            now=self.clock.monotonic(),
            beats=beats,
            gone=[Ended(rank=each.rank, status=each.status, at=each.at) for each in running.gone()],
            processes=running.processes(),
            asked=asked,
            over=over,
            error=running.error,
            unusable=heartbeat.unusable(self.folder),
        )

    def _end(self) -> None:
        if self._running is None:
            return
        self._state()
        self._running.kill()
        for _ in self.clock.polls(LAST, first=0.02, most=LOOK):
            if self._running.over:
                break
        self.left = self._running.finish(LAST)

    def _watched(self, message: str, detected: float) -> Watched:
        ending = Ending(outcome="failed", kind="node", node=self.leader.node, message=message)
        return Watched(ending=ending, timeline=self._timeline, detected=detected, stopped=self.clock.monotonic())

    def _listen(self, channel: Channel) -> None:
        while True:
            try:
                self._inbox.put(channel.receive())
                channel.give(self.silence)
            except LinkLost as error:
                self._inbox.put(error)
                return

    def _tick(self, channel: Channel) -> None:
        while not self._done.wait(TICK) and self.clock.monotonic() - self._turned < STUCK:
            try:
                channel.send(Tick())
            except LinkLost:  # the listener tells
                return
