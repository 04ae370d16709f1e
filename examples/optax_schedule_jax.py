"""Optax: a schedule, gradients that are accumulated over several micro-batches, and a loss scale for float16.

A step is a micro-batch here, so checkpoints may fall between two updates: what is accumulated is in the optimizer's state.
Run it twice: `python examples/optax_schedule_jax.py /tmp/optax`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxckpt

ACCUMULATE, STEPS = 4, 60

schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=5, decay_steps=STEPS // ACCUMULATE)
tx = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)), every_k_schedule=ACCUMULATE)


def fresh() -> dict[str, Any]:
    """The state of step 0."""
    params = {"w": jax.random.normal(jax.random.key(0), (8, 16)) / 4, "v": jnp.full((16, 1), 0.1)}
    loss_scale = {"scale": jnp.float32(2.0**15), "good_steps": jnp.int32(0)}
    return {"params": params, "optimizer": tx.init(params), "loss_scale": loss_scale}


@jax.jit
def update(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One micro-batch, in float16. Gradients that are not finite are left out, and halve the scale."""
    scale = state["loss_scale"]["scale"]

    def loss_of(params: Any) -> jax.Array:
        half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
        out = jnp.tanh(x.astype(jnp.float16) @ half["w"]) @ half["v"]
        return jnp.square(out - x.sum(1, keepdims=True)).mean() * scale

    scaled, grads = jax.value_and_grad(loss_of)(state["params"])
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.isfinite(optax.tree.norm(grads))
    updates, optimizer = tx.update(grads, state["optimizer"], state["params"])
    trained = {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), trained, {name: state[name] for name in trained})
    good = jnp.where(finite, state["loss_scale"]["good_steps"] + 1, 0)
    scale = jnp.where(finite, jnp.where(good % 20 == 0, scale * 2, scale), scale / 2)
    return {**kept, "loss_scale": {"scale": scale, "good_steps": good}}, scaled / state["loss_scale"]["scale"]


def main(url: str | Path, *, steps: int = STEPS) -> dict[str, Any]:
    """Train up to `steps`; returns the state."""
    sampler = jaxckpt.Sampler(size=512, batch=16)
    inputs = jax.random.normal(jax.random.key(1), (512, 8))
    derived = {"schedule": "optimizer", "rng": "step"}  # optax counts updates in its state; no random numbers are drawn
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=jaxckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(lambda: {**fresh(), "data": sampler}, like={**jax.eval_shape(fresh), "data": sampler})
        state = {name: held for name, held in restored.components.items() if name != "data"}
        for step in range(restored.step + 1, steps + 1):
            state, loss = update(state, inputs[sampler.next()])
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {**state, "data": sampler}, metrics={"loss": loss})
    print(f"from step {restored.step} to step {steps}")
    return state


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/optax_schedule_jax.py URL")
    main(sys.argv[1])
