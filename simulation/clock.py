"""A clock that moves only when everybody waits, and chance that comes from the seed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ckptcore.clock import Clock
from simulation.scheduler import Scheduler

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock(Clock):
    """The clock of one process. `skew` is how many seconds its wall time is wrong: no rule may depend on it (T-1)."""

    def __init__(self, scheduler: Scheduler, skew: float = 0.0) -> None:
        self._scheduler, self._skew = scheduler, skew

    def utc(self) -> str:
        """See `Clock.utc`."""
        return (_BEGINNING + timedelta(seconds=self._scheduler.now + self._skew)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        """Let others run, and virtual time pass."""
        self._scheduler.pause(seconds)

    def nonce(self) -> str:
        """See `Clock.nonce`."""
        return f"{self._scheduler.chance.getrandbits(64):016x}"

    def uuid(self) -> str:
        """See `Clock.uuid`."""
        return str(uuid.UUID(int=self._scheduler.chance.getrandbits(128), version=4))

    def varied(self, seconds: float) -> float:
        """See `Clock.varied`."""
        return seconds * self._scheduler.chance.uniform(0.5, 1.5)

    def polls(self, timeout: float, *, first: float = 0.005, most: float = 5.0) -> Iterator[float]:
        """As `Clock.polls`, but some dozen times at most: what a wait costs is its number of polls, and virtual time is free."""
        return super().polls(timeout, first=max(first, timeout / 60), most=max(most, timeout / 6))
