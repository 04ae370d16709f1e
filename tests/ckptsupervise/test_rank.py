"""What a rank is before it becomes its program, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ckptcore import heartbeat
from ckptsupervise.lastwords import exception
from ckptsupervise.rank import CANNOT_RUN, NOT_FOUND, SUPERVISOR
from tests.processes import ROOT, Rank


def start(folder: Path, *command: str, parent: int | None = None) -> Rank:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RANK": "3",
        heartbeat.FOLDER: str(folder),
        SUPERVISOR: str(os.getpid() if parent is None else parent),
    }
    arguments = [sys.executable, "-P", "-m", "ckptsupervise.rank", "--", *command]
    return Rank(subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))


def test_it_becomes_its_command(tmp_path: Path) -> None:
    rank = start(tmp_path, sys.executable, "-c", "import os, sys; print(os.getpid(), sys.argv[1:])", "--", "-x", "a b")
    assert rank.wait() == 0
    assert rank.output == f"{rank.process.pid} ['--', '-x', 'a b']\n"


def test_the_first_heartbeat_is_there_before_the_command_runs(tmp_path: Path) -> None:
    rank = start(tmp_path, "cat", str(heartbeat.beat_file(tmp_path, 3)))
    assert rank.wait() == 0
    beat = heartbeat.read_one(tmp_path, 3)
    assert beat is not None
    assert (beat.rank, beat.pid, beat.phase, list(beat.marks)) == (3, rank.process.pid, "init", ["init"])
    assert '"phase":"init"' in rank.output


def test_it_dies_with_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[Rank] = []
    go = threading.Event()

    def launcher() -> None:
        started.append(start(tmp_path, sys.executable, "-c", "print('runs', flush=True); import time; time.sleep(1000)"))
        go.wait(60)

    thread = threading.Thread(target=launcher)
    thread.start()
    try:
        while not started:
            thread.join(0.01)
        started[0].wait_for("runs")
        assert started[0].process.poll() is None
    finally:
        go.set()
        thread.join()
    assert started[0].wait() == -signal.SIGKILL


def test_it_does_not_start_for_a_supervisor_that_has_gone(tmp_path: Path) -> None:
    rank = start(tmp_path, "echo", "started", parent=1)
    assert rank.wait() == CANNOT_RUN
    assert "the supervisor has gone" in rank.output
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    rank = start(tmp_path, "no-such-program")
    assert rank.wait() == NOT_FOUND
    assert rank.output == "ckpt supervise: there is no such command\n  no-such-program\n"
    assert exception(rank.output) == "there is no such command"


def test_a_command_that_is_no_program(tmp_path: Path) -> None:
    rank = start(tmp_path, str(tmp_path))
    assert rank.wait() == CANNOT_RUN
    assert exception(rank.output) == "the command cannot be run: Permission denied"


def test_no_command(tmp_path: Path) -> None:
    rank = start(tmp_path)
    assert rank.wait() == CANNOT_RUN


def test_no_place_for_heartbeats_keeps_nobody_from_training(tmp_path: Path) -> None:
    rank = start(tmp_path / "gone", "echo", "started")
    assert rank.wait() == 0
    assert "no heartbeat can be written: [Errno 2]" in rank.output
    assert str(tmp_path / "gone") in rank.output
    assert rank.output.endswith("started\n")
    assert exception(rank.output) == ""
