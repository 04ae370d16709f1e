"""The demo as a person runs it, and what it must show."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_conformance.jobs.processes import until
from demo.job import Job, Kill
from demo.processes import Launch, LaunchFailed
from demo.screen import COLUMNS

ROOT = Path(__file__).parents[2]


def test_a_job_survives_the_command_line() -> None:
    job = Job(url="store", folder="logs", cache="cache", mesh=(4, 1), kill=Kill(rank=1, event="shard-write", step=50))
    assert Job.from_json(job.to_json()) == job
    assert Job.from_json(Job(url="a", folder="b", cache="c").to_json()).kill is None


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr


@pytest.mark.slow
def test_a_process_that_fails_ends_the_wait_and_is_named(tmp_path: Path) -> None:
    job = Job(url=str(tmp_path / "store"), folder=str(tmp_path / "logs"), cache=str(tmp_path / "cache"), ranks=1, devices=1)
    with Launch(job) as launch, pytest.raises(LaunchFailed, match=r"(?s)rank 0 ended with status 1.*cannot reshape"):
        launch.finish()


@pytest.mark.slow
def test_a_late_process_is_named_and_ended(tmp_path: Path) -> None:
    job = Job(url=str(tmp_path / "store"), folder=str(tmp_path / "logs"), cache=str(tmp_path / "cache"), ranks=1, devices=4)
    with Launch(job) as launch, pytest.raises(LaunchFailed, match=r"within 0 s: rank 0 still runs, its last step is 0"):
        launch.finish(seconds=0)
    assert launch.code(0) == -signal.SIGKILL


def training(folder: Path) -> list[str]:
    """The running training processes that were told of this folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return [command for command in commands if "demo.train" in command and str(folder) in command]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to look for processes")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_processes_and_leaves_nothing(tmp_path: Path, number: signal.Signals, status: int) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "demo"], cwd=ROOT, env=environment, **pipes) as demo:
        try:
            assert until(lambda: len(training(tmp_path)) >= 2 or demo.poll() is not None, 100)
            assert demo.poll() is None
            demo.send_signal(number)
            _, errors = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert demo.returncode == status
    assert errors == f"The demo was stopped by {number.name}; its training processes were ended.\n"
    assert training(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_the_whole_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--json", "--dir", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"\n  step \d+ of 120, \d+ s\n", done.stderr)
    assert max(map(len, done.stderr.splitlines())) <= COLUMNS
    figures = json.loads(done.stdout)
    assert figures["held"]
    reference, torn, complete, other, torch = figures["acts"]
    assert all(check["held"] for act in figures["acts"] for check in act["checks"])
    assert min(len(act["checks"]) for act in figures["acts"]) >= 2
    assert reference["figures"]["accuracy"] > 0.9
    assert torn["figures"]["base"]["reason"] == "newest"
    assert torn["figures"]["base"]["generation"] == "000001-000000000040-1"
    assert [item["decision"] for item in torn["figures"]["base"]["settled"]] == ["abort"]
    assert complete["figures"]["base"]["reason"] == "rolled-forward"
    assert complete["figures"]["base"]["generation"] == "000001-000000000070-1"
    assert other["figures"]["base"]["guarantee"] == "coverage"
    assert other["figures"]["epochs"] == 5
    assert torch["figures"]["base"]["guarantee"] == "coverage"
    assert torch["figures"]["base"]["generation"] == "000001-000000000040-1"
    assert torch["figures"]["accuracy"] > 0.9
