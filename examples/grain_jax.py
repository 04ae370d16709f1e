"""Grain: its iterator is the data cursor, shuffling and random transformations included.

Run it twice: `python examples/grain_jax.py /tmp/grain`. The second time it goes on where the first one ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxckpt

STEPS = 40

tx = optax.adam(1e-2)


class Samples:
    """A data source. Its `repr` is part of Grain's state, so it must not hold an address."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> np.ndarray:
        return np.sin(index + np.arange(8, dtype=np.float32))

    def __repr__(self) -> str:
        return "Samples()"


def noise(element: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random transformation: Grain derives its random numbers from the position."""
    return element + rng.normal(scale=0.1, size=element.shape).astype(np.float32)


def batches() -> Iterator[np.ndarray]:
    """This process's part of the data. It has `get_state` and `set_state`."""
    mine = slice(jax.process_index(), None, jax.process_count())
    dataset = grain.MapDataset.source(Samples())[mine].seed(3).shuffle().random_map(noise).repeat().batch(10)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def fresh() -> dict[str, Any]:
    """The state of step 0."""
    params = {"w": jnp.zeros((8, 1))}
    return {"params": params, "optimizer": tx.init(params)}


@jax.jit
def update(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One step."""
    loss, grads = jax.value_and_grad(lambda p: jnp.square(x @ p["w"] - x[:, :1] * 2).mean())(state["params"])
    updates, optimizer = tx.update(grads, state["optimizer"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


def main(url: str | Path, *, steps: int = STEPS) -> dict[str, Any]:
    """Train up to `steps`; returns the state."""
    data = batches()
    cursor = jaxckpt.PerRank(data)  # each process reads a shard of its own
    derived = {"schedule": "optimizer", "rng": "step"}
    with jaxckpt.Checkpointer(url, interval=10, derived=derived, require="exact", keep=jaxckpt.Keep(last=3)) as ckpt:
        like = {**jax.eval_shape(fresh), "data": cursor}
        restored = ckpt.restore_or_init(lambda: {**fresh(), "data": cursor}, like=like)  # moves `data` to where it was
        state = {name: restored.components[name] for name in ("params", "optimizer")}
        for step in range(restored.step + 1, steps + 1):
            state, loss = update(state, jnp.asarray(next(data)))
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, {**state, "data": cursor}, metrics={"loss": loss})
    print(f"from step {restored.step} to step {steps}")
    return state


if __name__ == "__main__":
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain looks at flags, which absl.app.run would parse
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/grain_jax.py URL")
    main(sys.argv[1])
