"""The adapter of `jaxckpt`: `python -m ckpt_conformance.adapters.jax`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from ckpt_conformance.adapters.process import main
from ckpt_conformance.adapters.request import Request
from ckpt_conformance.adapters.state import Box, Leaf, whole
from ckpt_conformance.adapters.train_jax import JaxModel
from ckptcore import dtypes
from ckptcore.backend import Backend
from jaxckpt.backend import JaxBackend

_NOT_ON_DEVICES = ("float6_e2m3fn", "float6_e3m2fn")


@dataclass(frozen=True)
class JaxDevices:
    """The CPU devices of this process, in a mesh over all processes."""

    mesh: Mesh

    def array(self, leaf: Leaf, step: int) -> Any:
        """See `Devices.array`."""
        if leaf.sharding is None:
            data: Any = leaf.elements(step)
        else:
            data = self._sharded(leaf, lambda index: leaf.elements(step, *_bounds(index, leaf.shape)))
        return data if leaf.prng_impl is None else jax.random.wrap_key_data(data, impl=leaf.prng_impl)

    def blank(self, leaf: Leaf) -> Any:
        """See `Devices.blank`: an abstract array, or a host array."""
        if leaf.prng_impl is not None:
            return self._blank_keys(leaf, leaf.prng_impl)
        dtype = dtypes.numpy_dtype(leaf.dtype)
        if leaf.sharding is None:
            return np.zeros(leaf.shape, dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=self._sharding(leaf))

    def boxes(self, array: Any) -> list[Box]:
        """See `Devices.boxes`."""
        if not isinstance(array, jax.Array):
            return whole(np.asarray(array))
        data = jax.random.key_data(array) if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) else array
        held = {_bounds(shard.index, data.shape): shard.data for shard in data.addressable_shards}
        return [(start, stop, np.asarray(part)) for (start, stop), part in held.items()]

    def model(self, beginning: Mapping[Leaf, np.ndarray], batch: int) -> JaxModel:
        """See `Devices.model`."""
        arrays = {leaf.name: self._sharded(leaf, data.__getitem__) for leaf, data in beginning.items()}
        return JaxModel(arrays, self.mesh, batch)

    def _blank_keys(self, leaf: Leaf, impl: str) -> Any:
        """Random keys. Their data has one more dimension, which is not cut."""
        if leaf.sharding is None:
            return jax.random.wrap_key_data(jax.numpy.zeros(leaf.shape, np.uint32), impl=impl)
        keys = replace(leaf, shape=leaf.shape[:-1], sharding=leaf.sharding[:-1])
        dtype: Any = jax.random.key(0, impl=impl).dtype
        return jax.ShapeDtypeStruct(keys.shape, dtype, sharding=self._sharding(keys))

    def _sharded(self, leaf: Leaf, part: Callable[[Any], np.ndarray]) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, self._sharding(leaf), part)

    def _sharding(self, leaf: Leaf) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*(axes or None for axes in leaf.sharding or ())))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bounds = [part.indices(extent) for part, extent in zip(index, shape, strict=True)]
    return tuple(start for start, _, _ in bounds), tuple(stop for _, stop, _ in bounds)


class Jax:
    """JAX, on CPU devices."""

    name = "jax"
    library = jaxckpt
    features = (
        *("rank-scope", "unequal-rank-shapes", "aliases", "prng", "values", "references", "metrics", "remap", "cast", "rollback"),
        *("single-writer", "nodes", "vouching", "copies"),
    )
    devices_per_process = "any"
    preloaded = ()

    def dtypes(self) -> list[str]:
        """See `Framework.dtypes`."""
        return sorted(dtypes.LOGICAL.difference(_NOT_ON_DEVICES))

    def join(self, request: Request) -> JaxDevices:
        """See `Framework.join`."""
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)  # noqa: FBT003 -- the name of a flag and its value
        jax.config.update("jax_num_cpu_devices", math.prod(request.shape) // request.processes)
        if request.processes > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            # What ends this process when another one dies is `peers`; a stopped one may be away for longer than heartbeats.
            jax.distributed.initialize(request.rendezvous, request.processes, request.rank, heartbeat_timeout_seconds=100)
        return JaxDevices(Mesh(np.array(jax.devices()).reshape(request.shape), request.axes))

    def backend(self, url: str) -> Backend:
        """See `Framework.backend`."""
        return JaxBackend(label=url)


if __name__ == "__main__":
    main(Jax())
