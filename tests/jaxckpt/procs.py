"""Jobs of several JAX processes for tests: started, watched, and ended by their process ids.

A script is Python source. In it `RANK`, `SIZE` and `ARGS` are set, and `jax.distributed` is
initialized with gloo collectives. Output is read by threads, so a test can wait for a line
without sleeping.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Self

ROOT = Path(__file__).parents[2]

_PREAMBLE = """\
import sys
import jax
RANK, SIZE, ARGS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[5:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[4]))
if SIZE > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[3], SIZE, RANK, heartbeat_timeout_seconds=10, initialization_timeout=60)
"""


class Rank:
    """One process and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything printed until now, standard error included."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, text: str, *, timeout: float = 60) -> str:
        """Wait until a line holds `text` and return that line. Fails when the process ends first, or too late."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(text in line for line in self._lines), timeout)
            found = next((line for line in self._lines if text in line), None)
        assert found is not None, f"no line with {text!r} in the output of process {self.process.pid}:\n{self.output}"
        return found.rstrip("\n")

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def wait(self, *, timeout: float = 60) -> int:
        """The exit status, once the process has ended and its output is read."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"process {self.process.pid} did not end in {timeout} s:\n{self.output}") from None
        self._reader.join()
        return status

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Job:
    """`size` processes of one script. Leaving the context kills what still runs."""

    def __init__(
        self, script: str, *, size: int = 2, devices: int = 2, args: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        source = _PREAMBLE + dedent(script)
        address = f"127.0.0.1:{free_port()}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "XLA_FLAGS": "", **(env or {})}
        self.ranks = [
            Rank(
                subprocess.Popen(
                    [sys.executable, "-c", source, str(rank), str(size), address, str(devices), *args],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment,
                    cwd=ROOT,
                )
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.end()

    def wait(self, *, timeout: float = 90) -> list[str]:
        """The outputs, in rank order, once all have ended with status 0. Fails, and ends all, otherwise."""
        deadline = time.monotonic() + timeout
        statuses = [rank.wait(timeout=max(0.1, deadline - time.monotonic())) for rank in self.ranks]
        shown = "\n".join(f"--- rank {index}: {rank.output}" for index, rank in enumerate(self.ranks))
        assert statuses == [0] * len(self.ranks), f"exit statuses {statuses}\n{shown}"
        return [rank.output for rank in self.ranks]


def run_job(
    script: str,
    *,
    size: int = 2,
    devices: int = 2,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 90,
) -> list[str]:
    """Run a job to its end; the outputs in rank order. Fails unless every rank ends with status 0."""
    with Job(script, size=size, devices=devices, args=args, env=env) as job:
        return job.wait(timeout=timeout)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
