"""`torchckpt.initialize`: the process group from the environment of each launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torchckpt
from ckptcore.errors import CallError
from ckptcore.launch import Launch
from tests.processes import ROOT, Job, free_port

SUPERVISED = {"CKPT_ATTEMPT": "1", "CKPT_SLOT": "3", "CKPT_SLOTS": "4", "CKPT_COORDINATOR": "127.0.0.1:4001"}
SLURM = {
    "SLURM_JOB_ID": "5",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "gpu[3-4]",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}


def elastic(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{size}",
        "LOCAL_RANK": f"{rank}",
        "LOCAL_WORLD_SIZE": f"{size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4000",
    }


class Asked:
    """What torch is asked for, in place of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, cuda: bool) -> None:
        self.group: dict[str, Any] | None = None
        self.device: int | None = None
        monkeypatch.setattr(dist, "init_process_group", self._group)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(self, "device", device))

    def _group(self, backend: str, **arguments: Any) -> None:
        self.group = {"backend": backend, **arguments}


def launched(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> Launch:
    for name in [name for name in os.environ if name.startswith(("CKPT_", "SLURM_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return torchckpt.initialize()


def test_by_a_launcher_that_speaks_to_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=False)
    place = launched(monkeypatch, SUPERVISED | elastic(2, 3))
    assert (place.rank, place.source) == (2, "supervise")
    assert asked.group == {"backend": "gloo", "init_method": "env://", "rank": 2, "world_size": 3}
    assert asked.device is None


def test_by_a_launcher_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=True)
    launched(monkeypatch, SLURM)
    assert asked.group == {"backend": "cpu:gloo,cuda:nccl", "init_method": "tcp://gpu3:61445", "rank": 1, "world_size": 2}
    assert asked.device == 1


def test_a_rank_uses_the_gpu_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=True)
    launched(monkeypatch, SUPERVISED | elastic(2, 3))
    assert asked.device == 3


def test_the_last_rank_of_a_job_keeps_to_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=True)
    launched(monkeypatch, SUPERVISED | elastic(0, 1))
    assert (asked.group, asked.device) == (None, 3)


def test_a_job_of_one_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=True)
    assert launched(monkeypatch, {}) == Launch()
    assert (asked.group, asked.device) == (None, None)


def test_an_environment_that_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, cuda=False)
    with pytest.raises(CallError, match="rank 3 of 3"):
        launched(monkeypatch, SUPERVISED | elastic(2, 3) | {"RANK": "3"})
    assert asked.group is None


JOB = """
import torch
import torch.distributed as dist
import torchckpt

place = torchckpt.initialize()
ones = torch.ones(1)
dist.all_reduce(ones)
print("joined", place.rank, dist.get_rank(), dist.get_world_size(), dist.get_backend(), int(ones), flush=True)
"""


@pytest.mark.slow
def test_the_ranks_find_each_other() -> None:
    """As tasks of Slurm that meet at an address that they are told."""
    meeting = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "PYTHONPATH": str(ROOT)}
    tasks = [SLURM | meeting | {"SLURM_PROCID": f"{rank}", "SLURM_LOCALID": f"{rank}"} for rank in range(2)]
    command = [sys.executable, "-c", JOB]
    told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    with Job([subprocess.Popen(command, env={**os.environ, **task}, **told) for task in tasks]) as job:
        outputs = job.wait()
    assert outputs == [f"joined {rank} {rank} 2 gloo 2\n" for rank in range(2)]
