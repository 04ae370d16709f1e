"""The state that is saved: a GPT-2 with its Adam moments, float32, filled with values that no compressor makes smaller.

| size | model | arrays | bytes |
| --- | --- | --- | --- |
| `smoke` | 2 layers of width 64 | 3 × 22 | 1.6 MB |
| `small` | 4 layers of width 256 | 3 × 42 | 59.6 MB |
| `reference` | GPT-2 small: 12 layers of width 768 | 3 × 122 | 1.49 GB |
| `large` | GPT-2 medium: 24 layers of width 1024 | 3 × 242 | 4.26 GB |

Norms have a scale and no bias, and there is none after the last layer: hence 10 arrays a layer and 2 embeddings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

Size = Literal["smoke", "small", "reference", "large"]
Shape = tuple[int, ...]

COMPONENTS = ("params", "mu", "nu")


class Different(Exception):
    """What was restored is not what was saved."""


@dataclass(frozen=True)
class Model:
    """The measures of a GPT-2."""

    layers: int
    width: int
    vocabulary: int
    positions: int


MODELS: dict[str, Model] = {
    "smoke": Model(layers=2, width=64, vocabulary=512, positions=64),
    "small": Model(layers=4, width=256, vocabulary=6144, positions=1024),
    "reference": Model(layers=12, width=768, vocabulary=50257, positions=1024),
    "large": Model(layers=24, width=1024, vocabulary=50257, positions=1024),
}


def shapes(size: str) -> dict[str, Shape]:
    """Name → shape of each array of one component."""
    model = MODELS[size]
    embeddings: dict[str, Shape] = {"wte": (model.vocabulary, model.width), "wpe": (model.positions, model.width)}
    layers = {f"h{i:02}.{name}": shape for i in range(model.layers) for name, shape in _layer(model.width).items()}
    return embeddings | layers


def _layer(width: int) -> dict[str, Shape]:
    return {
        "ln_1.scale": (width,),
        "attn.qkv.kernel": (width, 3 * width),
        "attn.qkv.bias": (3 * width,),
        "attn.out.kernel": (width, width),
        "attn.out.bias": (width,),
        "ln_2.scale": (width,),
        "mlp.in.kernel": (width, 4 * width),
        "mlp.in.bias": (4 * width,),
        "mlp.out.kernel": (4 * width, width),
        "mlp.out.bias": (width,),
    }


def sizes(size: str) -> list[int]:
    """Bytes of each array of the state."""
    return len(COMPONENTS) * [4 * prod(shape) for shape in shapes(size).values()]


def nbytes(size: str) -> int:
    """Bytes of the whole state."""
    return sum(sizes(size))


def array(component: str, name: str, shape: Shape) -> np.ndarray:
    """One array: the same values each time, 31 random bits in each of them.

    The highest bit of the exponent is zero: every value is finite, and below 2.
    """
    seed = int.from_bytes(hashlib.sha256(f"{component}/{name}".encode()).digest()[:8], "little")
    count = prod(shape)
    words = np.random.SFC64(seed).random_raw((count + 1) // 2).view(np.uint32)[:count]
    np.bitwise_and(words, np.uint32(0xBFFFFFFF), out=words)
    return words.view(np.float32).reshape(shape)


def each(size: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """Component, name and values of each array, one at a time."""
    for component in COMPONENTS:
        for name, shape in shapes(size).items():
            yield component, name, array(component, name, shape)


def arrays(size: str) -> dict[str, dict[str, np.ndarray]]:
    """The whole state: component → name → values."""
    state: dict[str, dict[str, np.ndarray]] = {component: {} for component in COMPONENTS}
    for component, name, values in each(size):
        state[component][name] = values
    return state


def compare(component: str, name: str, expected: np.ndarray, found: np.ndarray) -> None:
    """Raise `Different` unless both have the same shape, type and bits. `found` may be a part that `expected` was cut to."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise Different(f"{component}/{name}: {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}")
    if not np.array_equal(_bits(found), _bits(expected)):
        raise Different(f"{component}/{name}: other values")


def _bits(values: np.ndarray) -> np.ndarray:
    """As integers: NaN is equal to itself, and 0.0 is not -0.0."""
    return np.ascontiguousarray(values).view(np.uint32)
