"""A training program for torch: `python train_torch.py URL STEPS`, alone or as one rank of many, whoever has started it."""

import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchckpt import Checkpointer, Sampler, initialize, rng_state


def main(url: str, steps: int, pause: float = 0.0) -> None:
    """Train for `steps` updates in total, at least `pause` seconds each."""
    place = initialize()
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    trained = DistributedDataParallel(model) if place.size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Sampler(size=1000, batch=10 * place.size, seed=0)
    state = {"model": model, "optimizer": optimizer, "data": data, "rng": rng_state()}
    with Checkpointer(url, interval=10, derived={"schedule": "step"}) as ckpt:
        restored = ckpt.restore_or_init(lambda: state, like=state, accept_guarantee="coverage")
        print(f"rank {place.rank} of {place.size} begins at step {restored.step}", flush=True)
        for step in range(restored.step + 1, steps + 1):
            mine = torch.as_tensor(data.next()[place.rank :: place.size]).float()
            trained(mine[:, None] * torch.ones(8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)
            if ckpt.should_save(step) or step == steps:
                ckpt.save(step, state)
    if place.size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
