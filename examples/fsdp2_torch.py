"""FSDP2: `fully_shard` on every rank, and the same lines on every rank.

    torchrun --nproc-per-node=2 examples/fsdp2_torch.py /tmp/fsdp2

Started again it goes on; on another number of ranks too, if that is accepted: `accept_guarantee="coverage"`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchckpt

BATCH, STEPS = 16, 40


def main(url: str | Path, *, steps: int = STEPS) -> nn.Module:
    """Train up to `steps`, in a process group; returns this rank's model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device, (ranks,), mesh_dim_names=("fsdp",))
    torch.manual_seed(0)  # the same parameters on all ranks, before they are cut
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)).to(device)
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1 + rank)  # other dropout on each: `rng_state` stores that of every rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # after fully_shard
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(2))
    sampler = torchckpt.Sampler(len(inputs), BATCH)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "rng": torchckpt.rng_state(), "data": sampler}
    with torchckpt.Checkpointer(url, interval=10, require="exact", keep=torchckpt.Keep(last=3)) as ckpt:
        restored = ckpt.restore_or_init(lambda: state, like=state)  # fills the shards in place
        for step in range(restored.step + 1, steps + 1):
            x = inputs[sampler.next()].to(device)  # this rank's part of the global batch
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, state)
    print(f"rank {rank}: from step {restored.step} to step {steps}")
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: torchrun --nproc-per-node=N examples/fsdp2_torch.py URL")
    dist.init_process_group()
    main(sys.argv[1])
    dist.destroy_process_group()
