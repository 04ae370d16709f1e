"""Small models whose sizes divide badly, the ways to spread them over processes, and values known by name.

Widths are 10 and 13, the vocabulary has 9 entries: on four ranks shards are uneven, and one is empty.
`expected(name, key, shape)` is what a tensor is to hold, computed from its name alone: a test needs no
saved copy to compare with.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

VOCABULARY, WIDTH, HIDDEN = 9, 10, 13


class Block(nn.Module):
    """A residual block: normalize, widen, drop out, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.dropout = nn.Dropout(0.25)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))


class Tiny(nn.Module):
    """Embedding, blocks, and a head that is tied to the embedding. Its buffer counts the calls.

    A part of a pipeline has only `layers` of the whole model's, and an embedding and a head if it needs them; the
    names stay those of the whole.
    """

    def __init__(self, layers: Sequence[int] = (0, 1), *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first or last else None
        self.layers = nn.ModuleDict({str(layer): Block() for layer in layers})
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None
        if self.embed is not None and self.head is not None:
            self.head.weight = self.embed.weight
        if first:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert self.embed is not None
        assert self.norm is not None
        assert self.head is not None
        self.calls += 1
        x = self.embed(ids)
        for block in self.layers.values():
            x = block(x)
        return self.head(self.norm(x))


class Normed(nn.Module):
    """A model with running statistics: what DDP leaves different on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def plain(model: Tiny) -> nn.Module:
    """Every rank has all of it."""
    return model


def ddp(model: Tiny) -> nn.Module:
    """Every rank has all of it, behind a wrapper."""
    return DistributedDataParallel(model)


def fsdp(model: Tiny) -> nn.Module:
    """FSDP2 over all ranks."""
    return _fully_shard(model, _mesh((dist.get_world_size(),), "dp"))


def hsdp(model: Tiny) -> nn.Module:
    """FSDP2 over pairs of ranks, replicated over the pairs."""
    return _fully_shard(model, _mesh((dist.get_world_size() // 2, 2), "replicate", "shard"))


def tp(model: Tiny) -> nn.Module:
    """Tensor parallel over all ranks; what is not in a block stays plain."""
    return _parallelize(model, _mesh((dist.get_world_size(),), "tp"))


def tp_groups(model: Tiny) -> nn.Module:
    """Tensor parallel within each pair of ranks, on a mesh of its own; the pairs have the same."""
    return _parallelize(model, _mesh((dist.get_world_size() // 2, 2), "dp", "tp")["tp"])


def two_d(model: Tiny) -> nn.Module:
    """Tensor parallel over pairs of ranks, FSDP2 over the pairs."""
    size = dist.get_world_size()
    mesh = _mesh((max(size // 2, 1), min(size, 2)), "dp", "tp")
    return _fully_shard(_parallelize(model, mesh["tp"]), mesh["dp"])


LAYOUTS: Mapping[str, Callable[[Tiny], nn.Module]] = {"plain": plain, "fsdp": fsdp, "tp": tp, "2d": two_d}
"""The ways of spreading that every number of processes allows."""
MORE_LAYOUTS: Mapping[str, Callable[[Tiny], nn.Module]] = {"hsdp": hsdp, "tp-groups": tp_groups}
"""Those that need four."""


def adamw(model: nn.Module, *, lr: float = 1e-2) -> AdamW:
    """Two groups with hyper-parameters of their own: matrices decay, everything else does not."""
    parameters = list(model.parameters())
    matrices, others = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.1, "betas": (0.8, 0.9)},
        {"params": others, "weight_decay": 0.0, "lr": lr / 3},
    ]
    return AdamW(groups, lr=lr)


def expected(name: str, key: str, shape: Sequence[int]) -> np.ndarray:
    """The value of a tensor: different at every index, and for every name and key. float32, exact."""
    base = zlib.crc32(f"{name} {key}".encode()) % 9973
    numbers = base * 1000 + np.arange(np.prod(shape, dtype=int), dtype=np.float64)
    return (numbers / 2**14).reshape(shape).astype(np.float32)


def filled(layout: str, key: str = "value", **options: Any) -> nn.Module:
    """A model that holds the expected values of `key`, spread afterwards, by torch itself."""
    model = Tiny(**options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(expected(name, key, parameter.shape)))
        for buffer in model.buffers():
            buffer.fill_(7)
    return {**LAYOUTS, **MORE_LAYOUTS}[layout](model)


def with_moments(optimizer: torch.optim.Optimizer, model: nn.Module, moments: Callable[[str], nn.Module]) -> None:
    """Give the optimizer of `model` a state: for every key a copy of the parameters of `moments(key)`, and a step count."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    keep = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    sources = {key: dict(moments(key).named_parameters()) for key in ("exp_avg", "exp_avg_sq")}
    with torch.no_grad():
        for (name, parameter), before in zip(model.named_parameters(), keep, strict=True):
            parameter.copy_(before)
            for key, source in sources.items():
                optimizer.state[parameter][key].copy_(source[name])
            optimizer.state[parameter]["step"].fill_(float(expected(name, "step", ())))


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[tuple[str, str, torch.Tensor]]:
    """`(name, key, tensor)` of all parameters and of the optimizer's state for them."""
    for name, parameter in model.named_parameters():
        yield name, "value", parameter
        if optimizer is not None:
            for key, moment in optimizer.state[parameter].items():
                yield name, key, moment


def whole(tensor: torch.Tensor) -> np.ndarray:
    """All of a tensor, as this rank sees it. All ranks call this alike."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().numpy()


def assert_expected(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, moments: int = 3) -> None:
    """Every element of the parameters, and of `moments` tensors of state for each, is the expected one."""
    count = 0
    for name, key, tensor in tensors_of(model, optimizer):
        np.testing.assert_array_equal(whole(tensor), expected(name, key, tensor.shape), err_msg=f"{name} {key}")
        count += 1
    assert count == len(list(model.parameters())) * (1 + moments * (optimizer is not None))


def assert_same_shards(model: nn.Module, optimizer: torch.optim.Optimizer, references: Mapping[str, nn.Module]) -> None:
    """What this rank holds is what it holds of `references`: a model for the values, and one for every moment. No gather."""
    known = {key: dict(reference.named_parameters()) for key, reference in references.items()}
    count = 0
    for name, key, tensor in tensors_of(model, optimizer):
        if key in known:
            assert local_bytes(tensor) == local_bytes(known[key][name]), f"{name} {key}"
            count += 1
        else:
            np.testing.assert_array_equal(tensor.numpy(), expected(name, key, ()), err_msg=f"{name} {key}")
    assert count == len(list(model.parameters())) * len(known)


def local_bytes(tensor: torch.Tensor) -> bytes:
    """What this rank holds of a tensor, in order."""
    held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return held.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""


def digest(*tensors: torch.Tensor) -> str:
    """A digest of what this rank holds of some tensors: equal for equal bits."""
    return hashlib.sha256(b"".join(local_bytes(tensor) for tensor in tensors)).hexdigest()[:16]


def _mesh(shape: tuple[int, ...], *names: str) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def _fully_shard(model: Tiny, mesh: DeviceMesh) -> nn.Module:
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _parallelize(model: Tiny, mesh: DeviceMesh) -> Tiny:
    for block in model.layers.values():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model
