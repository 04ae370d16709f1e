"""The peers of the comparison: each saves and restores the whole state on every mesh that it claims, and its check can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import durable
from benchmarks.subject import DEVICES, RANKS
from tests.processes import ROOT, Job, free_port


def right_on(folder: Path, *names: str, ranks: int = 1) -> list[str]:
    """Run `tests.benchmarks.round_trips` in so many processes; on which meshes each peer was right, the same in all processes."""
    addresses = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.round_trips", str(folder), *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **addresses, **devices, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    with Job(processes) as job:
        outputs = job.wait(timeout=200)
    found = [[line for line in output.splitlines() if line.partition(" ")[0] in names] for output in outputs]
    assert all(lines == found[0] for lines in found)
    return found[0]


@pytest.mark.whole
@pytest.mark.timeout(240)
def test_orbax_is_right_on_every_mesh_and_from_one_to_the_next(tmp_path: Path) -> None:
    meshes = ("one", "1d", "2d", "transposed")
    found = right_on(tmp_path, "orbax", "orbax-tuned")
    assert found == [f"{name} {mesh}" for name in ("orbax", "orbax-tuned") for mesh in meshes]


@pytest.mark.whole
@pytest.mark.timeout(240)
def test_torch_peers_are_right_in_one_process(tmp_path: Path) -> None:
    names = ("dcp", "dcp-async", "torch-checkpointing", "safetensors")
    assert right_on(tmp_path, *names) == [f"{name} one" for name in names]


@pytest.mark.whole
@pytest.mark.timeout(240)
def test_dcp_is_right_on_every_mesh_of_ranks_and_from_one_to_the_next(tmp_path: Path) -> None:
    found = right_on(tmp_path, "dcp", "dcp-async", ranks=RANKS)
    assert found == [f"{name} {mesh}" for name in ("dcp", "dcp-async") for mesh in ("1d", "2d", "transposed")]


def test_the_newest_checkpoint_is_that_of_the_highest_step(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        durable.path_of(tmp_path, step).mkdir()
    (tmp_path / "tmp_11").mkdir()
    assert durable.newest(tmp_path) == durable.path_of(tmp_path, 10)


def test_all_files_and_folders_of_a_checkpoint_are_flushed_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = durable.path_of(tmp_path, 1)
    (checkpoint / "inner").mkdir(parents=True)
    files = [checkpoint / "a", checkpoint / "b", checkpoint / "inner" / "c"]
    for path in files:
        path.touch()
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(Path(f"/proc/self/fd/{handle}").readlink()))
    durable.flush(checkpoint)
    assert sorted(flushed) == sorted([*files, checkpoint / "inner", checkpoint, tmp_path])
