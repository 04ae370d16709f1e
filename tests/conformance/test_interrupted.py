"""A run that is ended by Ctrl-C or a signal: nobody and nothing is left, and all reports say so."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ckpt_conformance.jobs.processes import until
from ckpt_conformance.results import from_json
from ckpt_conformance.work import PREFIX
from tests.conformance.small_suite import LIMIT, TOY, command, make_suite
from tests.conformance.test_processes import is_gone


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return make_suite(tmp_path)


@pytest.mark.slow
def test_an_adapter_that_hangs_is_interrupted(suite: Path) -> None:
    """Ctrl-C while the adapter is asked what it offers."""
    adapter = shlex.join([sys.executable, "-c", "import signal; open('hangs', 'w'); signal.pause()"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command(suite, ["run", "--adapter", adapter]), cwd=suite, env=environment, stderr=subprocess.PIPE)
    assert until((suite / "hangs").exists, LIMIT)
    children = below(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (130, b"ckpt_conformance: interrupted\n")
    assert children
    assert until(lambda: all(is_gone(pid) for pid in children), LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "jobs"), [("SIGINT", "1"), ("SIGHUP", "1"), ("SIGTERM", "2")])
def test_a_run_that_is_ended_leaves_nobody_and_nothing(suite: Path, by: str, jobs: str) -> None:
    reports = ["--json", "out.json", "--junit", "out.xml", "--html", "out.html"]
    arguments = ["run", "--adapter", TOY, "-j", jobs, "--only", "hang", "--only", "toy", *reports]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command(suite, arguments), cwd=suite, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        children = hanging(process.pid)
        process.send_signal(signal.Signals[by])
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert until(lambda: all(is_gone(pid) for pid in children), LIMIT)
    assert [
        path for folder in ("/dev/shm", tempfile.gettempdir()) for path in Path(folder).glob(f"{PREFIX}{process.pid}-*")
    ] == []
    found = from_json((suite / "out.json").read_text())
    assert (found.interrupted, found.cells, len(found.results) < 4) == (True, 4, True)
    told = f"nterrupted after {len(found.results)} of 4 cells"
    for text in (output, (suite / "out.xml").read_text(), (suite / "out.html").read_text()):
        assert told in text


def hanging(pid: int) -> set[int]:
    """All processes below `pid`, once the toy hangs in one of them."""
    found: set[int] = set()

    def hangs() -> bool:
        found.update(below(pid))
        return any(seen("cmdline", child).count("toy_adapter") and seen("syscall", child).startswith("34 ") for child in found)

    assert until(hangs, LIMIT), "nothing hangs"
    return found


def below(pid: int) -> set[int]:
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {number: seen("stat", number).rpartition(")")[2].split()[1:2] for number in numbers}
    found = {str(pid)}
    while more := {str(child) for child, parent in parents.items() if parent and parent[0] in found} - found:
        found |= more
    return {int(child) for child in found} - {pid}


def seen(name: str, pid: int) -> str:
    """A file of /proc; empty if the process is gone, or hidden."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
