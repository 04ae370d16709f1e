"""The random state of a host process: Python's `random` and numpy's global generator.

JAX's own keys are part of the training state and need nothing here.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ckptcore.components import PerRank
from ckptcore.errors import StructureMismatch


class HostRandomState:
    """Captures and restores `random` and `numpy.random`. Its state is made of plain values."""

    def get_state(self) -> dict[str, Any]:
        """`{"python": …, "numpy": …}`: ints, floats, lists, text and bytes only."""
        version, internal, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 -- the global generator is what is saved
        return {
            "python": {"version": version, "internal": list(internal), "gauss": gauss},
            "numpy": {
                "kind": kind,
                "keys": np.asarray(keys, "<u4").tobytes(),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached_gauss": float(cached),
            },
        }

    def set_state(self, state: Any) -> None:
        """Put a state from `get_state` back. Raises `StructureMismatch` for anything else."""
        try:
            python, numpy = state["python"], state["numpy"]
            keys = np.frombuffer(numpy["keys"], "<u4").astype(np.uint32)
            legacy = (numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached_gauss"])
            before = random.getstate()
            random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StructureMismatch("this is no state of `host_rng_state`", [f"{type(error).__name__}: {error}"]) from error
        try:
            np.random.set_state(legacy)  # noqa: NPY002
        except (TypeError, ValueError) as error:
            random.setstate(before)
            raise StructureMismatch("this is no state of `host_rng_state`", [f"numpy: {error}"]) from error


def host_rng_state() -> PerRank:
    """A component that holds the random generators of each host process.

    Use it as `components["rng"] = host_rng_state()`. It reads the global generators of `random`
    and `numpy.random` when a checkpoint is saved, and sets them when one is restored; each
    rank has its own.
    """
    return PerRank(HostRandomState())
