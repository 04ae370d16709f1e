"""The model: a small Flax classifier whose parameters are sharded over a 2-D mesh.

Dropout makes the random key matter, warm-up and cosine make the optimizer's count matter, and
AdamW's two moments make a checkpoint three times as large as the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demo.data import CLASSES, PIXELS
from demo.job import STEPS_PER_EPOCH


class Classifier(nn.Module):
    """Images `(batch, 64)` in 0..1 → logits `(batch, 10)`."""

    width: int = 256

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Apply the network; with `train`, dropout needs the `dropout` key."""
        hidden = images
        for _ in range(2):
            hidden = nn.relu(nn.Dense(self.width)(hidden))
            hidden = nn.Dropout(0.2, deterministic=not train)(hidden)
        return nn.Dense(CLASSES)(hidden)


def make_mesh(shape: tuple[int, int]) -> Mesh:
    """All devices of the job as a mesh with the axes `data` and `model`."""
    return Mesh(np.asarray(jax.devices()).reshape(shape), ("data", "model"))


class Trainer:
    """The pure functions of the training run, compiled for one mesh.

    The state is `{"params": …, "optimizer": …, "rng": key}`.
    """

    def __init__(self, mesh: Mesh, *, total: int) -> None:
        self.mesh = mesh
        self._model = Classifier()
        schedule = optax.warmup_cosine_decay_schedule(0.0, 4e-3, STEPS_PER_EPOCH, total)
        self._optimizer = optax.adamw(schedule, weight_decay=1e-2)
        shapes = jax.eval_shape(self._init, jax.random.key(0))
        self._shardings = jax.tree.map(lambda leaf: NamedSharding(mesh, _spec(leaf.ndim)), shapes)
        self.abstract = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, self._shardings
        )
        """The state's shapes, dtypes and shardings: what a restore aims at."""
        batch = NamedSharding(mesh, PartitionSpec("data"))
        self.step: Callable[..., Any] = jax.jit(
            self._step,
            in_shardings=(self._shardings, batch, batch),
            out_shardings=(self._shardings, NamedSharding(mesh, PartitionSpec())),
            donate_argnums=0,
        )
        """`(state, images, labels) -> (state, loss)`; the old state is donated."""
        self._batch = batch

    def init(self, seed: int) -> dict[str, Any]:
        """Fresh state, made where it will live: every process computes its own shards."""
        return jax.jit(self._init, out_shardings=self._shardings)(jax.random.key(seed))

    def to_devices(self, local: np.ndarray) -> jax.Array:
        """This process's part of a batch → the global batch, split over the `data` axis."""
        return jax.make_array_from_process_local_data(self._batch, local)

    def accuracy(self, params: Any, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of test images that is classified right; every process calls it."""

        def right(params: Any) -> jax.Array:
            logits = self._model.apply({"params": params}, images, train=False)
            return jnp.mean(jnp.argmax(jnp.asarray(logits), axis=-1) == labels)

        return float(jax.jit(right, out_shardings=NamedSharding(self.mesh, PartitionSpec()))(params))

    def _init(self, key: jax.Array) -> dict[str, Any]:
        weights, rng = jax.random.split(key)
        params = self._model.init(weights, jnp.zeros((1, PIXELS)), train=False)["params"]
        return {"params": params, "optimizer": self._optimizer.init(params), "rng": rng}

    def _step(self, state: dict[str, Any], images: jax.Array, labels: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        rng, dropout = jax.random.split(state["rng"])

        def loss_of(params: Any) -> jax.Array:
            logits = self._model.apply({"params": params}, images, train=True, rngs={"dropout": dropout})
            return optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, optimizer = self._optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer, "rng": rng}, loss


def _spec(dimensions: int) -> PartitionSpec:
    """Kernels are split over both axes, biases over `model` (replicated over `data`), scalars over none."""
    return {2: PartitionSpec("data", "model"), 1: PartitionSpec("model")}.get(dimensions, PartitionSpec())
