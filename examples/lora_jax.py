"""Train a small adapter beside frozen weights: the frozen ones are written once, and every later checkpoint refers to them.

Run it twice: `python examples/lora_jax.py /tmp/lora`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxckpt

WIDTH, RANK, LAYERS, STEPS = 64, 4, 3, 40

tx = optax.adamw(1e-2)


def pretrained() -> list[jax.Array]:
    """Stands for weights that come from elsewhere."""
    return [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in jax.random.split(jax.random.key(0), LAYERS)]


def fresh() -> dict[str, Any]:
    """The adapter, a correction of low rank for each frozen layer, and its optimizer."""
    down = [jax.random.normal(key, (WIDTH, RANK)) / WIDTH for key in jax.random.split(jax.random.key(1), LAYERS)]
    params = {"down": down, "up": [jnp.zeros((RANK, WIDTH)) for _ in range(LAYERS)]}
    return {"params": params, "optimizer": tx.init(params)}


def apply(base: list[jax.Array], params: dict[str, Any], x: jax.Array) -> jax.Array:
    """`(batch, WIDTH)` → the same."""
    for frozen, down, up in zip(base, params["down"], params["up"], strict=True):
        x = jnp.tanh(x @ frozen + x @ down @ up)
    return x


@jax.jit
def update(base: list[jax.Array], state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One step of the adapter."""
    loss, grads = jax.value_and_grad(lambda params: jnp.mean((apply(base, params, x) - jnp.roll(x, 1, axis=1)) ** 2))(
        state["params"]
    )
    updates, optimizer = tx.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


def main(url: str | Path, *, steps: int = STEPS) -> float:
    """Train up to `steps`, and say what was done; returns the last loss."""
    sampler = jaxckpt.Sampler(size=1024, batch=32)
    inputs = jax.random.normal(jax.random.key(2), (1024, WIDTH))
    derived = {"schedule": "optimizer", "rng": "step"}
    loss = jnp.nan
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, keep=jaxckpt.Keep(last=2)) as ckpt:
        like = {**jax.eval_shape(fresh), "base": jax.eval_shape(pretrained), "data": sampler}
        restored = ckpt.restore_or_init(lambda: {**fresh(), "base": pretrained(), "data": sampler}, like=like)
        base_is_stored = restored.generation is not None
        base = restored.components["base"]
        state = {name: restored.components[name] for name in ("params", "optimizer")}
        step = restored.step
        for step in range(restored.step + 1, steps + 1):
            state, loss = update(base, state, inputs[sampler.next()])
            if ckpt.should_save(step) or step == steps:
                now = {**state, "data": sampler}
                if base_is_stored:
                    ckpt.save(step, now, unchanged=["base"])
                else:
                    ckpt.save(step, {**now, "base": base}).result()
                    base_is_stored = True
    if step == restored.step:
        print(f"nothing left to do: the run is at step {step}")
    else:
        print(f"steps {restored.step + 1} to {step}, loss {loss:.4f}")
    return float(loss)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/lora_jax.py URL")
    main(sys.argv[1])
