"""A script that ends without close() loses nothing: its last save is decided, or its failure is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore.run import open_run

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, threading
import numpy as np
from ckptcore import writer
from tests.ckptcore import support

write = writer._Writer.run

def late(self):
    threading.main_thread().join()  # the background half is still to come when the script has ended
    if sys.argv[3] == "fails":
        raise OSError("the disk has left us")
    return write(self)

writer._Writer.run = late
state = {"params": {"w": np.ones(int(sys.argv[2]), np.float32)}, "optimizer": {"count": 1}, "rng": {"seed": 1}, "data": {"at": 1}}
support.checkpointer(sys.argv[1]).save(1, state)
"""


def script(run: Path, elements: int, what: str) -> str:
    """Run it to its end; what it wrote to stderr."""
    command = [sys.executable, "-c", PROGRAM, str(run), str(elements), what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("elements", [4, 5_000_000], ids=["small", "large"])
def test_the_last_save_of_a_script_that_just_ends_is_committed(place: Path, elements: int) -> None:
    assert script(place / "run", elements, "works") == ""
    run = open_run(place / "run")
    assert [(found.id.step, found.state) for found in run.generations()] == [(1, "committed")]
    assert run.verify(deep=True).ok


def test_a_failure_that_nobody_can_be_told_of_is_logged(place: Path) -> None:
    told = script(place / "run", 4, "fails")
    assert "save 000001-000000000001-1 failed after the main thread had ended" in told
    assert "the disk has left us" in told
