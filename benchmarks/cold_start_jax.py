"""The training job of `cold_start`, in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from benchmarks import on_jax
from benchmarks.peers import ours

Components = dict[str, Any]


def state(size: str) -> Components:
    """What is saved."""
    return ours.components_of(on_jax.arrays(size, "one"))


def start() -> None:
    """The first use of a device starts the backend."""
    jax.block_until_ready(jax.numpy.zeros(8))


def target(size: str) -> Components:
    """Abstract arrays: JAX's take no memory before there are values."""
    return ours.components_of(on_jax.abstract(size, "one"))


def wait(components: Components) -> Components:
    """The same, when all arrays are there."""
    return jax.block_until_ready(components)


def step(components: Components) -> None:
    """Compile a step of Adam, and make it."""
    jax.block_until_ready(_step(components))


@partial(jax.jit, donate_argnums=0)
def _step(components: Components) -> Components:
    optimizer = components["optimizer"]
    params = jax.tree.map(
        lambda p, m, v: p - 1e-4 * m / (abs(v) ** 0.5 + 1e-8), components["params"], optimizer["mu"], optimizer["nu"]
    )
    moments = {name: jax.tree.map(lambda moment: 0.9 * moment, optimizer[name]) for name in ("mu", "nu")}
    return {"params": params, "optimizer": moments}
