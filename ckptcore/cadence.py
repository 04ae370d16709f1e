"""When to save, agreed: the interval's rule, and rank 0's announcements where it rests on a clock."""

from __future__ import annotations

from ckptcore.channel import Channel
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.events import log
from ckptcore.schedule import Every, Optimal

DEFAULT = Every(seconds=600.0)
ANNOUNCE_TIMEOUT = 600.0


class Cadence:
    """Answers `due` alike on every rank.

    A rule by steps needs no talk. For a rule by seconds rank 0 measures, and announces the next
    step to save at whenever a save begins, which every rank does at the same step. The save before has ended
    by then, so what it cost is known: `Optimal` goes by that.
    """

    def __init__(self, interval: int | Every | Optimal | None, channel: Channel, clock: Clock) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int | Every | Optimal | None):
            raise CallError(f"interval={interval!r}: expected a number of steps, Every(steps=…, seconds=…) or Optimal(mtbf=…)")
        self._rule = DEFAULT if interval is None else Every(steps=interval) if isinstance(interval, int) else interval
        self._channel, self._clock = channel, clock
        self._next: int | None = None
        self._measured: tuple[float, float] | None = None
        self.begin(0)

    def begin(self, step: int) -> None:
        """The loop starts at `step`: the time of a step is unknown, so a rule by seconds learns it from an early first save."""
        self._step, self._since = step, self._clock.monotonic()
        self._next = step + 1 if self._is_measured else None

    def due(self, step: int) -> bool:
        """Whether to save after `step` completed updates."""
        by_steps = isinstance(self._rule, Every) and self._rule.due(step)
        return by_steps or (self._next is not None and step >= self._next)

    def cost(self, blocking: float, persist: float) -> None:
        """What a committed save has cost on this rank: the seconds that it stopped training, and those until its work ended."""
        self._measured = (blocking, persist)

    def saved(self, step: int) -> None:
        """A save of `step` has begun, on every rank: agree on the next one."""
        if not self._is_measured:
            return
        announcement = None
        if self._channel.rank == 0:
            now = self._clock.monotonic()
            taken = max(step - self._step, 0)
            announcement = str(self._every().next_step(step, 0.0, (now - self._since) / taken if taken else 0.0)).encode()
            self._step, self._since = step, now
        received = self._channel.broadcast(announcement, timeout=ANNOUNCE_TIMEOUT, what="the step of the next save")
        self._next = int(received)

    @property
    def _is_measured(self) -> bool:
        return isinstance(self._rule, Optimal) or self._rule.is_measured

    def _every(self) -> Every:
        """The rule as it is now."""
        if isinstance(self._rule, Every):
            return self._rule
        costs = self._rule.costs(*(self._measured or ()))
        seconds = self._rule.seconds(costs)
        told = (
            "a save stops training for %.3g s and is written for %.3g s (%s): saving every %.3g s is best, with a goodput of %.4f"
        )
        known = "assumed" if self._measured is None else "measured"
        log.info(told, costs.blocking, costs.persist, known, seconds, self._rule.goodput(costs))
        return Every(seconds=seconds)
