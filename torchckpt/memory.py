"""Which tensors are the same memory: they can hold one content only, whatever their names are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch

from ckptcore.errors import UnsupportedLeaf
from torchckpt import shards

Place = tuple[object, ...]


def place(tensor: torch.Tensor) -> Place:
    """Equal for two tensors, or two views, that are the same elements of the same memory. An empty tensor has only itself."""
    local = shards.local(tensor)
    if local.numel() == 0 or local.is_meta:
        return (id(tensor),)
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, tuple(tensor.shape))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie at one place in memory: no stride steps over all that smaller strides reach."""
    local, reach = shards.local(tensor), 0
    for stride, extent in sorted(zip(local.stride(), local.shape, strict=True)):
        if extent > 1 and stride <= reach:
            return local.numel() > 0
        reach += stride * (extent - 1)
    return False


def check_apart(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse contiguous tensors that share a part of their memory; `tensors` are pairs of a name and a tensor.

    Raises `UnsupportedLeaf` naming two of them.
    """
    extents = sorted(_extent(name, tensor) for name, tensor in tensors if _has_extent(tensor))
    for (device, _, stop, name), (other, start, _, following) in pairwise(extents):
        if device == other and start < stop:
            raise UnsupportedLeaf(
                f"{name} and {following} share a part of their memory, so that they cannot both be filled;"
                " restore into tensors of their own (.clone())"
            )


def _has_extent(tensor: torch.Tensor) -> bool:
    local = shards.local(tensor)
    return local.numel() > 0 and not local.is_meta and local.is_contiguous()


def _extent(name: str, tensor: torch.Tensor) -> tuple[str, int, int, str]:
    local = shards.local(tensor)
    return str(local.device), local.data_ptr(), local.data_ptr() + local.nbytes, name
