"""The kernel's own answers are exchanged by `strace -e inject`: what no library in between can know of (spec: S-5, S-12, S-15).

`test_system_calls.py` fails every call, by a library that is loaded into the process. Here a few are failed from outside, and
what the kernel sees is compared with what that library sees.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ckptcore.incarnations import undecided
from tests.ckptcore.support import check_commits, memory_directory
from tests.faults.interposer import Control
from tests.faults.walk import Job
from tests.processes import ROOT
from tests.spec.checker import check_run

pytestmark = pytest.mark.slow

SAVING = """
import os, sys
from pathlib import Path
from ckptcore import retry
from tests.faults.walk import Job, told
retry.FIRST_DELAY = 1e-5
run = Path(sys.argv[1])
job = Job(run)
for moved in map(Path, sys.argv[2:]):
    os.rename(run.parent, moved)
    os.symlink(moved, run.parent)
error = job.save(2)
print("committed" if error is None else f"{error.kind} {told(error)}")
"""
CHANGES = (
    "write,writev,pwrite64,pwritev,fsync,fdatasync,link,linkat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat"
)


@functools.cache
def tracer() -> str:
    """The path of strace. Skips the test where it is missing, or may trace nothing."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: nobody can exchange the kernel's answers")
    tried = subprocess.run([found, "-f", "-o", os.devnull, "true"], capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine does not let strace trace a process: {tried.stderr.strip()}")
    return found


def save_under(
    run: Path, trace: Path, *options: str, moved: tuple[Path, ...] = (), variables: Mapping[str, str] | None = None
) -> str:
    """Save step 2 in a process that strace watches; what it says of the outcome.

    Once the job is open, the folder of the run is moved to `moved`: so a path can be failed for the save alone.
    """
    command = [tracer(), "-f", "-qq", "-y", "-o", str(trace), *options, sys.executable, "-c", SAVING, str(run), *map(str, moved)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def prepared(folder: Path) -> Path:
    """A run with one commit."""
    run = folder / "at" / "run"
    job = Job(run)
    assert job.save(1) is None
    job.close()
    return run


@pytest.mark.parametrize(
    ("calls", "error", "expected", "says"),
    [
        # Strace counts the calls of each thread for itself: the first of each fails, that of the save among them.
        pytest.param("link,linkat", "EIO:when=1", "committed", "", id="link"),
        pytest.param("write", "EINTR:when=1", "committed", "", id="interrupted write"),
        pytest.param("rename,renameat", "EIO:when=1", "commit-unknown", "merged root", id="rename"),
        pytest.param("pwrite64", "EIO:when=1", "save-failed", "rank 0 could not write its part", id="an array"),
        pytest.param("pwrite64", "ENOSPC:when=1", "save-failed", "Make room", id="no room for an array"),
    ],
)
def test_an_answer_of_the_kernel(calls: str, error: str, expected: str, says: str) -> None:
    with memory_directory() as folder:
        run = prepared(folder)
        outcome = save_under(run, folder / "trace", "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}")
        assert "(INJECTED)" in (folder / "trace").read_text()
        assert outcome.startswith(expected)
        assert says in outcome
        check_what_is_left(run, base=1 if expected == "save-failed" else 2)


def test_a_ledger_directory_that_the_kernel_cannot_sync() -> None:
    """The link was made, its directory is not durable: the outcome is unknown, and the next start finds the commit (S-5)."""
    with memory_directory() as folder:
        run = prepared(folder)
        moved = folder / "moved"
        failing = ("-P", f"{moved}/run/ledger", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO")
        outcome = save_under(run, folder / "trace", *failing, moved=(moved,))
        assert outcome.startswith("commit-unknown")
        assert "may not survive a power cut" in outcome
        check_what_is_left(run, base=2)


def check_what_is_left(run: Path, *, base: int) -> None:
    job = Job(run)
    assert job.base == base
    assert job.save(3) is None
    job.close()
    assert undecided(job.store) == []
    assert check_commits(job.store)
    assert check_run(run) == []


def test_the_preloaded_library_sees_every_call_that_the_kernel_sees() -> None:
    """If TensorStore or Python came to make one behind its back, `test_system_calls.py` would no longer fail all of them."""
    with memory_directory() as folder:
        run, control = prepared(folder), Control(folder / "control")
        variables = control.environment | {"LD_PRELOAD": ""}
        with control.failing(f"{run}/*", 0, kinds=("write", "fsync", "link", "rename", "unlink", "mkdir")):
            preload = ["-E", f"LD_PRELOAD={control.environment['LD_PRELOAD']}"]
            outcome = save_under(run, folder / "trace", "-e", f"trace={CHANGES}", *preload, variables=variables)
        assert outcome == "committed"
        lines = [line for line in (folder / "trace").read_text().splitlines() if f"{run}/" in line]
        made = [match[1] for line in lines if (match := re.match(r"\d+ +(\w+)\(", line))]
        assert made.count("fsync") > 50
        assert made.count("pwrite64") > 2
        assert made.count("writev") > 0
        assert len(made) == control.seen
