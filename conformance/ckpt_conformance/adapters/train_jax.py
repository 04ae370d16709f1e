"""The numerics of the training task in JAX: one compiled function over the job's mesh, in binary64."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckpt_conformance.adapters.answers import Cannot
from ckpt_conformance.adapters.training import BETA1, BETA2, EPSILON, SHAPES, Rate

Arrays = Mapping[str, jax.Array]


class JaxModel:
    """`training.Model` in JAX. `arrays` are those of the beginning; `batch` is the number of rows of all processes."""

    def __init__(self, arrays: Mapping[str, jax.Array], mesh: Mesh, batch: int) -> None:
        if batch % mesh.size:
            raise Cannot(f"a batch of {batch} rows does not divide among {mesh.size} devices")
        self.arrays: dict[str, jax.Array] = dict(arrays)
        self._batch = batch
        self._rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        shardings = {name: array.sharding for name, array in arrays.items()}
        self._update = jax.jit(_update, out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())))

    def update(self, inputs: np.ndarray, targets: np.ndarray, rate: Rate) -> float:
        """See `training.Model.update`."""
        shared = [self._shared(inputs), self._shared(targets)]
        self.arrays, loss = self._update(self.arrays, *shared, (rate.rate, rate.first, rate.second))
        return float(loss.addressable_data(0))

    def _shared(self, rows: np.ndarray) -> jax.Array:
        """The rows of all processes, of which this one gives its own."""
        return jax.make_array_from_process_local_data(self._rows, rows, (self._batch, *rows.shape[1:]))


def _update(
    arrays: Arrays, inputs: jax.Array, targets: jax.Array, rates: tuple[float, float, float]
) -> tuple[dict[str, jax.Array], jax.Array]:
    rate, first, second = rates
    params = {p: arrays[f"params.{p}"] for p in SHAPES}
    loss, gradients = jax.value_and_grad(partial(_loss, inputs, targets))(params)
    made: dict[str, Any] = {"optimizer.count": arrays["optimizer.count"] + 1}
    for p, gradient in gradients.items():
        mu = BETA1 * arrays[f"optimizer.mu.{p}"] + (1 - BETA1) * gradient
        nu = BETA2 * arrays[f"optimizer.nu.{p}"] + (1 - BETA2) * gradient**2
        made[f"params.{p}"] = params[p] - rate * (mu / first) / (jnp.sqrt(nu / second) + EPSILON)
        made |= {f"optimizer.mu.{p}": mu, f"optimizer.nu.{p}": nu}
    return made, loss


def _loss(inputs: jax.Array, targets: jax.Array, params: Arrays) -> jax.Array:
    predicted = jnp.tanh(inputs @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
    return jnp.mean((predicted[:, 0] - targets) ** 2)
