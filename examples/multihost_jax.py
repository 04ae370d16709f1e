"""Several hosts: one JAX process on each, a mesh over all their devices, and the same lines in every process.

On two machines, or twice on one, with 0 and 1 in the place of N:

    python examples/multihost_jax.py /shared/run HOST0:PORT 2 N

If one process dies, JAX ends the others. Start all of them again, and they go on from the newest checkpoint that is whole.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt

BATCH, STEPS = 16, 40

tx = optax.adamw(1e-2)


def fresh() -> dict[str, Any]:
    """The state of step 0."""
    params = {"w": jax.random.normal(jax.random.key(0), (16, 16)) / 4, "b": jnp.zeros(16)}
    return {"params": params, "optimizer": tx.init(params), "rng": jax.random.key(1)}


def update(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One step, with noise."""
    rng, key = jax.random.split(state["rng"])
    noisy = x + 0.1 * jax.random.normal(key, x.shape)
    loss, grads = jax.value_and_grad(lambda p: jnp.square(jnp.tanh(noisy @ p["w"]) + p["b"] - x).mean())(state["params"])
    updates, optimizer = tx.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer, "rng": rng}, loss


def main(url: str | Path, *, steps: int = STEPS) -> dict[str, Any]:
    """Train up to `steps`, after `jax.distributed.initialize`; returns the state."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:  # every process needs to know where everything lies
        sharding = rows if leaf.shape[:1] == (16,) else everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    abstract = jax.tree.map(place, jax.eval_shape(fresh))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    step_on_all = jax.jit(update, out_shardings=(shardings, everywhere), donate_argnums=0)
    samples = np.random.default_rng(0).normal(size=(512, 16)).astype(np.float32)
    sampler = jaxckpt.Sampler(len(samples), BATCH)  # the global batch; each process takes its part

    def init() -> dict[str, Any]:
        return {**jax.jit(fresh, out_shardings=shardings)(), "data": sampler}

    derived = {"schedule": "optimizer"}
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=jaxckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(init, like={**abstract, "data": sampler})
        state = {name: restored.components[name] for name in abstract}
        for step in range(restored.step + 1, steps + 1):
            mine = samples[sampler.next(jax.process_index(), jax.process_count())]
            state, loss = step_on_all(state, jax.make_array_from_process_local_data(rows, mine))
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {**state, "data": sampler}, metrics={"loss": loss})
    print(f"process {jax.process_index()}: from step {restored.step} to step {steps}")
    return state


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python examples/multihost_jax.py URL COORDINATOR PROCESSES NUMBER")
    jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    main(sys.argv[1])
