"""This project: what its two backends do alike."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.subject import Mesh, Saved
from ckptcore.checkpointer import Checkpointer
from ckptcore.guarantees import Derived

SETTINGS = "as it comes: digests and proof of every chunk, every save of the guarantee `exact`"
MESHES: frozenset[Mesh] = frozenset({"one", "1d", "2d", "transposed"})

DERIVED: Derived = {"schedule": "step", "rng": "step", "data": "step"}
"""Everything but parameters and moments follows from the step, so that the state is all there is."""


def components_of(state: Any) -> dict[str, Any]:
    """The components of a save: the parameters, and an optimizer that holds the moments."""
    return {"params": state["params"], "optimizer": {"mu": state["mu"], "nu": state["nu"]}}


def saved(saver: Checkpointer, step: int, state: Any) -> Saved:
    """Save, and wait for the commit."""
    started = time.perf_counter()
    handle = saver.save(step, components_of(state), guarantee="exact")
    blocked = time.perf_counter() - started
    handle.result()
    return Saved(blocked, time.perf_counter() - started)


def restored(saver: Checkpointer, target: Any) -> dict[str, Any]:
    """Restore the newest commit, to go on training from it, on whatever mesh."""
    found = saver.restore(like=components_of(target), accept_guarantee="coverage").components
    return {"params": found["params"], **found["optimizer"]}
