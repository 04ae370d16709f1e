"""The state as tensors, or as DTensors over the ranks of a job; the target and the check of a restore. For torch subjects."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from benchmarks import state
from benchmarks.subject import RANKS, Mesh

State = dict[str, dict[str, torch.Tensor]]

SHAPES: Mapping[Mesh, tuple[int, ...]] = {"1d": (RANKS,), "2d": (2, 2), "transposed": (RANKS,)}


def join() -> None:
    """Join the process group of a job of several processes; alone, there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for all ranks, if there are several."""
    if dist.is_initialized():
        dist.barrier()


def device_mesh(mesh: Mesh) -> DeviceMesh | None:
    """The mesh of the ranks; None for `one`."""
    return None if mesh == "one" else init_device_mesh("cpu", SHAPES[mesh], mesh_dim_names=("x", "y")[: len(SHAPES[mesh])])


def placements(mesh: Mesh, shape: state.Shape) -> tuple[Placement, ...]:
    """How an array of that shape is cut; a 2-D mesh has copies of what has one axis only."""
    if mesh == "2d":
        return Shard(0), Shard(1) if len(shape) > 1 else Replicate()
    return (Shard(len(shape) - 1 if mesh == "transposed" else 0),)


def arrays(size: str, mesh: Mesh) -> State:
    """The state, on the mesh. Each rank makes its own parts."""
    return _each(size, mesh, state.array)


def zeros(size: str, mesh: Mesh) -> State:
    """Tensors as those of `arrays`, all zero, in memory that is there."""
    return _each(size, mesh, lambda _component, _name, shape: np.zeros(shape, np.float32))


def check(size: str, mesh: Mesh, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `state.Different` unless `found` are the arrays of the state; each rank looks at its own parts."""
    where = device_mesh(mesh)
    for component, name, expected in state.each(size):
        tensor = found[component][name]
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        state.compare(component, name, _part(expected, mesh, where), local.detach().numpy())


def _each(size: str, mesh: Mesh, values: Callable[[str, str, state.Shape], np.ndarray]) -> State:
    where = device_mesh(mesh)
    shapes = state.shapes(size).items()
    return {
        component: {name: _made(values(component, name, shape), mesh, where) for name, shape in shapes}
        for component in state.COMPONENTS
    }


def _made(whole: np.ndarray, mesh: Mesh, where: DeviceMesh | None) -> torch.Tensor:
    local = torch.from_numpy(np.array(_part(whole, mesh, where), order="C"))
    if where is None:
        return local
    shape = torch.Size(whole.shape)
    return DTensor.from_local(
        local,
        where,
        placements(mesh, whole.shape),
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def _part(whole: np.ndarray, mesh: Mesh, where: DeviceMesh | None) -> np.ndarray:
    """This rank's part, cut as `torch.chunk` cuts."""
    if where is None:
        return whole
    for dim, placement in enumerate(placements(mesh, whole.shape)):
        if isinstance(placement, Shard):
            axis, parts, index = placement.dim, where.size(dim), where.get_local_rank(dim)
            length = -(-whole.shape[axis] // parts)
            cut = [slice(None)] * whole.ndim
            cut[axis] = slice(min(index * length, whole.shape[axis]), min((index + 1) * length, whole.shape[axis]))
            whole = whole[tuple(cut)]
    return whole
