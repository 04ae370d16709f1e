"""Jobs of several processes for tests: watched, and ended by their process ids.

What a process runs is said elsewhere (`tests/jaxckpt/procs.py`, `tests/torchckpt/procs.py`). Output is
read by threads, so a test can wait for a line without sleeping.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol, Self

ROOT = Path(__file__).parents[1]


class Process(Protocol):
    """What a `subprocess.Popen` can do that a job needs."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class Rank:
    """One process and what it has printed so far."""

    def __init__(self, process: Process) -> None:
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
    """Processes that work together. Leaving the context kills what still runs."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.ranks = [Rank(process) for process in processes]

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


def wait_for_file(path: Path, *, timeout: float = 60) -> None:
    """Wait until the file is there. Fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)


_KEPT = 32
_keepers: deque[int] = deque()


def free_port() -> int:
    """A port that nobody listens on, and that the system gives to nobody else until `_KEPT` others have been asked for.

    A socket that is bound and does not listen keeps it. Whoever is told the port can listen there all the same: servers let an
    address be used again (SO_REUSEADDR), as this one does.
    """
    while len(_keepers) >= _KEPT:
        os.close(_keepers.popleft())
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = keeper.getsockname()[1]
        _keepers.append(keeper.detach())
    return port
