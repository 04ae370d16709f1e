"""The training job of `cold_start`, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import on_torch
from benchmarks.peers import ours

Components = dict[str, Any]


def state(size: str) -> Components:
    """What is saved."""
    return ours.components_of(on_torch.arrays(size, "one"))


def start() -> None:
    """The first use of torch."""
    torch.zeros(8)


def target(size: str) -> Components:
    """Tensors: a restore fills them."""
    return ours.components_of(on_torch.zeros(size, "one"))


def wait(components: Components) -> Components:
    """The same: they are there."""
    return components


def step(components: Components) -> None:
    """A step of Adam, in place."""
    optimizer = components["optimizer"]
    with torch.no_grad():
        for name, parameter in components["params"].items():
            mu, nu = optimizer["mu"][name], optimizer["nu"][name]
            parameter.addcdiv_(mu, nu.abs().sqrt_().add_(1e-8), value=-1e-4)
            mu.mul_(0.9)
            nu.mul_(0.9)
