"""The other processes of a job: when they are gone, and who leaves last.

A real launcher ends a job when one of its processes dies. Here each process watches the others: whoever is left alone has
some seconds to find out what became of its save, and then ends. The process of rank 0, which serves the framework's own
start-up, leaves last, for its end would tear down others.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread

ALONE = 1.0
"""Seconds that are left without rank 0: a decision that is stored is seen by then."""
LATE = 6.0
"""Seconds, beyond the deadline for receipts, that are left without any other rank."""
LINGER = 60.0
"""Seconds that rank 0 waits for the others to end: one that is stopped may be let go on later."""
_TICK = 0.1


class Peers:
    """The processes of a job on this machine: `pids` by rank, of which `rank` is this one. `deadline`: seconds for receipts."""

    def __init__(self, rank: int, pids: Sequence[int], deadline: float) -> None:
        self._rank = rank
        self._alive = {number: _opened(pid) for number, pid in enumerate(pids) if number != rank}
        self._left = {number: ALONE if number == 0 else deadline + LATE for number in self._alive}
        self._leaving = Event()
        if self._alive:
            Thread(target=self._watch, name="peers", daemon=True).start()

    def leave(self) -> None:
        """Wait on rank 0 until the others have ended; return at once on any other."""
        self._leaving.set()
        until = time.monotonic() + LINGER
        while self._rank == 0 and len(self._gone()) < len(self._alive) and time.monotonic() < until:
            time.sleep(0.005)

    def _watch(self) -> None:
        """Count the time that is left once somebody is gone, in turns: the time in which this process is stopped is none."""
        while not self._leaving.wait(_TICK):
            for number in self._gone():
                self._left[number] -= _TICK
                if self._left[number] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)  # a framework may have taken every signal that can be taken

    def _gone(self) -> list[int]:
        return [number for number, descriptor in self._alive.items() if descriptor is None or _ended(descriptor)]


def _opened(pid: int) -> int | None:
    """A descriptor of a process; None if it has ended already."""
    with suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    return None


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
