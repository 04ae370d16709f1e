"""Flax linen: a `TrainState`, with batch statistics and dropout beside it.

Run it twice: `python examples/linen_jax.py /tmp/linen`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state

import jaxckpt

STEPS = 40


class Net(nn.Module):
    """A layer with batch statistics, dropout, a layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`(batch, 8)` → `(batch, 1)`."""
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(nn.Dense(16)(x)))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=False)(x))


class TrainState(train_state.TrainState):
    """With what else changes in training."""

    batch_stats: Any


def fresh() -> dict[str, Any]:
    """The state of step 0. JAX can trace it."""
    params_key, dropout_key, rng = jax.random.split(jax.random.key(0), 3)
    net = Net()
    variables = net.init({"params": params_key, "dropout": dropout_key}, jnp.zeros((1, 8)))
    state = TrainState.create(
        apply_fn=net.apply, params=variables["params"], tx=optax.adamw(1e-2), batch_stats=variables["batch_stats"]
    )
    return {"state": state, "rng": rng}


@jax.jit
def update(state: TrainState, rng: jax.Array, x: jax.Array) -> tuple[TrainState, jax.Array, jax.Array]:
    """One step; returns the new state, the next key, the loss."""
    rng, key = jax.random.split(rng)

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        out, changed = state.apply_fn(variables, x, rngs={"dropout": key}, mutable=["batch_stats"])
        return jnp.square(out - x.sum(1, keepdims=True)).mean(), changed["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), rng, loss


def main(url: str | Path, *, steps: int = STEPS) -> TrainState:
    """Train up to `steps`; returns the train state."""
    sampler = jaxckpt.Sampler(size=512, batch=16)
    inputs = jax.random.normal(jax.random.key(1), (512, 8))
    like = {**jax.eval_shape(fresh), "data": sampler}
    derived = {"parameters": "state", "optimizer": "state", "schedule": "state"}
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=jaxckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(lambda: {**fresh(), "data": sampler}, like=like)
        state, rng = restored.components["state"], restored.components["rng"]
        for step in range(restored.step + 1, steps + 1):
            state, rng, loss = update(state, rng, inputs[sampler.next()])
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {"state": state, "rng": rng, "data": sampler}, metrics={"loss": loss})
    print(f"from step {restored.step} to step {steps}")
    return state


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/linen_jax.py URL")
    main(sys.argv[1])
