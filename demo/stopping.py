"""How the demo is stopped: Ctrl-C and SIGTERM are noted, and acted on where nothing can be left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """A person or a supervisor wants the demo to end. `signal` says how."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}")


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `Stopped` once SIGINT or SIGTERM has come; main thread only.

    The signals interrupt nothing by themselves: a process that is just being started would be
    lost with its ID, and a second Ctrl-C would end the clean-up that the first began.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    def check() -> None:
        if received:
            raise Stopped(received[0])

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
