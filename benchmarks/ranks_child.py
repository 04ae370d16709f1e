"""One process of a job of `benchmarks.ranks`: saves the whole state, or restores its part of it, and reports in JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import torchckpt
from benchmarks import memory, on_torch, state
from benchmarks.child import read_so_far
from benchmarks.ranks import AS_SAVED

Tensors = dict[str, dict[str, torch.Tensor]]

DERIVED = {"schedule": "step", "rng": "step", "data": "step"}
"""So that the state is all there is."""


def save(size: str, folder: Path, placement: str) -> dict[str, Any]:
    """Save the state as it lies on the ranks."""
    on_torch.join()
    mesh, placements = _mesh(placement)
    with torchckpt.Checkpointer(folder / "run", derived=DERIVED, on_preemption="ignore") as saver:
        saver.save(1, _components(_each(size, mesh, placements, state.array))).result()
    on_torch.leave()
    return {}


def restore(size: str, folder: Path, placement: str, mode: str) -> dict[str, Any]:
    """Restore, all ranks at once; what this rank needed, read and took."""
    on_torch.join()
    mesh, placements = _mesh(placement)
    target = _each(size, mesh, placements, lambda _component, _name, shape: np.zeros(shape, np.float32))
    needed = sum(_local(tensor).nbytes for tensors in target.values() for tensor in tensors.values())
    once = mode == "fetch_once"
    with torchckpt.Checkpointer(folder / "run", derived=DERIVED, on_preemption="ignore", fetch_once=once) as saver:
        on_torch.barrier()
        before, started = read_so_far()["asked"], time.perf_counter()
        with memory.Peak() as peak:
            saver.restore(like=_components(target), accept_guarantee="coverage")
        seconds, read = time.perf_counter() - started, read_so_far()["asked"] - before
    for component, name, expected in state.each(size):
        local = _local(_placed(expected, mesh, placements)).numpy()
        state.compare(component, name, local, _local(target[component][name]).numpy())
    on_torch.leave()
    return {"needed": needed, "read": read, "seconds": seconds, "over": max(0, peak.bytes - needed)}


def _components(tensors: Tensors) -> dict[str, Any]:
    """What a save takes, and a restore fills in place."""
    return {"params": tensors["params"], "optimizer": {"mu": tensors["mu"], "nu": tensors["nu"]}}


def _mesh(placement: str) -> tuple[DeviceMesh | None, tuple[Placement, ...]]:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if placement == "replicated" or ranks == 1:
        return None, ()
    if placement in ("sharded", AS_SAVED):
        return init_device_mesh("cpu", (ranks,)), (Shard(0),)
    return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard")), (Replicate(), Shard(0))


def _each(
    size: str,
    mesh: DeviceMesh | None,
    placements: tuple[Placement, ...],
    values: Callable[[str, str, state.Shape], np.ndarray],
) -> Tensors:
    shapes = state.shapes(size).items()
    return {
        component: {name: _placed(values(component, name, shape), mesh, placements) for name, shape in shapes}
        for component in state.COMPONENTS
    }


def _placed(whole: np.ndarray, mesh: DeviceMesh | None, placements: tuple[Placement, ...]) -> torch.Tensor:
    """Each rank makes its own part: nothing is sent."""
    tensor = torch.from_numpy(whole)
    return tensor if mesh is None else distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main(asked: dict[str, Any]) -> None:
    """Do what is asked, and print the report."""
    do, folder = asked.pop("do"), Path(asked.pop("folder"))
    print(json.dumps((save if do == "save" else restore)(folder=folder, **asked)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
