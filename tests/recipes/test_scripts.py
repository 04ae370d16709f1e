"""The scripts, with an `srun`, a `scontrol` and mostly a `ckpt` that only note what they are asked to do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.cluster import BASH, RECIPES, Cluster

SCRIPTS = sorted([*RECIPES.glob("*.sbatch"), *RECIPES.glob("*.sh")])


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_it(script: Path) -> None:
    subprocess.run([BASH, "-n", script], check=True, timeout=20)
    assert "set -u" in script.read_text()


def test_there_are_scripts() -> None:
    assert [path.name for path in SCRIPTS] == ["nodes.sbatch", "one-node.sbatch", "supervised-nodes.sbatch", "tpu-vm.sh"]


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.suffix == ".sbatch"], ids=lambda path: path.name)
def test_slurm_reads_its_options_before_the_first_command(script: Path) -> None:
    lines = script.read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert options
    assert max(options) < first
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=TERM@300"} <= set(lines)
    grace = re.search(r"--grace (\d+)min", script.read_text())
    assert grace is None or int(grace[1]) * 60 < 300


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_without_a_run_nothing_is_started(script: Path, cluster: Cluster) -> None:
    done = cluster.run(script.name, "touch", "started", RUN="")
    assert done.returncode != 0
    assert "URL of the run" in done.stderr
    assert not (cluster.folder / "started").exists()


# --- nodes.sbatch


def test_every_task_learns_its_rank(cluster: Cluster) -> None:
    line = "f'{place.rank} {place.size} {place.local_rank} {place.coordinator}\\n'"  # in one piece, whoever else writes
    code = f"from ckptcore.launch import launch; import os; place = launch(os.environ); os.write(1, {line}.encode())"
    done = cluster.run("nodes.sbatch", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    places = sorted(line.split() for line in done.stdout.splitlines())
    assert [place[:3] for place in places] == [[str(rank), "4", str(rank % 2)] for rank in range(4)]
    assert len({place[3] for place in places}) == 1
    assert places[0][3].startswith("localhost:")


def program(cluster: Cluster, text: str) -> str:
    """A program that notes each start; `n` is which one it is."""
    return str(cluster.add("program", f"echo start >> starts; n=$(wc -l < starts); {text}"))


def starts(cluster: Cluster) -> int:
    return len((cluster.folder / "starts").read_text().splitlines())


ONE = {"SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "1"}


def test_a_job_that_fails_without_progress_stops_after_three_restarts(cluster: Cluster) -> None:
    done = cluster.run("nodes.sbatch", program(cluster, "exit 9"), **ONE)
    assert (done.returncode, starts(cluster)) == (9, 4)
    assert "3 restarts without a newly committed step" in done.stderr
    assert cluster.calls == ["ckpt recover s3://bucket/run --apply"] * 4 + ["ckpt explain s3://bucket/run"]


def test_a_job_that_gets_on_is_restarted_in_its_allocation(cluster: Cluster) -> None:
    done = cluster.run("nodes.sbatch", program(cluster, "echo 000001-00000000000$n-1 > head; [ $n -ge 7 ]"), **ONE)
    assert (done.returncode, starts(cluster)) == (0, 7)
    assert not any("scontrol" in call for call in cluster.calls)


def test_a_save_that_is_settled_after_the_death_is_progress(cluster: Cluster) -> None:
    text = (cluster.bin / "ckpt").read_text() + '[ "$1" = recover ] && echo 000001-$(wc -l < starts)-1 > head\n'
    (cluster.bin / "ckpt").write_text(text)
    done = cluster.run("nodes.sbatch", program(cluster, "[ $n -ge 7 ]"), **ONE)
    assert (done.returncode, starts(cluster)) == (0, 7)


def test_a_job_that_has_saved_and_stopped_is_queued_again(cluster: Cluster) -> None:
    done = cluster.run("nodes.sbatch", program(cluster, "echo 000001-000000000020-1 > head; exit 143"), **ONE)
    assert (done.returncode, starts(cluster)) == (143, 1)
    assert cluster.calls[-1] == "scontrol requeue 77"


def test_sigterm_deaths_without_a_save_are_failures(cluster: Cluster) -> None:
    done = cluster.run("nodes.sbatch", program(cluster, "exit 143"), **ONE)
    assert (done.returncode, starts(cluster)) == (143, 4)
    assert not any("scontrol" in call for call in cluster.calls)


# --- one-node.sbatch


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (6, False), (143, True)])
def test_one_node_is_supervised_and_queued_again_if_it_was_preempted(cluster: Cluster, status: int, *, requeued: bool) -> None:
    (cluster.folder / "status").write_text(str(status))
    done = cluster.run("one-node.sbatch", "python", "train.py", NPROC="4", MIN_NPROC="3")
    assert done.returncode == status
    started = "ckpt supervise --run s3://bucket/run --nproc 4 --min-nproc 3 --grace 4min -- python train.py"
    assert cluster.calls == [started, *(["scontrol requeue 77"] if requeued else [])]


# --- supervised-nodes.sbatch


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (143, True)])
def test_each_node_has_a_supervisor(cluster: Cluster, status: int, *, requeued: bool) -> None:
    (cluster.folder / "status").write_text(str(status))
    more = {"NPROC": "4", "MIN_NPROC": "3", "MIN_NNODES": "2", "SLURM_NNODES": "3", "SLURM_NTASKS_PER_NODE": "1"}
    done = cluster.run("supervised-nodes.sbatch", "python", "train.py", **more)
    assert done.returncode == status
    options = "--run s3://bucket/run --nnodes 3 --min-nnodes 2 --nproc 4 --min-nproc 3 --grace 4min"
    started = f"ckpt supervise {options} -- python train.py"
    assert cluster.calls == [started] * 3 + (["scontrol requeue 77"] if requeued else [])


# --- tpu-vm.sh


def test_a_host_starts_its_process_again_while_there_is_progress(cluster: Cluster) -> None:
    done = cluster.run("tpu-vm.sh", program(cluster, "echo 000001-00000000000$n-1 > head; [ $n -ge 7 ]"))
    assert (done.returncode, starts(cluster)) == (0, 7)


def test_a_host_stops_without_progress(cluster: Cluster) -> None:
    done = cluster.run("tpu-vm.sh", program(cluster, "exit 9"))
    assert (done.returncode, starts(cluster)) == (9, 4)


def test_a_host_that_is_taken_back_waits_for_the_save(cluster: Cluster) -> None:
    text = "trap 'echo saved > saved; exit 143' TERM; echo ready; while true; do sleep 0.05; done"
    command = [BASH, str(RECIPES / "tpu-vm.sh"), program(cluster, text)]
    job = subprocess.Popen(
        command, cwd=cluster.folder, env=cluster.environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait(timeout=30) == 143
    assert (cluster.folder / "saved").exists()
    assert starts(cluster) == 1
