"""The random state of a host process: Python's `random` and numpy's global generator.

JAX's own keys are part of the training state and need nothing here.
"""

from __future__ import annotations

from typing import Any

from ckptcore import hostrandom
from ckptcore.components import PerRank


class HostRandomState:
    """Captures and restores `random` and `numpy.random`. Its state is made of plain values."""

    def get_state(self) -> dict[str, Any]:
        """`{"python": …, "numpy": …}`: ints, floats, lists, text and bytes only."""
        return hostrandom.capture()

    def set_state(self, state: Any) -> None:
        """Put a state from `get_state` back. Raises `StructureMismatch`, and changes nothing, for anything else."""
        hostrandom.prepare(state, name="host_rng_state")()


def host_rng_state() -> PerRank:
    """A component that holds the random generators of each host process.

    Use it as `components["rng"] = host_rng_state()`. It reads the global generators of `random`
    and `numpy.random` when a checkpoint is saved, and sets them when one is restored; each
    rank has its own.
    """
    return PerRank(HostRandomState())
