"""What the two transformers have in common: sizes, hyper-parameters and data. Needs neither framework."""

from __future__ import annotations

import numpy as np

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 32, 12, 32, 4, 2
SAMPLES, BATCH = 512, 16
LR, B1, B2, EPS, WEIGHT_DECAY = 3e-3, 0.9, 0.95, 1e-8, 0.1
"""Of AdamW. Both programs state all of them: defaults differ between the frameworks, and optax keeps none in its state."""
NORM_EPS = 1e-6

NAMES = {"blocks_*": "blocks.*"}
"""Flax's names of modules and torch's, where they differ; layers and their axes follow from the library's rules."""


def report(before: int, after: int, loss: float) -> str:
    """What a program tells at its end: the steps between which it has trained, and the last loss."""
    if before == after:
        return f"nothing left to do: the run is at step {after}"
    return f"from step {before} to step {after}, loss {loss:.4f}"


def sequences(ids: np.ndarray) -> np.ndarray:
    """Token sequences `(batch, LENGTH + 1)`, int32, each determined by its sample's ID."""
    tokens = [ids % VOCABULARY]
    stride = 1 + ids // VOCABULARY % 7
    for _ in range(LENGTH):
        tokens.append((3 * tokens[-1] + stride) % VOCABULARY)
    return np.stack(tokens, axis=1).astype(np.int32)
