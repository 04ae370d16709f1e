"""The numerics of the training task in PyTorch, in binary64: a process differentiates on its rows, and updates its own shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ckpt_conformance.adapters.training import BETA1, BETA2, EPSILON, SHAPES, Rate

Held = Callable[[torch.Tensor], Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor]]]
"""The boxes that this process holds of a tensor, with its memory of each."""


class TorchModel:
    """`training.Model` in PyTorch. `arrays` are those of the beginning; `batch` is the number of rows of all processes."""

    def __init__(self, arrays: dict[str, torch.Tensor], held: Held, batch: int) -> None:
        self.arrays = arrays
        self._held, self._batch = held, batch

    def update(self, inputs: np.ndarray, targets: np.ndarray, rate: Rate) -> float:
        """See `training.Model.update`."""
        params = {p: _whole(self.arrays[f"params.{p}"]).requires_grad_() for p in SHAPES}
        predicted = torch.tanh(torch.from_numpy(inputs) @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
        loss = ((predicted[:, 0] - torch.from_numpy(targets)) ** 2).sum() / self._batch
        gradients = torch.autograd.grad(loss, list(params.values()))
        for p, gradient in zip(params, map(_summed, gradients), strict=True):
            self._move(p, gradient, rate)
        for _, _, count in self._held(self.arrays["optimizer.count"]):
            count.add_(1)
        return float(_summed(loss.detach()))

    def _move(self, p: str, gradient: torch.Tensor, rate: Rate) -> None:
        """Adam on what this process holds of a parameter."""
        held = zip(
            *(self._held(self.arrays[name.format(p)]) for name in ("params.{}", "optimizer.mu.{}", "optimizer.nu.{}")),
            strict=True,
        )
        for (start, stop, param), (_, _, mu), (_, _, nu) in held:
            own = gradient[tuple(slice(*bounds) for bounds in zip(start, stop, strict=True))]
            mu.copy_(BETA1 * mu + (1 - BETA1) * own)
            nu.copy_(BETA2 * nu + (1 - BETA2) * own**2)
            param.sub_(rate.rate * (mu / rate.first) / (torch.sqrt(nu / rate.second) + EPSILON))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of all its shards, apart from them."""
    return tensor.full_tensor().detach().clone() if isinstance(tensor, DTensor) else tensor.detach().clone()


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all processes."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor
