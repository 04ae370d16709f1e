"""Stacks of processes that hang: running, stopped, deaf, or gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptcore.attempt_structs import MAX_STACK
from ckptcore.heartbeat import FOLDER, STACK_SIGNAL
from ckptsupervise import procfs, stacks
from tests.processes import ROOT, Rank

PROGRAM = """
import os, time
from ckptcore.heartbeat import Pulse
def the_place_where_it_hangs():
    print("hangs", flush=True)
    time.sleep(1000)
pulse = Pulse.of(os.environ, 2)
the_place_where_it_hangs()
"""
DEAF = "import time; print('hangs', flush=True); time.sleep(1000)"
HAS_PY_SPY = shutil.which("py-spy", path=sysconfig.get_path("scripts")) is not None
needs_py_spy = pytest.mark.skipif(not HAS_PY_SPY, reason="py-spy is not installed")


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for is waited for, however busy the machine is."""
    monkeypatch.setattr(stacks, "PATIENCE", 60.0)
    monkeypatch.setattr(stacks, "SECONDS", 60.0)


@contextmanager
def hanging(folder: Path, program: str = PROGRAM) -> Iterator[int]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), FOLDER: str(folder), "RANK": "2"}
    command = [sys.executable, "-c", program, "--key", "s3cret\nThread 1 (idle)\n    s3cret (s3cret.py:1)"]
    rank = Rank(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        rank.wait_for("hangs")
        yield rank.process.pid
    finally:
        rank.end()


def test_no_means_tells_the_command_line(tmp_path: Path) -> None:
    with hanging(tmp_path) as pid:
        told = [stacks.by_py_spy(pid), stacks.by_itself(pid, tmp_path, 2), stacks.by_kernel(pid)]
    assert "the_place_where_it_hangs" in told[1]
    assert "State: " in told[2]
    assert [word for word in ("s3cret", "--key", "python") for text in told if word in text] == []


@needs_py_spy
def test_by_py_spy_of_a_process_that_is_stopped(tmp_path: Path) -> None:
    with hanging(tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        assert "the_place_where_it_hangs" in stacks.by_py_spy(pid)
        assert "the_place_where_it_hangs" in stacks.of(pid, tmp_path, 2)


def test_by_itself(tmp_path: Path) -> None:
    with hanging(tmp_path) as pid:
        first = stacks.by_itself(pid, tmp_path, 2)
        again = stacks.by_itself(pid, tmp_path, 2)
    assert "in the_place_where_it_hangs" in first
    assert again.count("the_place_where_it_hangs") == 1, "what it wrote before is not told again"


def test_what_does_not_listen_is_not_signalled(tmp_path: Path) -> None:
    """The signal would end it, and what the kernel says of it with it."""
    with hanging(tmp_path, DEAF) as pid:
        assert not procfs.handles(pid, STACK_SIGNAL)
        assert stacks.by_itself(pid, tmp_path, 2) == ""
        seen = procfs.look(pid)
        assert seen is not None
        assert seen.state != "Z"


def test_by_the_kernel(tmp_path: Path) -> None:
    with hanging(tmp_path, DEAF) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        assert "State: T (stopped)" in stacks.by_kernel(pid)


def test_a_process_that_has_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert stacks.of(gone.pid, tmp_path, 2) == ""


@pytest.mark.parametrize("script", ["exit 0", "exit 1", "sleep 100", "kill -9 $$"])
def test_a_py_spy_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(stacks, "SECONDS", 0.2)
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho half of a stack\n{script.replace('sleep', 'exec sleep')}\n")
    program.chmod(0o755)
    assert stacks.by_py_spy(os.getpid(), str(program)) == ""
    assert stacks.by_py_spy(os.getpid(), str(tmp_path / "none")) == ""


def test_of_several_ranks_the_first_ones_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "of", lambda pid, _folder, _rank: f"stack of {pid}" * 10_000)
    text = stacks.of_ranks({rank: 100 + rank for rank in (7, *range(5), *range(8, 90))}, tmp_path)
    assert text.startswith("rank 7, process 107:\nstack of 107")
    assert text.count("process ") == stacks.MOST
    assert len(text) <= MAX_STACK


def test_of_no_rank(tmp_path: Path) -> None:
    assert stacks.of_ranks({}, tmp_path) == ""
