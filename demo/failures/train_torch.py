"""The training program for torch, one rank of it: `python -m demo.failures.train_torch PLAN`, started by `ckpt supervise`.

But for `Rank`, which is the demo's, it is what any program has that survives what this demo does to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchckpt
from demo.failures.plan import BATCH, SAMPLES, SAVE_EVERY, TOTAL, Plan
from demo.failures.rank import Rank
from demo.failures.task import MOMENTUM, RATE, vectors, weights


def train(plan: Plan) -> None:
    """Train from the newest checkpoint, or from the beginning, to the end."""
    place = torchckpt.initialize()
    rank = Rank(plan, place)
    inputs, classes = map(torch.from_numpy, vectors())
    model = _model(place.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    data = torchckpt.Sampler(SAMPLES, BATCH, seed=7)
    state = {"model": model, "optimizer": optimizer, "data": data}
    derived = {"schedule": "step", "rng": "step"}
    with torchckpt.Checkpointer(plan.url, interval=SAVE_EVERY, derived=derived, on_event=rank.on_event) as checkpointer:
        restored = checkpointer.restore_or_init(lambda: state, like=state, accept_guarantee="coverage")
        rank.begin(restored.step)
        for step in range(restored.step + 1, TOTAL + 1):
            samples = data.next(place.rank, place.size)
            checkpointer.heartbeat(seconds=rank.work(step))
            loss = nn.functional.cross_entropy(model(inputs[samples]), classes[samples].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, torch.distributed.ReduceOp.AVG)
            rank.made(step, loss=mean.item(), state=_local(model, optimizer), samples=samples)
            if checkpointer.should_save(step):
                checkpointer.save(step, state)
    rank.end(data.position)
    torch.distributed.destroy_process_group()


def _model(ranks: int) -> nn.Module:
    """Two layers, divided over all ranks (FSDP2)."""
    first, second = weights(seed=7)
    model = nn.Sequential(nn.Linear(*first.shape, bias=False), nn.ReLU(), nn.Linear(*second.shape, bias=False))
    with torch.no_grad():
        for parameter, given in zip(model.parameters(), (first, second), strict=True):
            parameter.copy_(torch.from_numpy(given).T)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("data",)))
    return model


def _local(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[np.ndarray]:
    for parameter in model.parameters():
        held: Any = (parameter, optimizer.state[parameter]["momentum_buffer"])
        for tensor in held:
            yield tensor.detach().to_local().numpy()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Plan.from_json(sys.argv[1]))
