"""What the core needs of a framework's watch for "stop now" (spec: preemption), and which ends of a job are failures."""

from __future__ import annotations

from typing import Protocol

from ckptcore.errors import Preempted


class Preemption(Protocol):
    """Watches for the signal that the job is to stop, and makes all ranks agree on a step."""

    def reached(self, step: int) -> bool:
        """Whether `step` is the one to save and stop at. The same answer on every rank; call it at every step."""
        ...

    def close(self) -> None:
        """Give the signal back its handler from before."""
        ...


def is_failure(error: BaseException | None) -> bool:
    """Whether what leaves the block that trains is no end that somebody asked for: not `Preempted`, nor an exit with status 0."""
    asked = isinstance(error, Preempted) or (isinstance(error, SystemExit) and not error.code)
    return error is not None and not asked
