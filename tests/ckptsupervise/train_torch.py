"""A torch job under supervision: `python train_torch.py RUN STEPS FAULTS [NODES]`.

FAULTS as {"attempt:rank:step": "SIGKILL"}; NODES as `local_tier` has them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchckpt
from tests.ckptsupervise.local_tier import LocalTier

RUN, STEPS, FAULTS = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
NODES = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
DERIVED: dict[str, Any] = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


def main() -> None:
    place = torchckpt.initialize()
    tier = LocalTier(Path(RUN), NODES, place.rank, place.size)
    model = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    fully_shard(model, mesh=init_device_mesh("cpu", (place.size,)))
    with torchckpt.Checkpointer(RUN, interval=10, derived=DERIVED, **tier.options()) as ckpt:
        restored = tier.restored(
            lambda: ckpt.restore_or_init(lambda: {"params": model}, like={"params": model}, accept_guarantee="coverage")
        )
        saving = None
        for step in range(restored.step + 1, STEPS + 1):
            fault = FAULTS.get(f"{os.environ['CKPT_ATTEMPT']}:{place.rank}:{step}")
            if fault is not None:
                if saving is not None:
                    saving.result()  # how far the job has come does not depend on who is faster
                os.kill(os.getpid(), getattr(signal, fault))
            model(torch.ones(1, 8)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
            if ckpt.should_save(step):
                saving = ckpt.save(step, {"params": model})
    assert all(float(parameter.to_local().max()) == STEPS for parameter in model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    distributed.destroy_process_group()


main()
