"""Whole training jobs of two processes on an S3 server: killed in mid-save, started again, settled, restored, cleaned up.

The ranks find their credentials in the environment, as jobs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ckptcore.names import GenerationId
from ckptcore.run import open_run
from ckptcore.store import open_store
from tests.ckptcore.support import check_commits
from tests.jaxckpt import procs as jax_procs
from tests.servers import S3
from tests.spec.checker import check_run
from tests.torchckpt import procs as torch_procs

pytestmark = pytest.mark.slow

TRAINING = """
import os, signal
from ckptcore.errors import SaveAborted
from ckptcore.keep import Keep
from ckptcore.store import Storage
url, endpoint, kind, victim, at, last = ARGS

def die(event):
    if (event.kind, event.rank) == (kind, int(victim)) and event.generation.step == int(at):
        os.kill(os.getpid(), signal.SIGKILL)

how = dict(storage=Storage(endpoint=endpoint, region="us-east-1"), keep=Keep(last=2), coordinator_timeout=60.0, on_event=die)
with checkpointer(url, **how, chunk_bytes=1024) as saver:
    state = filled_with(0)
    restored = saver.restore_or_init(lambda: state, like=state)
    check(restored.components, restored.step)
    print("restored:", restored.step, restored.reason, flush=True)
    for step in range(restored.step + 1, int(last) + 1):
        if step == int(at):
            saver._timeout = 3.0  # here one never comes
        try:
            saver.save(step, filled_with(step)).result(60)
        except SaveAborted as error:
            print("late:", error.missing, error, flush=True)
            os._exit(0)
        print("committed:", step, flush=True)
print("done", flush=True)
"""

TORCH = (
    """
from tests.torchckpt.models import adamw, filled, tensors_of, whole, with_moments
from tests.torchckpt.runs import checkpointer
model = filled("fsdp", "value")
optimizer = adamw(model)
with_moments(optimizer, model, lambda moment: filled("fsdp", moment))

def filled_with(step):
    for _, _, tensor in tensors_of(model, optimizer):
        tensor.detach().fill_(step)
    return {"model": model, "optimizer": optimizer}

def check(state, step):
    for _, _, tensor in tensors_of(state["model"], state["optimizer"]):
        assert (whole(tensor) == step).all()
"""
    + TRAINING
)

JAX = (
    """
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.jaxckpt.runs import checkpointer
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def filled_with(step):
    placed = {"w": P("data", "model"), "b": P("model"), "c": P()}
    host = np.full((32, 32), step, np.float32)
    return {"params": {name: jax.device_put(host, NamedSharding(mesh, spec)) for name, spec in placed.items()}}

def check(state, step):
    for array in state["params"].values():
        assert all((np.asarray(shard.data) == step).all() for shard in array.addressable_shards)
"""
    + TRAINING
)


def arguments(s3: S3, prefix: str, kill: tuple[str, int, int], last: int) -> list[str]:
    return [s3.url(prefix), s3.endpoint, *map(str, kill), str(last)]


NOBODY = ("", -1, 0)


def check_what_is_left(s3: S3, prefix: str, folder: Path, kept: Sequence[int], gone: Sequence[GenerationId]) -> None:
    """The newest two commits and the base are whole, of all others no object is left, every record is one of the format."""
    store = open_store(s3.url(prefix), s3.storage)
    assert [generation.step for generation in check_commits(store)] == list(kept)
    assert not [key for key in s3.objects(f"{prefix}/generations/") if key.startswith(tuple(map(str, gone)))]
    assert check_run(s3.download(f"{prefix}/", folder / prefix)) == []


def test_torch(s3: S3, tmp_path: Path) -> None:
    """A rank is killed while it writes: aborted. The coordinator is killed after all receipts: rolled forward."""
    with torch_procs.Job(TORCH, args=arguments(s3, "torch", ("chunk-written", 1, 3), 4), env=s3.environment) as job:
        survivor, victim = job.ranks
        assert victim.wait() == -9, victim.output
        assert "no receipt from rank 1 of 2" in survivor.wait_for("late: (1,)")
        assert survivor.wait() == 0
    with torch_procs.Job(TORCH, args=arguments(s3, "torch", ("receipts-complete", 0, 4), 5), env=s3.environment) as job:
        coordinator, survivor = job.ranks
        assert coordinator.wait() == -9
        assert "restored: 2 newest" in coordinator.output
        assert "committed: 3" in coordinator.output
        survivor.end()
    assert [known.state for known in open_run(s3.url("torch"), storage=s3.storage).generations()][-1] == "undecided"
    for output in torch_procs.run_job(TORCH, args=arguments(s3, "torch", NOBODY, 6), env=s3.environment):
        assert "restored: 4 rolled-forward" in output
        assert "committed: 6" in output
    check_what_is_left(
        s3,
        "torch",
        tmp_path,
        [6, 5, 4],
        [GenerationId(1, 1, 1), GenerationId(1, 2, 1), GenerationId(1, 3, 1), GenerationId(2, 3, 1)],
    )


def test_jax(s3: S3, tmp_path: Path) -> None:
    """The coordinator is killed after all receipts: JAX ends the other rank too, and the next job rolls the save forward."""
    with jax_procs.Job(JAX, args=arguments(s3, "jax", ("receipts-complete", 0, 2), 3), env=s3.environment) as job:
        coordinator, survivor = job.ranks
        assert coordinator.wait() == -9
        assert survivor.wait() != 0
    for output in jax_procs.run_job(JAX, args=arguments(s3, "jax", NOBODY, 4), env=s3.environment):
        assert "restored: 2 rolled-forward" in output
        assert "committed: 4" in output
    check_what_is_left(s3, "jax", tmp_path, [4, 3, 2], [GenerationId(1, 1, 1)])
