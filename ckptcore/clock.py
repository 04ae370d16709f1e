"""Time and chance as the protocol sees them: times for records, deadlines and polls for waits, names that nobody else has."""

from __future__ import annotations

import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

_CHANCE = random.SystemRandom()
"""Not Python's own generator: its state is part of a training run, and a wait must not draw from it."""

GROWTH = 1.25
"""How much longer each pause between two polls is than the one before."""


class Clock:
    """The machine's clock, and its source of chance. Simulations pass one of their own."""

    def utc(self) -> str:
        """Now, as records write it: `2026-01-31T12:00:00.000000Z`."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        time.sleep(seconds)

    def nonce(self) -> str:
        """16 hexadecimal digits that nobody else gets, for the name of a claim or of a database."""
        return secrets.token_hex(8)

    def uuid(self) -> str:
        """A random UUID, for the name of a run."""
        return str(uuid.uuid4())

    def varied(self, seconds: float) -> float:
        """A span of about `seconds`. It keeps a thousand ranks from coming back at the same moment."""
        return seconds * _CHANCE.uniform(0.5, 1.5)

    def polls(self, timeout: float, *, first: float = 0.005, most: float = 5.0) -> Iterator[float]:
        """Yield the seconds left, pausing longer and longer between turns, until `timeout` seconds have passed.

        The first turn comes at once, the last one after the deadline, so that what arrives late is still seen. Pauses begin at
        `first` and are about a quarter of the time that has passed, up to `most`: so what is waited for is seen late by a quarter
        at most, and a long wait costs little more than a short one. Each is varied, so that ranks do not ask in step.
        """
        deadline = self.monotonic() + timeout
        pause = first
        while True:
            left = deadline - self.monotonic()
            yield max(left, 0.0)
            if left <= 0:
                return
            self.sleep(min(self.varied(pause), left))
            pause = min(pause * GROWTH, most)

    def polls_anew(
        self, timeout: float, progress: Callable[[], object], *, first: float = 0.005, most: float = 5.0
    ) -> Iterator[float]:
        """As `polls`, and again from the beginning while `progress` says something else each time that `timeout` has passed."""
        before = progress()
        while True:
            yield from self.polls(timeout, first=first, most=most)
            now = progress()
            if now == before:
                return
            before = now
