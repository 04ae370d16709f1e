"""`jaxckpt.initialize`: `jax.distributed` from the environment of each launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src import cloud_tpu_init, distributed

import jaxckpt
from ckptcore.errors import CallError
from ckptcore.heartbeat import FOLDER, read
from ckptcore.launch import Launch
from tests.processes import ROOT, Job, free_port

JOBSET = {
    "JOBSET_NAME": "train",
    "REPLICATED_JOB_NAME": "workers",
    "JOB_COMPLETION_INDEX": "1",
    "WORLD_SIZE": "2",
}


def supervised(rank: int, size: int, port: int = 4001) -> dict[str, str]:
    return {
        "CKPT_ATTEMPT": "1",
        "CKPT_SLOT": f"{rank + 1}",
        "CKPT_SLOTS": "4",
        "CKPT_COORDINATOR": f"127.0.0.1:{port}",
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{size}",
        "LOCAL_RANK": f"{rank}",
        "LOCAL_WORLD_SIZE": f"{size}",
    }


class Asked:
    """What JAX is asked for, in place of JAX."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tpu: bool = False) -> None:
        self.job: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.config: dict[str, Any] = {}
        monkeypatch.setattr(cloud_tpu_init, "running_in_cloud_tpu_vm", tpu)
        monkeypatch.setattr(jax.distributed, "initialize", self._initialize)
        monkeypatch.setattr(jax.config, "update", self.config.__setitem__)

    def _initialize(self, *arguments: Any, **options: Any) -> None:
        self.job = (arguments, options)


def set_environment(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(("CKPT_", "SLURM_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def options(**other: Any) -> dict[str, Any]:
    """What JAX is told beside who is who: nothing is left to its own detection, and a dead process is noticed soon."""
    return {"local_device_ids": None, "cluster_detection_method": "deactivate", "heartbeat_timeout_seconds": 10} | other


def test_by_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, supervised(2, 3))
    place = jaxckpt.initialize()
    assert (place.rank, place.slot, place.source) == (2, 3, "supervise")
    assert asked.job == (("127.0.0.1:4001", 3, 2), options(local_device_ids=[3]))


def test_by_a_jobset(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, JOBSET)
    assert jaxckpt.initialize(heartbeat_seconds=60).source == "jobset"
    assert asked.job == (("train-workers-0-0.train:29500", 2, 1), options(heartbeat_timeout_seconds=60))


def test_the_caller_knows_best_which_devices_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, supervised(0, 2))
    jaxckpt.initialize(local_device_ids=[0, 1])
    assert asked.job == (("127.0.0.1:4001", 2, 0), options(local_device_ids=[0, 1]))


def test_the_last_rank_of_a_job_keeps_to_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, supervised(0, 1))
    jaxckpt.initialize()
    assert asked.job is None
    assert asked.config == {"jax_cuda_visible_devices": "1", "jax_rocm_visible_devices": "1"}


def test_a_job_of_one_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, {})
    assert jaxckpt.initialize() == Launch()
    assert (asked.job, asked.config) == (None, {})


def test_an_environment_that_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    set_environment(monkeypatch, supervised(2, 3) | {"RANK": "3"})
    with pytest.raises(CallError, match="rank 3 of 3"):
        jaxckpt.initialize()
    assert asked.job is None


@pytest.mark.parametrize("environ", [{}, JOBSET])
def test_on_a_tpu_jax_finds_out_by_itself(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    asked = Asked(monkeypatch, tpu=True)
    set_environment(monkeypatch, environ)
    for name, value in {"process_id": 5, "num_processes": 16, "coordinator_address": "10.0.0.1:8476"}.items():
        monkeypatch.setattr(distributed.global_state, name, value)
    assert jaxckpt.initialize() == Launch(rank=5, size=16, coordinator="10.0.0.1:8476", source="tpu")
    assert asked.job == ((), {"heartbeat_timeout_seconds": 10})


def test_on_a_tpu_the_supervisor_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, tpu=True)
    set_environment(monkeypatch, supervised(0, 2))
    assert jaxckpt.initialize().source == "supervise"
    assert asked.job is not None
    assert asked.job[0] == ("127.0.0.1:4001", 2, 0)


JOB = """
import sys
import jaxckpt

place = jaxckpt.initialize()

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from tests.jaxckpt.runs import DERIVED

x = jnp.ones(4) * place.rank
told = multihost_utils.process_allgather(x[0])
with jaxckpt.Checkpointer(sys.argv[1], interval=2, derived=DERIVED) as ckpt:
    for step in (1, 2, 3):
        if ckpt.should_save(step):
            ckpt.save(step, {"params": jnp.ones(4)})
print("joined", place.rank, jax.process_index(), jax.process_count(), told.tolist(), flush=True)
"""


@pytest.mark.slow
def test_the_ranks_find_each_other_and_tell_of_themselves(tmp_path: Path) -> None:
    port, beats = free_port(), tmp_path / "beats"
    beats.mkdir()
    command = [sys.executable, "-c", JOB, str(tmp_path / "run")]
    told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    common = {**os.environ, FOLDER: str(beats), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with Job([subprocess.Popen(command, env=common | supervised(rank, 2, port), **told) for rank in range(2)]) as job:
        outputs = job.wait()
    assert [output.splitlines()[-1] for output in outputs] == [f"joined {rank} {rank} 2 [0.0, 1.0]" for rank in range(2)]
    assert [(beat.rank, beat.phase, beat.step, beat.steps) for beat in read(beats)] == [(0, "final", 3, 3), (1, "final", 3, 3)]


FAILING = """
import multiprocessing.util, os, sys, time
import jaxckpt

sys.excepthook = lambda kind, error, trace: print("shown", kind.__name__, error, flush=True)
place = jaxckpt.initialize()

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from tests.jaxckpt.runs import DERIVED


def linger():
    os.closerange(0, 1000)  # the pipe that the test reads, too
    time.sleep(300)


multihost_utils.process_allgather(jnp.ones(4))
how = sys.argv[2]
with jaxckpt.Checkpointer(sys.argv[1], interval=1000, derived=DERIVED) as ckpt:
    ckpt.save(1, {"params": jnp.ones(4)}).result()
    if how == "0":
        sys.exit(0)
    if place.rank == 1:
        child = multiprocessing.get_context("fork").Process(target=linger, daemon=True)
        child.start()
        print("child", child.pid, end=" ")  # it is not flushed
        if how == "raise":
            raise RuntimeError("no such sample")
        sys.exit(int(how))
    while True:
        multihost_utils.process_allgather(jnp.ones(4))
"""


def failing_job(tmp_path: Path, how: str) -> Job:
    command, port = [sys.executable, "-c", FAILING, str(tmp_path / "run"), how], free_port()
    told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    common = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONWARNINGS": "ignore"}
    return Job([subprocess.Popen(command, env=common | supervised(rank, 3, port), **told) for rank in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status", "shown"), [("raise", 1, "shown RuntimeError no such sample"), ("3", 3, "")])
def test_a_rank_that_fails_alone_ends_its_job(tmp_path: Path, how: str, status: int, shown: str) -> None:
    """The others wait for it in a collective, and it must not wait for them at its end."""
    with failing_job(tmp_path, how) as job:
        assert job.ranks[1].wait(timeout=40) == status, job.ranks[1].output
        assert [job.ranks[rank].wait(timeout=60) != 0 for rank in (0, 2)] == [True, True]
    assert shown in job.ranks[1].output
    child = int(job.ranks[1].output.split("child ")[1].split()[0])
    assert ended(child), "what is a daemon ends with its process"


@pytest.mark.slow
def test_ranks_that_end_alike_wait_for_each_other(tmp_path: Path) -> None:
    with failing_job(tmp_path, "0") as job:
        job.wait()


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
