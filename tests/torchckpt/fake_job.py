"""One rank of a job that has no others: meshes, placements and shards without processes. Nothing is communicated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import debug
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """This process is `rank` of a job of `size`, all of whose collectives end at once and do nothing."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        # What torch remembers of operations holds meshes, which are equal whichever rank is asked.
        debug._clear_sharding_prop_cache()


class Block(nn.Module):
    """Two layers whose weights count up, so that a shard shows where it comes from."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.inner = nn.Linear(columns, rows)
        self.outer = nn.Linear(rows, columns, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.arange(float(parameter.numel())).view_as(parameter))


def mesh(**axes: int) -> DeviceMesh:
    """A mesh of CPUs, as `dp=2, tp=2`."""
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def placed(kind: str, rows: int, columns: int) -> Block:
    """A block of `fsdp`, `tp`, `fsdp+tp`, `hsdp` or `hsdp+tp` over all ranks."""
    size = distributed.get_world_size()
    block = Block(rows, columns)
    hybrid = {"dp": 2} if kind.startswith("hsdp") else {}
    tensor = {"tp": 2 if "+" in kind else size} if kind.endswith("tp") else {}
    ranks = mesh(**hybrid, fsdp=max(1, size // (2 ** bool(hybrid)) // tensor.get("tp", 1)), **tensor)
    if tensor:
        plan = {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
        parallelize_module(block, ranks["tp"], plan, src_data_rank=None)
    if kind != "tp":
        fully_shard(block, mesh=ranks["dp", "fsdp"] if hybrid else ranks["fsdp"])
    return block
