"""What the torch program has to hold once it has opened the JAX run's checkpoint, worked out without the conversion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckptcore

LAYERS = {"Dense_0": "layers.0", "Dense_1": "layers.1", "Dense_2": "layers.2"}


def expected(store: Path, generation: str) -> dict[str, np.ndarray]:
    """Parameters, moments and step counts of a checkpoint of the JAX run, as the torch program names and turns them."""
    found = ckptcore.open_run(store).restore(generation=generation, components=["params", "optimizer"])
    adam = found["optimizer"][0]
    trees = {"value": found["params"], "exp_avg": adam["mu"], "exp_avg_sq": adam["nu"]}
    arrays = {f"{name} {kind}": array for kind, tree in trees.items() for name, array in _turned(tree)}
    steps = {f"{name} step": np.float32(adam["count"]) for name, _ in _turned(found["params"])}
    return arrays | {name: np.asarray(step) for name, step in steps.items()}


def _turned(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    """A dense layer's kernel is `(in, out)` in Flax, its weight `(out, in)` in torch."""
    for theirs, ours in LAYERS.items():
        yield f"{ours}.weight", tree[theirs]["kernel"].T
        yield f"{ours}.bias", tree[theirs]["bias"]
