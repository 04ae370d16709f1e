"""The adapter of `torchckpt`: `python -m ckpt_conformance.adapters.torch`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.tensor as tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import torchckpt
from ckpt_conformance.adapters.answers import Cannot
from ckpt_conformance.adapters.process import main
from ckpt_conformance.adapters.request import Request
from ckpt_conformance.adapters.state import Axes, Box, Leaf, whole
from ckpt_conformance.adapters.train_torch import TorchModel
from ckptcore import dtypes
from ckptcore.backend import Backend
from ckptcore.errors import UnsupportedLeaf
from torchckpt import leaves
from torchckpt.backend import TorchBackend

Bounds = tuple[int, ...]

_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True)
class TorchDevices:
    """The CPU of this process, in a mesh over all processes; of a single one there is no mesh."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    _meshes: dict[tuple[str, ...], DeviceMesh] = field(default_factory=dict, repr=False)

    def array(self, leaf: Leaf, step: int) -> Any:
        """See `Devices.array`."""
        return self._filled(leaf, lambda start, stop: leaf.elements(step, start, stop))

    def blank(self, leaf: Leaf) -> torch.Tensor:
        """See `Devices.blank`."""
        dtype = leaves.torch_dtype(leaf.dtype, leaf.name)
        if leaf.prng_impl is not None:
            raise Cannot("torch has no typed random keys")
        if leaf.sharding is None or math.prod(self.shape) == 1:
            return leaves.from_numpy(np.zeros(leaf.shape, dtypes.numpy_dtype(leaf.dtype)))
        order = _order(leaf.sharding, self.axes)
        cuts = {axis: Shard(dim) for dim, axes in enumerate(leaf.sharding) for axis in axes}
        placements = [cuts.get(axis, Replicate()) for axis in order]
        return tensors.empty(*leaf.shape, dtype=dtype, device_mesh=self._mesh(order), placements=placements)

    def boxes(self, array: Any) -> list[Box]:
        """See `Devices.boxes`."""
        if not isinstance(array, torch.Tensor):
            return whole(np.asarray(array))
        return [(start, stop, leaves.to_numpy(place)) for start, stop, place in _held(array)]

    def model(self, beginning: Mapping[Leaf, np.ndarray], batch: int) -> TorchModel:
        """See `Devices.model`."""
        arrays = {leaf.name: self._filled(leaf, partial(_cut, data)) for leaf, data in beginning.items()}
        return TorchModel(arrays, _held, batch)

    def _filled(self, leaf: Leaf, elements: Callable[[Bounds, Bounds], np.ndarray]) -> torch.Tensor:
        made = self.blank(leaf)
        for start, stop, place in _held(made):
            place.copy_(leaves.from_numpy(elements(start, stop)))
        return made

    def _mesh(self, order: tuple[str, ...]) -> DeviceMesh:
        """The mesh with its axes in another order: the same processes at the same places."""
        if order not in self._meshes:
            ranks = torch.arange(math.prod(self.shape)).reshape(self.shape)
            places = ranks.permute([self.axes.index(axis) for axis in order])
            self._meshes[order] = DeviceMesh("cpu", places, mesh_dim_names=order)
        return self._meshes[order]


def _order(sharding: Axes, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh's axes in an order in which those that cut one dimension come as they cut it."""
    if all([axes.index(axis) for axis in cut] == sorted(axes.index(axis) for axis in cut) for cut in sharding):
        return axes
    named = tuple(axis for cut in sharding for axis in cut)
    return (*named, *(axis for axis in axes if axis not in named))


def _cut(data: np.ndarray, start: Bounds, stop: Bounds) -> np.ndarray:
    return np.asarray(data[tuple(slice(*bounds) for bounds in zip(start, stop, strict=True))])


def _held(tensor: torch.Tensor) -> list[tuple[Bounds, Bounds, torch.Tensor]]:
    """The box that this process holds of a tensor, with its part of the memory: one, or none where its shard is empty."""
    if not isinstance(tensor, DTensor):
        return [((0,) * tensor.ndim, tuple(tensor.shape), tensor.detach())]
    (chunk,) = tensor.__create_chunk_list__()
    start = tuple(chunk.offsets)
    stop = tuple(first + size for first, size in zip(start, chunk.sizes, strict=True))
    return [] if tensor.numel() and not math.prod(chunk.sizes) else [(start, stop, tensor.to_local().detach())]


class Torch:
    """PyTorch, on CPUs, with gloo."""

    name = "torch"
    library = torchckpt
    features = (
        *("uneven", "rank-scope", "unequal-rank-shapes", "pipeline", "aliases", "values", "references", "metrics", "remap"),
        *("cast", "rollback", "single-writer", "tied-targets", "nodes", "vouching", "copies"),
    )
    devices_per_process = 1
    preloaded = ("numpy.random", "torch._dynamo", "torch.distributed.checkpoint.planner_helpers")

    def dtypes(self) -> list[str]:
        """See `Framework.dtypes`."""
        return sorted(filter(_is_offered, dtypes.LOGICAL))

    def join(self, request: Request) -> TorchDevices:
        """See `Framework.join`."""
        torch.set_num_threads(1)
        if request.processes > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://{request.rendezvous}",
                rank=request.rank,
                world_size=request.processes,
                timeout=_PATIENCE,
            )
        return TorchDevices(request.axes, request.shape)

    def backend(self, url: str) -> Backend:
        """See `Framework.backend`."""
        return TorchBackend(label=url)


def _is_offered(dtype: str) -> bool:
    try:
        leaves.torch_dtype(dtype, dtype)
    except UnsupportedLeaf:
        return False
    return True


if __name__ == "__main__":
    main(Torch())
