"""Ranks of a torch job that read each chunk once between them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.reading import stored_bytes
from tests.torchckpt.procs import Job, run_job

pytestmark = pytest.mark.slow

COMMON = """
import threading
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from tests.reading import bytes_read
from tests.torchckpt.runs import checkpointer

mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))


def cut(value):
    return distribute_tensor(torch.full((512, 1024), float(value)) + torch.arange(1024), mesh, [Replicate(), Shard(0)])


class Tied(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 1024), nn.Linear(1024, 512, bias=False)
        self.head.weight = self.embed.weight
        nn.init.constant_(self.embed.weight, value)


def state(value):
    made = {"model": Tied(value), "extra": {"whole": torch.full((1024, 1024), float(value)), "cut": cut(value)}}
    optimizer = torch.optim.AdamW(made["model"].parameters(), lr=0.1)
    for parameter in made["model"].parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    optimizer.zero_grad()
    return {**made, "optimizer": optimizer}
"""

SAVE = (
    COMMON
    + """
with checkpointer(ARGS[0], chunk_bytes=256 << 10) as saver:
    saver.save(1, state(3.0)).result(60)
"""
)

RESTORE = (
    COMMON
    + """
target, expected = state(0.0), state(3.0)
with bytes_read() as read, checkpointer(ARGS[0], fetch_once=ARGS[1] == "once") as saver:
    assert saver._channel.coordinator == "127.0.0.1"
    saver.restore(like=target)
assert torch.equal(target["model"].embed.weight, expected["model"].embed.weight)
assert target["model"].head.weight is target["model"].embed.weight
assert torch.equal(target["extra"]["whole"], expected["extra"]["whole"])
assert torch.equal(target["extra"]["cut"].to_local(), expected["extra"]["cut"].to_local())
moments = target["optimizer"].state[target["model"].embed.weight]
for name, moment in expected["optimizer"].state[expected["model"].embed.weight].items():
    assert torch.equal(moments[name], moment), name
assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("share")]
print("bytes:", read.bytes)
"""
)


def read(outputs: list[str]) -> list[int]:
    return [int(output.partition("bytes: ")[2].split()[0]) for output in outputs]


def test_a_job_reads_each_chunk_once(tmp_path: Path) -> None:
    """Weights that are tied, an optimizer's moments, what each rank has whole, and shards that two ranks have."""
    run_job(SAVE, size=4, args=[str(tmp_path / "run")])
    stored = stored_bytes(tmp_path / "run")
    alone = read(run_job(RESTORE, size=4, args=[str(tmp_path / "run"), "each"]))
    assert all(nbytes < 1.3 * stored for nbytes in alone)  # no chunk twice
    assert sum(alone) > 3 * stored
    outputs = run_job(RESTORE, size=4, args=[str(tmp_path / "run"), "once"])
    assert "other ranks" not in "".join(outputs)  # all of them came
    together = read(outputs)
    assert sum(together) < 1.6 * stored  # among it four times the records
    assert max(together) < 0.6 * stored


STOPPED = (
    COMMON
    + """
import os
from ckptcore import wire
from ckptcore.sharing import Passed

wire.ANSWER_TIMEOUT = 1.0
if RANK == 1:
    kept, once = Passed._filled, threading.Lock()

    def stop(self, number, read):
        if once.acquire(blocking=False):
            os.kill(os.getpid(), int(ARGS[2]))
        kept(self, number, read)

    Passed._filled = stop
"""
    + RESTORE.removeprefix(COMMON)
)


def test_a_rank_that_is_stopped_is_not_waited_for(tmp_path: Path) -> None:
    """It answers no more, and the other reads its chunks itself. When it goes on, the job does."""
    run_job(SAVE, size=2, args=[str(tmp_path / "run")])
    with Job(STOPPED, size=2, args=[str(tmp_path / "run"), "once", str(int(signal.SIGSTOP))]) as job:
        assert "timed out" in job.ranks[0].wait_for("were to pass on")
        job.ranks[1].send(signal.SIGCONT)
        job.wait(timeout=60)


def test_a_rank_that_is_killed_is_missed_by_the_agreement_alone(tmp_path: Path) -> None:
    """Its chunks are read by the other; then the job waits for it, as it would without them."""
    run_job(SAVE, size=2, args=[str(tmp_path / "run")])
    with Job(STOPPED, size=2, args=[str(tmp_path / "run"), "once", str(int(signal.SIGKILL))]) as job:
        job.ranks[0].wait_for("were to pass on")
        assert job.ranks[1].wait(timeout=60) == -signal.SIGKILL
