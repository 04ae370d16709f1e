"""Flax NNX: modules and optimizers are saved as they are, and filled in place.

Run it twice: `python examples/nnx_jax.py /tmp/nnx`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxckpt

WIDTH, STEPS = 16, 40


class Net(nnx.Module):
    """Batch statistics, and dropout with a stream of random numbers of its own: both are state of the module."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(8, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`(batch, 8)` → `(batch, 1)`."""
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


@nnx.jit
def update(model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array) -> jax.Array:
    """One step, in place; returns the loss."""
    loss, grads = nnx.value_and_grad(lambda net: jnp.square(net(x) - x.sum(1, keepdims=True)).mean())(model)
    optimizer.update(model, grads)
    return loss


def main(url: str | Path, *, steps: int = STEPS) -> Net:
    """Train up to `steps`; returns the model."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    sampler = jaxckpt.Sampler(size=512, batch=16)
    inputs = jax.random.normal(jax.random.key(1), (512, 8))
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    derived = {"schedule": "optimizer", "rng": "model"}  # where the optimizer's count and the dropout's stream are
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=jaxckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(lambda: state, like=state)  # fills `state`, or leaves it as it is
        for step in range(restored.step + 1, steps + 1):
            loss = update(model, optimizer, inputs[sampler.next()])
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, state, metrics={"loss": loss})
    print(f"from step {restored.step} to step {steps}")
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/nnx_jax.py URL")
    main(sys.argv[1])
