"""A training program for JAX: `python train_jax.py URL STEPS`, alone or as one process of many, whoever has started it."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxckpt import Checkpointer, Sampler, initialize


def main(url: str, steps: int, pause: float = 0.0) -> None:
    """Train for `steps` updates in total, at least `pause` seconds each."""
    place = initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    tx = optax.adamw(1e-2)
    data = Sampler(size=1000, batch=10 * jax.device_count(), seed=0)

    @jax.jit
    def fresh():
        params = {"w": jnp.zeros(8)}
        return jax.lax.with_sharding_constraint({"params": params, "optimizer": tx.init(params)}, everywhere)

    @jax.jit
    def update(state, batch):
        loss = lambda params: jnp.mean((batch[:, None] @ params["w"][None, :] - 1.0) ** 2)  # noqa: E731
        updates, optimizer = tx.update(jax.grad(loss)(state["params"]), state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}

    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), jax.eval_shape(fresh))
    derived = {"schedule": "step", "rng": "step"}
    with Checkpointer(url, interval=10, derived=derived) as ckpt:
        init = lambda: {**fresh(), "data": data}  # noqa: E731
        restored = ckpt.restore_or_init(init, like={**like, "data": data}, accept_guarantee="coverage")
        print(f"process {place.rank} of {place.size} begins at step {restored.step}", flush=True)
        state = {name: restored.components[name] for name in like}
        for step in range(restored.step + 1, steps + 1):
            batch = np.asarray(data.next(), np.float32)
            state = update(state, jax.make_array_from_callback(batch.shape, divided, lambda index, batch=batch: batch[index]))
            time.sleep(pause)
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {**state, "data": data})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
