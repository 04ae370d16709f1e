"""What there is to learn, the same for both frameworks: vectors, and the class to which a hidden matrix puts each."""

from __future__ import annotations

import numpy as np

from demo.failures.plan import SAMPLES

FEATURES = 48
WIDTH = 96
CLASSES = 12
"""All three, and a batch, can be divided by 3 and by 4 ranks."""
RATE, MOMENTUM = 0.05, 0.9


def vectors() -> tuple[np.ndarray, np.ndarray]:
    """(vectors, classes): float32 of `(SAMPLES, FEATURES)`, and int32."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((SAMPLES, FEATURES), np.float32)
    hidden = random.standard_normal((FEATURES, CLASSES), np.float32)
    return inputs, np.argmax(inputs @ hidden, axis=1).astype(np.int32)


def weights(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Where training starts: the matrices of two layers, `(in, out)`."""
    random = np.random.default_rng(seed)
    shapes = (FEATURES, WIDTH), (WIDTH, CLASSES)
    first, second = (random.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5) for shape in shapes)
    return first, second
