"""A small network in both frameworks, and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import torch

import torchckpt
from ckptcore.convert import Adam, flax_to_torch


def params(seed: int = 0) -> dict[str, Any]:
    """Square, so that nothing but names and rules tells the axes."""
    generator = np.random.default_rng(seed)
    return {"fc": {"kernel": jnp.asarray(generator.normal(size=(3, 3)), jnp.float32), "bias": jnp.zeros(3)}}


def init(transformation: optax.GradientTransformation, tree: Any) -> Any:
    return transformation.init(tree)


def module() -> Any:
    return torch.nn.ModuleDict({"fc": torch.nn.Linear(3, 3)})


def weight(net: Any) -> np.ndarray:
    return net.state_dict()["fc.weight"].numpy()


def trained(net: Any, **options: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters(), **options)
    net["fc"](torch.ones(3)).sum().backward()
    optimizer.step()
    return optimizer


def save(backend: Any, url: Path, state: Mapping[str, Any], **options: Any) -> Path:
    with backend.Checkpointer(url, interval=1, on_preemption="ignore", **options) as checkpointer:
        checkpointer.save(1, state, guarantee="weights").result()
    return url


def in_torch(url: Path, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    """A checkpoint of Flax and `optax.adam` in torch."""
    net = module()
    optimizer = torch.optim.Adam(net.parameters())
    hyper = options.pop("optimizer", Adam(lr=0.1))
    torchckpt.open_run(url).restore(
        like={"model": net, "optimizer": optimizer}, convert=flax_to_torch(optimizer=hyper, **options)
    )
    return net, optimizer
