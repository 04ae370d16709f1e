"""A loop shaped as MaxText's: a config, state made in its shardings, a donated step, periods for checkpoints and evaluation.

`python examples/maxtext_like_jax.py /tmp/maxtext` trains on all devices. Started again it goes on; told to stop by SIGTERM it
saves once more first, and ends with status 143.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt


@dataclass(frozen=True)
class Config:
    """What a run is."""

    base_output_directory: str
    steps: int = 40
    checkpoint_period: int = 10
    eval_interval: int = 20
    embed: int = 16
    mlp: int = 32
    global_batch: int = 16
    learning_rate: float = 1e-2


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """AdamW, with warm-up and decay."""
    return optax.adamw(optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, 5, config.steps))


def init_state(config: Config) -> dict[str, Any]:
    """The state of step 0. JAX traces it."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "wi": jax.random.normal(keys[0], (config.embed, config.mlp)) / config.embed**0.5,
        "wo": jax.random.normal(keys[1], (config.mlp, config.embed)) / config.mlp**0.5,
    }
    return {"params": params, "optimizer": optimizer_of(config).init(params)}


def abstract_state(config: Config, mesh: Mesh) -> dict[str, Any]:
    """Shapes, dtypes and shardings, without any memory: matrices are sharded over `fsdp`, the rest is replicated."""

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec("fsdp") if len(leaf.shape) == 2 else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, jax.eval_shape(lambda: init_state(config)))


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    """The mean square error of one block."""
    return jnp.square(jax.nn.relu(x @ params["wi"]) @ params["wo"] - jnp.roll(x, 1, axis=1)).mean()


def train(config: Config) -> dict[str, Any]:
    """Train to the end of the run; returns the state."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    abstract, tx = abstract_state(config, mesh), optimizer_of(config)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    batch_sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    samples = np.random.default_rng(0).normal(size=(512, config.embed)).astype(np.float32)
    sampler = jaxckpt.Sampler(len(samples), config.global_batch)

    def step_of(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
        updates, optimizer = tx.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss

    train_step = jax.jit(step_of, in_shardings=(shardings, batch_sharding), out_shardings=(shardings, None), donate_argnums=0)
    eval_step = jax.jit(loss_of)

    def init() -> dict[str, Any]:
        return {**jax.jit(lambda: init_state(config), out_shardings=shardings)(), "data": sampler}

    def batch(rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, batch_sharding, lambda index: rows[index])

    folder, derived = config.base_output_directory, {"schedule": "optimizer", "rng": "step"}
    keep = jaxckpt.Keep(last=3, best=jaxckpt.Best("eval_loss", 1))
    with jaxckpt.Checkpointer(folder, interval=config.checkpoint_period, derived=derived, require="exact", keep=keep) as ckpt:
        restored = ckpt.restore_or_init(init, like={**abstract, "data": sampler})
        state = {name: restored.components[name] for name in abstract}
        for step in range(restored.step + 1, config.steps + 1):
            state, _ = train_step(state, batch(samples[sampler.next()]))
            metrics = {}
            if step % config.eval_interval == 0:
                metrics["eval_loss"] = eval_step(state["params"], batch(samples[-64:]))
            if ckpt.should_save(step) or step == config.steps:  # says yes after SIGTERM as well; `save` then ends the job
                ckpt.save(step, {**state, "data": sampler}, metrics=metrics)  # the next step may donate what it saved
    print(f"from step {restored.step} to step {config.steps}")
    return state


def main(url: str | Path) -> dict[str, Any]:
    """Train a run with the default config."""
    return train(Config(base_output_directory=str(url)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/maxtext_like_jax.py URL")
    main(sys.argv[1])
