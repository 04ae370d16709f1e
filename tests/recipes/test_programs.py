"""The training programs, started by what the recipes start them with: real ranks, real checkpoints, a made-up cluster around."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_conformance.jobs.processes import read_text
from ckptcore import open_run
from tests.processes import ROOT, Rank
from tests.recipes.cluster import BASH, RECIPES, Cluster

pytestmark = pytest.mark.whole
TORCH, JAX = str(RECIPES / "train_torch.py"), str(RECIPES / "train_jax.py")
LIMIT = 90


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """With the real `ckpt`."""
    made = Cluster(tmp_path)
    made.add("ckpt", f'echo "ckpt $*" >> calls; exec {sys.executable} -m ckptcli "$@"')
    return made


def environment(cluster: Cluster, *, nodes: int, per_node: int) -> dict[str, str]:
    sizes = {"SLURM_NNODES": str(nodes), "SLURM_NTASKS_PER_NODE": str(per_node)}
    return cluster.environment(RUN=str(cluster.folder / "run"), OMP_NUM_THREADS="1", NPROC=str(per_node), **sizes)


def start(cluster: Cluster, script: str, *command: str, nodes: int = 1, per_node: int = 2) -> Rank:
    process = subprocess.Popen(
        [BASH, str(RECIPES / script), sys.executable, *command],
        cwd=cluster.folder,
        env=environment(cluster, nodes=nodes, per_node=per_node),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Rank(process)


def step(cluster: Cluster) -> int:
    head = open_run(str(cluster.folder / "run")).head()
    return 0 if head is None else head.step


def child(pid: int, words: str) -> int:
    """The process below `pid` whose command line has `words`. Others may end meanwhile."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(each) for each in children if words in read_text(Path(f"/proc/{each}/cmdline")))


def test_torchrun(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", TORCH, str(cluster.folder / "run")]
    env = environment(cluster, nodes=1, per_node=2)
    for until, begins in (("12", 0), ("15", 12)):
        done = subprocess.run([*command, until], env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        for rank in range(2):  # with `python -u`, as torchrun starts it, a line and its end are written apart
            assert f"rank {rank} of 2 begins at step {begins}" in done.stdout
        assert step(cluster) == int(until)


def test_slurm_a_preempted_job_saves_is_queued_again_and_goes_on(cluster: Cluster) -> None:
    job = start(cluster, "nodes.sbatch", TORCH, str(cluster.folder / "run"), "100000", "0.02")
    for rank in range(2):
        job.wait_for(f"rank {rank} of 2 begins at step 0", timeout=LIMIT)
    os.kill(child(job.process.pid, "fake_srun"), signal.SIGTERM)
    assert job.process.wait(LIMIT) == 143, job.output
    assert cluster.calls[-1] == "scontrol requeue 77"
    reached = step(cluster)
    again = start(cluster, "nodes.sbatch", TORCH, str(cluster.folder / "run"), str(reached + 5))
    assert again.process.wait(LIMIT) == 0, again.output
    assert f"rank 1 of 2 begins at step {reached}" in again.output
    assert step(cluster) == reached + 5


def test_slurm_ranks_of_jax_are_started_again_when_one_dies(cluster: Cluster) -> None:
    job = start(cluster, "nodes.sbatch", JAX, str(cluster.folder / "run"), "40", "0.05", nodes=2, per_node=1)
    for rank in range(2):
        job.wait_for(f"process {rank} of 2 begins at step 0", timeout=LIMIT)
    srun = child(job.process.pid, "fake_srun")
    os.kill(child(srun, "train_jax"), signal.SIGKILL)
    assert job.process.wait(LIMIT) == 0, job.output
    assert job.output.count("process 0 of 2 begins at step") == 2
    assert step(cluster) == 40


def test_slurm_a_supervised_node(cluster: Cluster) -> None:
    script = start(cluster, "one-node.sbatch", TORCH, str(cluster.folder / "run"), "100000", "0.02")
    script.wait_for("rank 1 of 2 begins at step 0", timeout=LIMIT)
    srun = child(script.process.pid, "fake_srun")
    os.kill(srun, signal.SIGTERM)
    assert script.process.wait(LIMIT) == 143, script.output
    assert cluster.calls[-1] == "scontrol requeue 77"
    assert step(cluster) > 0


def test_jax_alone(cluster: Cluster) -> None:
    command, env = [sys.executable, JAX, str(cluster.folder / "run"), "5"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "process 0 of 1 begins at step 0\n"
    assert step(cluster) == 5
