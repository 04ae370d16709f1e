"""Starting, watching and ending the processes of a job, as a supervisor does.

Every wait has a deadline, and what it raises names who is late and what was last heard of it.
No process outlives the `with` block that started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.job import Job, Kill
from demo.run_log import RankLog, read_log

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 0.05
JOB_SECONDS = 240.0
PROGRAMS = {"jax": "demo.train", "torch": "demo.train_torch"}


class LaunchFailed(Exception):
    """A job did not go as the demo expects."""


class Launch:
    """The processes of one launch of a job. Use it as a context manager: leaving it ends them all.

    `watch` is called with the launch at every look at it; what it raises ends the wait.
    """

    def __init__(self, job: Job, watch: Callable[[Launch], None] = lambda _: None) -> None:
        self.job = job
        self.ended: list[int] = []
        """The ranks that were still alive at the end of the block, and were killed."""
        self._watch = watch
        self._started = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        Path(self.job.folder).mkdir(parents=True)
        port = _free_port()
        with ExitStack() as stack:
            stack.callback(self.end)
            for rank in range(self.job.ranks):
                self._processes.append(self._start(rank, port))
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def code(self, rank: int) -> int | None:
        """The exit status of a process, negative for a signal; None while it lives."""
        return self._processes[rank].poll()

    def log(self, rank: int) -> RankLog:
        """What a process has logged so far."""
        return read_log(self.job.log(rank))

    def logs(self) -> list[RankLog]:
        """What all processes have logged so far, in rank order."""
        return [self.log(rank) for rank in range(self.job.ranks)]

    def finish(self, *, seconds: float = JOB_SECONDS) -> list[RankLog]:
        """Wait until all processes have ended well; one that fails ends the wait at once."""
        ranks = range(self.job.ranks)
        self.wait(lambda: all(self.code(rank) == 0 for rank in ranks), "the end of the training run", seconds=seconds)
        return self.logs()

    def wait_for_kill(self, kill: Kill, *, seconds: float = JOB_SECONDS) -> None:
        """Wait until the process that `kill`, which is the job's, names has killed itself."""
        what = f"the death of rank {kill.rank} at {kill.event!r} of step {kill.step}"
        self.wait(lambda: self.code(kill.rank) == -signal.SIGKILL, what, seconds=seconds, tolerate=range(self.job.ranks))

    def wait(self, arrived: Callable[[], bool], what: str, *, seconds: float, tolerate: range = range(0)) -> None:
        """Poll until `arrived()`. Raises `LaunchFailed` at the deadline, or when a rank not in `tolerate` fails."""
        deadline = time.monotonic() + seconds
        while True:
            codes = [self.code(rank) for rank in range(self.job.ranks)]  # before `arrived`: an end may be what is waited for
            self._watch(self)  # before the ends are judged: Ctrl-C reaches the job's processes too
            if arrived():
                return
            failed = any(code not in (None, 0) and rank not in tolerate for rank, code in enumerate(codes))
            if failed or None not in codes:
                raise LaunchFailed(f"{what} did not come: {self._state()}")
            if time.monotonic() > deadline:
                raise LaunchFailed(f"{what} did not come within {seconds:g} s: {self._state()}")
            time.sleep(POLL_SECONDS)

    def progress(self) -> str:
        """How far the slowest rank is, for people."""
        logs = self.logs()
        running = all(log.start is not None for log in logs)
        state = f"step {min(log.last for log in logs)} of {self.job.total}" if running else "the job is starting"
        return f"{state}, {time.monotonic() - self._started:.0f} s"

    def end(self) -> None:
        """Kill what still runs, by its process ID, and collect every exit status."""
        for rank, process in enumerate(self._processes):
            if process.poll() is None:
                process.kill()
                self.ended.append(rank)
        for process in self._processes:
            process.wait()

    def _start(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", PROGRAMS[self.job.framework], str(rank), str(port), self.job.to_json()]
        with self.job.errors(rank).open("wb") as errors:
            return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=errors, stderr=errors)

    def _state(self) -> str:
        return "; ".join(self._rank_state(rank) for rank in range(self.job.ranks))

    def _rank_state(self, rank: int) -> str:
        code = self.code(rank)
        state = "still runs" if code is None else f"ended with status {code}"
        errors = self.job.errors(rank).read_text(errors="replace").strip().splitlines()[-15:]
        tail = "\n    ".join(["", *errors])
        return f"rank {rank} {state}, its last step is {self.log(rank).last}, see {self.job.errors(rank)}:{tail}"


def environment() -> dict[str, str]:
    """This process's environment, less what would change where or on what JAX runs."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")
    }
    return {**kept, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
