"""Modules, and everything that they may be wrapped in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path as File
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from ckptcore.names import Path
from torchckpt import modules


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class Net(nn.Module):
    """An embedding that is tied to the output, and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Named(nn.Module):
    """Children with the names of wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self._orig_mod = nn.Sequential(OrderedDict(module=nn.Linear(2, 2)))
        self.scale = nn.Parameter(torch.ones(2))


class Counting(nn.Module):
    """A module with extra state, which counts how often it is asked for it."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.state, self.asked = state, 0

    def get_extra_state(self) -> Any:
        self.asked += 1
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def compiled(module: nn.Module) -> nn.Module:
    wrapped = torch.compile(module, backend="eager")
    assert isinstance(wrapped, nn.Module)
    return wrapped


def sharded(module: nn.Module) -> nn.Module:
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    return module


def with_block(wrap: Callable[[nn.Module], nn.Module], module: Net | None = None) -> Net:
    """The net with its first block wrapped."""
    net = Net() if module is None else module
    net.blocks[0] = wrap(net.blocks[0])
    return net


def all_blocks_sharded() -> nn.Module:
    net = Net()
    for block in net.blocks:
        sharded(block)
    return sharded(net)


def shared_child() -> nn.Module:
    block = Block()
    return nn.ModuleDict({"first": block, "second": nn.Sequential(block, nn.Linear(4, 1))})


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "plain": Net,
    "compiled": lambda: compiled(Net()),
    "compiled block": lambda: with_block(compiled),
    "ddp": lambda: DistributedDataParallel(Net()),
    "compiled ddp": lambda: compiled(DistributedDataParallel(Net())),
    "ddp of compiled": lambda: DistributedDataParallel(compiled(Net())),
    "ddp of compiled block": lambda: DistributedDataParallel(with_block(compiled)),
    "checkpointed block": lambda: with_block(checkpoint_wrapper),
    "checkpointed": lambda: checkpoint_wrapper(Net()),
    "checkpointed twice": lambda: with_block(checkpoint_wrapper, with_block(checkpoint_wrapper)),
    "compiled checkpointed block": lambda: with_block(lambda block: compiled(checkpoint_wrapper(block))),
    "everything": lambda: compiled(DistributedDataParallel(with_block(compiled, with_block(checkpoint_wrapper)))),
    "fsdp": all_blocks_sharded,
    "fsdp, compiled": lambda: compiled(all_blocks_sharded()),
    "fsdp of compiled block": lambda: sharded(with_block(compiled)),
    "compiled within itself": lambda: compiled(nn.Sequential(compiled(Net()))),
}
# Here torch's helper fails, or leaves a wrapper in the names.
UNSEEN: dict[str, Callable[[], nn.Module]] = {
    "data parallel": lambda: DataParallel(Net()),
    "checkpointed compiled block": lambda: with_block(lambda block: checkpoint_wrapper(compiled(block))),
    "checkpointed ddp": lambda: checkpoint_wrapper(DistributedDataParallel(Net())),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "real children": Named,
    "real children, ddp": lambda: DistributedDataParallel(Named()),
    "real children, compiled": lambda: compiled(Named()),
    "averaged": lambda: AveragedModel(Net()),
    "averaged ddp": lambda: AveragedModel(DistributedDataParallel(Net())),
    "shared child": shared_child,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(2, 2))),
    "spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(2, 2))),
    "lstm": lambda: nn.LSTM(2, 3, num_layers=2),
    "lists": lambda: nn.ModuleDict({"a": nn.ParameterList([torch.ones(1)]), "b": nn.ParameterDict({"c": torch.ones(1)})}),
    "extra state": lambda: nn.Sequential(Counting({"a": 1}), nn.Linear(2, 2)),
    "extra state, ddp": lambda: DistributedDataParallel(Counting([1])),
    "empty": nn.Identity,
}


@contextmanager
def alone(folder: File) -> Iterator[None]:
    """A process group of this process alone, for the wrappers that want one."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def by_name(module: nn.Module, path: Path = ()) -> dict[str, Any]:
    """Leaf names, as torch's helpers would have them, and what is stored there."""
    found = modules.leaves(module, path, "model")
    return {str(leaf.path[-1][1]): leaf.data for leaf in found}
