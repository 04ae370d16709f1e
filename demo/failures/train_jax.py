"""The training program for JAX, one rank of it: `python -m demo.failures.train_jax PLAN`, started by `ckpt supervise`.

But for `Rank`, which is the demo's, it is what any program has that survives what this demo does to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt
from demo.failures.plan import BATCH, SAMPLES, SAVE_EVERY, TOTAL, Plan
from demo.failures.rank import Rank
from demo.failures.task import MOMENTUM, RATE, vectors, weights

State = dict[str, Any]


def train(plan: Plan) -> None:
    """Train from the newest checkpoint, or from the beginning, to the end."""
    place = jaxckpt.initialize(heartbeat_seconds=60)  # a rank that hangs is the supervisor's to find, with its stack
    rank = Rank(plan, place)
    inputs, classes = vectors()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    divided = NamedSharding(mesh, PartitionSpec("data"))
    update = jax.jit(_update, out_shardings=(divided, NamedSharding(mesh, PartitionSpec())), donate_argnums=0)
    data = jaxckpt.Sampler(SAMPLES, BATCH, seed=7)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=divided), _fresh())

    def init() -> State:
        return {
            **jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, divided, leaf.__getitem__), _fresh()),
            "data": data,
        }

    derived = {"schedule": "step", "rng": "step"}
    with jaxckpt.Checkpointer(plan.url, interval=SAVE_EVERY, derived=derived, on_event=rank.on_event) as checkpointer:
        restored = checkpointer.restore_or_init(init, like={**like, "data": data}, accept_guarantee="coverage")
        state = {name: restored.components[name] for name in like}
        rank.begin(restored.step)
        for step in range(restored.step + 1, TOTAL + 1):
            samples = data.next(place.rank, place.size)
            checkpointer.heartbeat(seconds=rank.work(step))
            batch = [jax.make_array_from_process_local_data(divided, part[samples]) for part in (inputs, classes)]
            state, loss = update(state, *batch)
            rank.made(step, loss=float(loss), state=_local(state), samples=samples)
            if checkpointer.should_save(step):
                checkpointer.save(step, {**state, "data": data})
    rank.end(data.position)


def _fresh() -> State:
    first, second = weights(seed=7)
    params = {"first": first, "second": second}
    return {"params": params, "optimizer": jax.tree.map(np.zeros_like, params)}


def _update(state: State, inputs: jax.Array, classes: jax.Array) -> tuple[State, jax.Array]:
    def loss_of(params: State) -> jax.Array:
        scores = jax.nn.relu(inputs @ params["first"]) @ params["second"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), classes[:, None], axis=1))

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    momentum = jax.tree.map(lambda old, new: MOMENTUM * old + new, state["optimizer"], gradients)
    params = jax.tree.map(lambda old, step: old - RATE * step, state["params"], momentum)
    return {"params": params, "optimizer": momentum}, loss


def _local(state: State) -> Iterator[np.ndarray]:
    for leaf in jax.tree.leaves(state):
        for shard in leaf.addressable_shards:
            yield np.asarray(shard.data)


def main(plan: Plan) -> None:
    """Run one rank on the CPU."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_compilation_cache_dir", plan.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    train(plan)


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]))
