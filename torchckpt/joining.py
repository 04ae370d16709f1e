"""`initialize`: the process group, and this process's GPU, set up by what its launcher says."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ckptcore.launch import Launch, launch

_EXPLICIT = ("supervise", "elastic")
"""Who has told torch itself where to meet, by variables that it reads."""


def initialize(*, backend: str | None = None) -> Launch:
    """Make this process one of its torch job, and say which. Call it before anything else that needs its GPU or other ranks.

    It goes by the environment that `ckpt supervise`, torchrun, Slurm's `srun`, a Kubernetes Job or a JobSet gives to each
    process. `backend` as in `init_process_group`; by default NCCL for CUDA and gloo for CPU. The current CUDA device becomes
    that of this process, if its node has several. For a job of one process there is no process group. Raises `CallError`
    when the environment contradicts itself.
    """
    place = launch(os.environ)
    if place.device is not None and torch.cuda.is_available():
        torch.cuda.set_device(place.device)
    if place.size > 1:
        meeting = "env://" if place.source in _EXPLICIT else f"tcp://{place.coordinator}"
        dist.init_process_group(backend or _backend(), init_method=meeting, rank=place.rank, world_size=place.size)
    return place


def _backend() -> str:
    """Left to itself, torch finds one when it meets the first tensor, and calls the group's backend `undefined` until then."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
