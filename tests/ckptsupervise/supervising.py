"""`ckpt supervise` as a process of its own, on the toy program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ckptcore
from ckptcore.attempts import Attempt, Attempts
from ckptsupervise import leftovers
from tests.ckptcore.support import file_store
from tests.processes import ROOT, Rank

TOY = ROOT / "tests" / "ckptsupervise" / "toy.py"


class Supervised:
    """A run, and the supervisors that are started for it. `top`: where they keep their state."""

    def __init__(self, place: Path) -> None:
        self.run, self.top = place / "run", place / "tmp"
        self.top.mkdir()
        self.started: list[Rank] = []

    def start(
        self,
        steps: int,
        faults: Sequence[dict[str, Any]] = (),
        *options: str,
        nproc: int = 2,
        every: int = 5,
        seconds: float = 0.02,
        apart: bool = False,
    ) -> Rank:
        """Start a supervisor. `apart`: its standard error is not wanted."""
        job = [sys.executable, str(TOY), str(self.run), str(steps), json.dumps(list(faults)), str(every), str(seconds)]
        given = ["--run", str(self.run), "--nproc", str(nproc), *options]
        command = [sys.executable, "-m", "ckptcli", "--debug", "supervise", *given, "--", *job]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.top)}
        errors = subprocess.DEVNULL if apart else subprocess.STDOUT
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        self.started.append(Rank(process))
        return self.started[-1]

    @property
    def attempts(self) -> list[Attempt]:
        """What is recorded."""
        return Attempts(file_store(self.run)).load()

    @property
    def head(self) -> int:
        """The step of the newest checkpoint, which is whole."""
        run = ckptcore.open_run(self.run)
        run.verify(deep=True)
        head = run.head()
        assert head is not None
        return head.step

    def left(self) -> list[int]:
        """Processes of any attempt."""
        return leftovers.members(self.top)

    def wait_until_none_is_left(self, timeout: float = 10.0) -> None:
        """Fails if some are still there after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.left():
            assert time.monotonic() < deadline, f"left over: {[_shown(pid) for pid in self.left()]}"
            time.sleep(0.02)


@contextmanager
def supervised(place: Path) -> Iterator[Supervised]:
    """Nothing that was started outlives this."""
    made = Supervised(place)
    try:
        yield made
    finally:
        for rank in made.started:
            rank.end()
        leftovers.end(made.top)


def _shown(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
    except OSError:
        return f"{pid} (gone)"
