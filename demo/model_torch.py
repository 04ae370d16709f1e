"""The same classifier in PyTorch, and how the JAX run's checkpoint becomes its state.

Nothing in it is made for the demo's sake: it is what somebody would write who takes the run over.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckptcore import convert
from demo.data import CLASSES, PIXELS
from demo.job import STEPS_PER_EPOCH

PEAK, WEIGHT_DECAY = 4e-3, 1e-2
WIDTH = 256

FROM_JAX = convert.flax_to_torch(names={"Dense_*": "layers.*"}, optimizer=convert.AdamW(lr=PEAK, weight_decay=WEIGHT_DECAY))
"""The JAX run's names, axes and optimizer as this program has them. Optax keeps no hyper-parameters, so they are stated."""


class Classifier(nn.Module):
    """Images `(batch, 64)` in 0..1 → logits `(batch, 10)`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)])
        self.dropout = nn.Dropout(0.2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the network."""
        *hidden, last = self.layers
        for layer in hidden:
            images = self.dropout(torch.relu(layer(images)))
        return last(images)


def sharded(ranks: int) -> Classifier:
    """The classifier with its parameters divided over all ranks (FSDP2)."""
    model = Classifier()
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",)))
    return model


def learning_rate(step: int, total: int) -> float:
    """Warm-up and cosine after `step` completed updates: the schedule of the JAX run."""
    if step < STEPS_PER_EPOCH:
        return PEAK * step / STEPS_PER_EPOCH
    done = min((step - STEPS_PER_EPOCH) / (total - STEPS_PER_EPOCH), 1.0)
    return PEAK * 0.5 * (1 + math.cos(math.pi * done))


def to_tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch for the model and its loss."""
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def accuracy(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of test images that is classified right; every rank calls it."""
    inputs, expected = to_tensors(images, labels)
    model.eval()
    with torch.no_grad():
        found = model(inputs).argmax(dim=-1)
    model.train()
    return float((found == expected).float().mean())
