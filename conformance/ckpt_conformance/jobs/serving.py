"""An adapter's server (ADAPTER.md, "Serving"): it makes a process for each request without starting an interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from ckpt_conformance.jobs.processes import Files, Process, ProcessError, end_group, until

START_LIMIT = 120.0
"""Seconds until a process is there: the first one waits for the server's own start."""
END_LIMIT = 20.0
"""Seconds until the server has reported the end of a process that was killed, and until it has ended itself."""
RESTARTS = 1


class Server:
    """`CMD --serve`, with a thread that reads what it reports."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._next = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        try:
            self._server = subprocess.Popen(
                [*command, "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise ProcessError(f"the adapter cannot be started: {error}") from error
        self._reader = threading.Thread(target=self._read, args=[self._server.stdout], daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The server's process ID."""
        return self._server.pid

    @property
    def alive(self) -> bool:
        """Whether it can still make processes, and report on them."""
        return self._reader.is_alive() and self._server.poll() is None

    def start(self, files: Files) -> Process:
        """See `Launcher.start`."""
        number = self._next = self._next + 1
        order = {"id": number, "request": str(files.request), "output": str(files.output), "log": str(files.log), "env": {}}
        try:
            print(json.dumps(order), file=self._server.stdin, flush=True)
        except OSError as error:
            raise ProcessError(self._trouble()) from error
        self._wait(lambda: number in self._pids, START_LIMIT, "the process of a request is not there")
        return ServedProcess(self, number, self._pids[number])

    def status(self, number: int) -> int | None:
        """The exit status of the process made for the request `number`, None while it lives. Raises `ProcessError`."""
        if number not in self._statuses and not self.alive:
            raise ProcessError(self._trouble())
        return self._statuses.get(number)

    def wait_for(self, number: int) -> None:
        """Wait until the end of a process has been reported. Raises `ProcessError`."""
        self._wait(lambda: number in self._statuses, END_LIMIT, f"the end of process {self._pids[number]} is not reported")

    def close(self) -> None:
        """End the server, and every process of it that still lives."""
        for number in self._pids.keys() - self._statuses.keys():
            kill(self._pids[number])
        if self._server.stdin is not None:
            with contextlib.suppress(OSError):
                self._server.stdin.close()
        try:
            self._server.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            kill(self.pid)
            self._server.wait()
        end_group(self.pid)
        self._reader.join(END_LIMIT)
        self._log.close()

    def _wait(self, condition: Callable[[], bool], seconds: float, missing: str) -> None:
        until(lambda: condition() or not self.alive, seconds)
        if not condition():
            raise ProcessError(f"{missing} after {seconds:.0f} s: {self._said()}" if self.alive else self._trouble())

    def _read(self, reports: IO[str]) -> None:
        """Take the reports as they come, until nobody is left who could write one."""
        with reports:
            for line in reports:
                self._take(line)

    def _take(self, line: str) -> None:
        """One report. Lines that are none (a library's greeting) are ignored."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            report = json.loads(line)
            kept, name = (self._pids, "pid") if "pid" in report else (self._statuses, "status")
            kept[int(report["id"])] = int(report[name])
            if kept is self._statuses:
                end_group(self._pids[int(report["id"])])

    def _trouble(self) -> str:
        """What became of a server that is not as it should be."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(END_LIMIT)
        return f"the adapter's server (process {self.pid}) has ended, exit status {self._server.poll()}: {self._said()}"

    def _said(self) -> str:
        """The end of what it wrote to standard error."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace").strip()
        return text or "it wrote nothing to standard error"


class ServedProcess:
    """A process that a server made. Only the server can tell how it ended."""

    def __init__(self, server: Server, number: int, pid: int) -> None:
        self._server = server
        self._number = number
        self.pid = pid

    def poll(self) -> int | None:
        """See `Process.poll`."""
        return self._server.status(self._number)

    def kill(self) -> None:
        """See `Process.kill`. While its end is not reported, its ID belongs to nobody else."""
        try:
            lives = self._server.status(self._number) is None
        except ProcessError:  # whoever made it is gone, and it may not be
            kill(self.pid)
            return
        if lives:
            kill(self.pid)
            self._server.wait_for(self._number)


class Serving:
    """Starts processes through a server that is started when it is first needed, and once more if it dies."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._server: Server | None = None
        self._restarts_left = RESTARTS

    def start(self, files: Files) -> Process:
        """See `Launcher.start`."""
        if self._server is not None and not self._server.alive and self._restarts_left:
            self._restarts_left -= 1
            self.close()
        if self._server is None:
            self._server = Server(self._command, self._environment)
        return self._server.start(files)

    def close(self) -> None:
        """See `Launcher.close`."""
        if self._server is not None:
            self._server.close()
        self._server = None


def kill(pid: int) -> None:
    """SIGKILL to a process, and to its group if it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
