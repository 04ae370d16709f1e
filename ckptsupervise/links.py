"""The links of the node that leads an attempt to the others: what each has told, and whether it is still there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from msgspec import structs

from ckptcore.attempts import Member
from ckptcore.clock import Clock
from ckptcore.heartbeat import Beat
from ckptsupervise.ending import LostNode
from ckptsupervise.engine import Gone
from ckptsupervise.wire import AnyMessage, Channel, Finished, LinkLost, State, Taken, Tick

TICK = 1.0
"""Seconds between two signs of life of a supervisor."""

STUCK = 40.0
"""Seconds without a turn of its loop after which a supervisor no longer says that it lives: what it has to do takes less."""

DRIFT = 1e-3
"""Seconds a second by which another node's clock may fall behind this one's: it may be slow, or its machine may have slept."""


class Link:
    """To one node, whose `ranks` it starts. Threads write what it tells, and others read it.

    Moments of its clock are told as those of this node's, as exactly as the quickest of the messages that came lately was.
    """

    def __init__(self, member: Member, ranks: Sequence[int], channel: Channel, clock: Clock) -> None:
        self.member, self.ranks = member, ranks
        self.state = State(now=0.0, beats=[], gone=[], processes={})
        self.lost: LostNode | None = None
        self.finished: Finished | None = None
        self.stacks = ""
        self._clock, self._channel, self.offset = clock, channel, float("inf")
        self._heard = clock.monotonic()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name=f"link-{member.node}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether no rank runs there, as far as that can be known."""
        return self.lost is not None or self.state.over

    @property
    def beats(self) -> list[Beat]:
        """The newest beats of its ranks."""
        return [_moved(beat, self.offset) for beat in self.state.beats if beat.rank in self.ranks]

    @property
    def gone(self) -> list[Gone]:
        """Its ranks that have ended."""
        found = [each for each in self.state.gone if each.rank in self.ranks]
        return [Gone(rank=each.rank, status=each.status, at=each.at + self.offset) for each in found]

    @property
    def words(self) -> dict[int, str]:
        """The last words of its ranks, once it has finished."""
        return self.finished.words if self.finished else {}

    def tell(self, message: AnyMessage) -> None:
        """Send a message; who cannot be told is lost. One that has finished is told nothing more, and so is not lost either."""
        try:
            if self.lost is None and self.finished is None:
                self._channel.send(message)
        except LinkLost as error:
            self._lose(error)

    def wait(self, what: str, timeout: float) -> None:
        """Wait until it has told its `stacks`, or has `finished`, or is lost; `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: getattr(self, what) or self.lost, timeout)

    def close(self) -> None:
        """No more of it."""
        self._channel.close()
        self._thread.join(TICK)

    def _listen(self) -> None:
        try:
            while self.finished is None:
                self._take(self._channel.receive())
        except LinkLost as error:
            self._lose(error)
        else:
            self._channel.close()  # so the other one knows that it was heard to the end

    def _take(self, message: AnyMessage) -> None:
        now = self._clock.monotonic()
        with self._changed:
            self.offset += DRIFT * (now - self._heard)
            self._heard = now
            if isinstance(message, State | Finished):
                state = message if isinstance(message, State) else message.state
                self.offset = min(self.offset, now - state.now)
                self.state = state
            if isinstance(message, Finished):
                self.finished = message
            if isinstance(message, Taken):
                self.stacks = message.text
            self._changed.notify_all()

    def _lose(self, error: LinkLost) -> None:
        with self._changed:
            if self.lost is None and self.finished is None:  # its end may come between a look and a message
                self.lost = LostNode(node=self.member.node, since=self._heard, message=str(error))
            self._changed.notify_all()


class Links:
    """All of them, and a thread that gives each a sign of life. `own`: this node, whose signs others miss after `silence`."""

    def __init__(self, own: str, *, silence: float, clock: Clock) -> None:
        self._own, self._silence, self._clock = own, silence, clock
        self._links: list[Link] = []
        self._ticked, self._turned = clock.monotonic(), float("inf")
        self._stood = (0.0, self._ticked)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticks", daemon=True)
        self._thread.start()

    def add(self, link: Link) -> None:
        """One more."""
        self._links = [*self._links, link]

    def all(self) -> Sequence[Link]:
        """In the order in which they joined."""
        return self._links

    def tell(self, message: AnyMessage) -> None:
        """Send a message to each."""
        for link in self._links:
            link.tell(message)

    def lost(self) -> LostNode | None:
        """The node that was lost first, or could not start its ranks: this one, if it stood still until others left it."""
        found = [link.lost or _unable(link) for link in self._links]
        first = min((each for each in found if each is not None), key=lambda each: each.since, default=None)
        seconds, until = self._stands(self._clock.monotonic())
        if first is None or seconds <= self._silence or not until - seconds - TICK <= first.since <= until + self._silence:
            return first
        return LostNode(node=self._own, since=first.since, message=f"it stood still for {seconds:.0f} s, and the others left it")

    def turn(self) -> None:
        """Ranks have been looked at. Once they are, this node gives signs of life only while they are again and again."""
        self._turned = self._clock.monotonic()

    def close(self) -> None:
        """No more of any."""
        self._done.set()
        self._thread.join()
        for link in self._links:
            link.close()

    def _tick(self) -> None:
        while not self._done.wait(TICK):
            now = self._clock.monotonic()
            if now - self._turned <= STUCK:
                self._stood, self._ticked = self._stands(now), now
                self.tell(Tick())

    def _stands(self, now: float) -> tuple[float, float]:
        """For how many seconds this node has not got to give a sign of life, and until when; the last time that it was long."""
        seconds = now - self._ticked
        return (seconds, now) if seconds > self._silence else self._stood


def merged(links: Iterable[Link]) -> dict[int, int]:
    """Rank → process, on all their nodes."""
    return {rank: pid for link in links for rank, pid in link.state.processes.items()}


def _unable(link: Link) -> LostNode | None:
    if not link.state.error:
        return None
    since = link.state.now + link.offset
    return LostNode(node=link.member.node, since=since, message=f"ranks could not be started: {link.state.error}")


def _moved(beat: Beat, offset: float) -> Beat:
    marks = {name: at + offset for name, at in beat.marks.items()}
    return structs.replace(beat, at=beat.at + offset, since=beat.since + offset, marks=marks)
