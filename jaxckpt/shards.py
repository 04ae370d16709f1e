"""Which box of an array lies on which device and rank, and the meshes behind it. Facts only, no bytes.

Everything here comes from `devices_indices_map` and `device.process_index`, so every process
of a JAX program gets the same answer without talking to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from ckptcore import canonical, digests, records
from ckptcore.geometry import Box


def box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """A shard's index, as JAX gives it, as a box."""
    bounds = [part.indices(extent) for part, extent in zip(index, shape, strict=True)]
    return Box(tuple(start for start, _, _ in bounds), tuple(stop for _, stop, _ in bounds))


def boxes(sharding: Sharding, shape: Sequence[int]) -> dict[Any, Box]:
    """The box of an array of `shape` that each device of `sharding` holds, by device, over all processes."""
    indices = sharding.devices_indices_map(tuple(shape))
    return {device: box(index, shape) for device, index in indices.items()}


def holders(sharding: Sharding, shape: Sequence[int]) -> dict[Box, tuple[int, ...]]:
    """Every distinct box of the global array with the sorted ranks that hold it."""
    ranks: dict[Box, set[int]] = {}
    for device, box in boxes(sharding, shape).items():
        ranks.setdefault(box, set()).add(device.process_index)
    return {box: tuple(sorted(held)) for box, held in ranks.items()}


def spans_processes(sharding: Sharding) -> bool:
    """Whether an array of this sharding belongs to all ranks together, not to this one alone.

    In a job of one process every array does.
    """
    return jax.process_count() == 1 or not sharding.is_fully_addressable


def describe(sharding: Sharding) -> str:
    """A sharding for people, the same on every rank: `('data', None) over data=2, model=4`."""
    if not isinstance(sharding, NamedSharding):
        return type(sharding).__name__
    axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return f"({', '.join(map(repr, sharding.spec))}) over {axes}"


def memory_kind(sharding: Sharding) -> str | None:
    """The memory an array lies in, or None for its devices' default."""
    kind = sharding.memory_kind
    return None if kind is None or kind == default_memory(sharding) else kind


def default_memory(sharding: Sharding) -> str | None:
    """The default memory kind of the devices of `sharding`."""
    device = min(sharding.device_set, key=lambda device: device.id)
    return device.default_memory().kind


def mesh_records(shardings: Iterable[Sharding]) -> list[records.Mesh]:
    """The distinct meshes that span the job, sorted."""
    named = {sharding for sharding in shardings if isinstance(sharding, NamedSharding) and spans_processes(sharding)}
    meshes = {sharding.mesh for sharding in named}
    found = {canonical.encode(_mesh_facts(mesh)): mesh for mesh in meshes if isinstance(mesh, Mesh)}
    return [_mesh_record(found[facts]) for facts in sorted(found)]


def topology(meshes: Sequence[records.Mesh]) -> records.Topology:
    """The running job: processes, devices and meshes."""
    return records.Topology(
        framework="jax",
        platform=jax.default_backend(),
        participants=jax.process_count(),
        devices=jax.device_count(),
        meshes=list(meshes),
    )


def _mesh_facts(mesh: Mesh) -> list[object]:
    devices: list[list[int]] = [[device.process_index, device.id] for device in mesh.devices.flat]
    return ["ckpt/mesh", list(mesh.axis_names), list(mesh.devices.shape), devices]


def _mesh_record(mesh: Mesh) -> records.Mesh:
    return records.Mesh(
        axes=list(mesh.axis_names),
        shape=list(mesh.devices.shape),
        devices=digests.digest(canonical.encode(_mesh_facts(mesh))),
    )
