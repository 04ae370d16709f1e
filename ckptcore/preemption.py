"""What the core needs of a framework's watch for "stop now" (spec: preemption)."""

from __future__ import annotations

from typing import Protocol


class Preemption(Protocol):
    """Watches for the signal that the job is to stop, and makes all ranks agree on a step."""

    def reached(self, step: int) -> bool:
        """Whether `step` is the one to save and stop at. The same answer on every rank; call it at every step."""
        ...

    def close(self) -> None:
        """Give the signal back its handler from before."""
        ...
