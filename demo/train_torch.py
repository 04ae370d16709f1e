"""One process of the training job, taken over by PyTorch: `python -m demo.train_torch RANK PORT JOB`.

It opens the checkpoint that the JAX program has written, shards it over its own ranks, and goes on in the same run:
the next start would find its checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
import torch
from torch import nn

import torchckpt
from demo.data import digits
from demo.job import BATCH, SAVE_EVERY, TRAIN_SAMPLES, Job
from demo.model_torch import FROM_JAX, WEIGHT_DECAY, accuracy, learning_rate, sharded, to_tensors
from demo.run_log import write_line


def train(job: Job, rank: int, log: TextIO) -> None:
    """Train from the newest proven checkpoint, whoever wrote it, to `job.total` steps."""
    (images, labels), test = digits()
    torch.manual_seed(job.seed + rank)
    model = sharded(job.ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate(0, job.total), weight_decay=WEIGHT_DECAY)
    sampler = torchckpt.Sampler(TRAIN_SAMPLES, BATCH, seed=job.seed)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    loss_of = nn.CrossEntropyLoss()
    with torchckpt.Checkpointer(job.url, interval=SAVE_EVERY, derived={"schedule": "step", "rng": "step"}) as checkpointer:
        restored = checkpointer.restore_or_init(lambda: state, like=state, accept_guarantee=job.accept, convert=FROM_JAX)
        write_line(log, start=restored.step)
        arrived = dict(_arrays(model, optimizer))
        for step in range(restored.step + 1, job.total + 1):
            samples = sampler.next(rank, job.ranks)
            inputs, expected = to_tensors(images[samples], labels[samples])
            optimizer.param_groups[0]["lr"] = learning_rate(step - 1, job.total)
            loss = loss_of(model(inputs), expected)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, torch.distributed.ReduceOp.AVG)
            write_line(log, step=step, loss=mean.item().hex(), rng=[], samples=samples.tolist())
            if checkpointer.should_save(step):
                checkpointer.save(step, state)
    np.savez(job.final(rank), allow_pickle=False, **arrived)
    write_line(log, accuracy=accuracy(model, *test), cursor=sampler.get_state())


def _arrays(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, np.ndarray]]:
    """Parameters and moments as they were restored, whole: every rank takes part in gathering them."""
    for name, parameter in model.named_parameters():
        held: dict[str, Any] = {"value": parameter, **optimizer.state[parameter]}
        for kind, tensor in held.items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            yield f"{name} {kind}", whole.detach().numpy().copy()


def main(rank: int, port: int, job: Job) -> None:
    """Run one process of the job."""
    torch.set_num_threads(1)
    with job.log(rank).open("w") as log:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=job.ranks)
        train(job, rank, log)
        torch.distributed.barrier()  # rank 0 holds the store
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Job.from_json(sys.argv[3]))
