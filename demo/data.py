"""Scikit-learn's handwritten digits, the same for both frameworks."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from demo.job import TRAIN_SAMPLES

CLASSES = 10
PIXELS = 64


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(images, labels) to train on, and the rest to test with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
    images, labels = (images / 16).astype(np.float32)[order], labels.astype(np.int32)[order]
    return (images[:TRAIN_SAMPLES], labels[:TRAIN_SAMPLES]), (images[TRAIN_SAMPLES:], labels[TRAIN_SAMPLES:])
