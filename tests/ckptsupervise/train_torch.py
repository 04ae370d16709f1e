"""A torch job under supervision: `python train_torch.py RUN STEPS FAULTS`; FAULTS as {"attempt:rank:step": "SIGKILL"}."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchckpt

RUN, STEPS, FAULTS = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
DERIVED: dict[str, Any] = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


def main() -> None:
    place = torchckpt.initialize()
    model = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    fully_shard(model, mesh=init_device_mesh("cpu", (place.size,)))
    with torchckpt.Checkpointer(RUN, interval=10, derived=DERIVED) as ckpt:
        restored = ckpt.restore_or_init(lambda: {"params": model}, like={"params": model}, accept_guarantee="coverage")
        for step in range(restored.step + 1, STEPS + 1):
            fault = FAULTS.get(f"{os.environ['CKPT_ATTEMPT']}:{place.rank}:{step}")
            if fault is not None:
                os.kill(os.getpid(), getattr(signal, fault))
            model(torch.ones(1, 8)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
            if ckpt.should_save(step):
                ckpt.save(step, {"params": model})
    assert all(float(parameter.to_local().max()) == STEPS for parameter in model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    distributed.destroy_process_group()


main()
