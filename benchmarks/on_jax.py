"""The state as JAX arrays on a mesh of CPU devices; the target and the check of a restore. For JAX subjects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from benchmarks import state
from benchmarks.subject import Mesh

State = dict[str, dict[str, Any]]

SHAPES: Mapping[Mesh, tuple[int, ...]] = {"1d": (8,), "2d": (4, 2), "transposed": (8,)}


def shardings(mesh: Mesh) -> Callable[[state.Shape], jax.sharding.Sharding]:
    """Shape → sharding of an array of that shape."""
    if mesh == "one":
        single = SingleDeviceSharding(jax.devices()[0])
        return lambda _: single
    counts = SHAPES[mesh]
    names = tuple("xy"[: len(counts)])
    devices = DeviceMesh(np.array(jax.devices()[: int(np.prod(counts))]).reshape(counts), names)
    return lambda shape: NamedSharding(devices, PartitionSpec(*_axes(shape, dict(zip(names, counts, strict=True)), mesh)))


def _axes(shape: state.Shape, counts: Mapping[str, int], mesh: Mesh) -> list[tuple[str, ...]]:
    """For each axis of an array the axes of the mesh that cut it.

    Each axis of the mesh cuts the first axis that it divides, or the last one if `transposed`, a free one if there is any.
    """
    cut: list[tuple[str, ...]] = [() for _ in shape]
    left = list(shape)
    for name, count in counts.items():
        possible = [axis for axis, size in enumerate(left) if size % count == 0]
        if possible:
            free = [axis for axis in possible if not cut[axis]] or possible
            axis = free[-1] if mesh == "transposed" else free[0]
            cut[axis] += (name,)
            left[axis] //= count
    return cut


def arrays(size: str, mesh: Mesh) -> State:
    """The state on the devices."""
    return _each(size, mesh, state.array)


def zeros(size: str, mesh: Mesh) -> State:
    """Arrays as those of `arrays`, all zero."""
    return _each(size, mesh, lambda _component, _name, shape: np.zeros(shape, np.float32))


def wait(found: State) -> State:
    """The same, when all of its arrays are there."""
    return jax.block_until_ready(found)


def abstract(size: str, mesh: Mesh) -> State:
    """Shape, type and sharding of each array: a target that takes no memory."""
    place = shardings(mesh)
    shapes = state.shapes(size).items()
    made = {name: jax.ShapeDtypeStruct(shape, np.float32, sharding=place(shape)) for name, shape in shapes}
    return {component: dict(made) for component in state.COMPONENTS}


def check(size: str, mesh: Mesh, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `state.Different` unless `found` are the arrays of the state, on the mesh."""
    place = shardings(mesh)
    for component, name, expected in state.each(size):
        values = found[component][name]
        if not values.sharding.is_equivalent_to(place(expected.shape), expected.ndim):
            raise state.Different(f"{component}/{name}: {values.sharding}")
        state.compare(component, name, expected, np.asarray(values))


def _each(size: str, mesh: Mesh, values: Callable[[str, str, state.Shape], np.ndarray]) -> State:
    place = shardings(mesh)
    shapes = state.shapes(size).items()
    made = {
        component: {name: _copied(values(component, name, shape), place(shape)) for name, shape in shapes}
        for component in state.COMPONENTS
    }
    return jax.block_until_ready(made)


def _copied(values: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """In memory of JAX's own: what `device_put` makes may be the array's."""
    return jax.device_put(values, sharding, may_alias=False)
