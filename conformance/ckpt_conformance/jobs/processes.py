"""The processes of a job: started, watched, and ended by their IDs. Every wait has a deadline.

A process is started from files (`Files`), so that nobody has to read its output while it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ckpt_conformance.jobs.expect import Ended

PAUSE = 0.005
"""Seconds between two looks at a process."""
LOG_LIMIT = 20_000
"""Characters of a log that are kept for the report."""
QUIET: Mapping[str, str] = {
    "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1",
}  # fmt: skip
"""What adapters find in their environment: no accelerators, and one thread a process, for many run at once."""


class ProcessError(Exception):
    """A process could not be started or watched: nothing is known of the implementation."""


@dataclass(frozen=True)
class Files:
    """Where a process finds its request, and where its standard output and standard error go."""

    request: Path
    output: Path
    log: Path


class Process(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its ID."""
        ...

    def poll(self) -> int | None:
        """Its exit status, −n for signal n, or None while it lives. Raises `ProcessError` if nobody can know."""
        ...

    def kill(self) -> None:
        """End it by SIGKILL, if it still lives."""
        ...


class Launcher(Protocol):
    """Starts processes of one adapter."""

    def start(self, files: Files) -> Process:
        """Start one. Raises `ProcessError`."""
        ...

    def close(self) -> None:
        """End what was kept for starting."""
        ...


class Cold:
    """Starts the adapter's command anew for each process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}

    def start(self, files: Files) -> Process:
        """See `Launcher.start`. The process leads a session of its own, so that its children can be ended with it."""
        try:
            with files.request.open("rb") as request, files.output.open("wb") as output, files.log.open("wb") as log:
                return ColdProcess(
                    subprocess.Popen(
                        self._command, stdin=request, stdout=output, stderr=log, env=self._environment, start_new_session=True
                    )
                )
        except OSError as error:
            raise ProcessError(f"the adapter cannot be started: {error}") from error

    def close(self) -> None:
        """Nothing was kept."""


class ColdProcess:
    """A child of the runner, and the leader of its own session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """See `Process.poll`."""
        if self._process.returncode is None and self._process.poll() is not None:
            end_group(self.pid)  # at once: the ID belongs to the group, or to nobody yet
        return self._process.returncode

    def kill(self) -> None:
        """See `Process.kill`. Ends its whole process group."""
        if self.poll() is None:
            end_group(self.pid)
            self._process.wait()


class RunningJob:
    """The processes of one job, by rank. `what` names the job in messages."""

    def __init__(self, what: str, processes: Sequence[Process], files: Sequence[Files], limit: float) -> None:
        self.what = what
        self.processes = processes
        self._files = files
        self._limit = limit

    def wait(self) -> list[Ended]:
        """How each process ended. Those that do not end in time are killed, and their `late` says so. Raises `ProcessError`."""
        with self._nobody_left_on_error():
            until(lambda: all(process.poll() is not None for process in self.processes), self._limit)
            late = [process.poll() is None for process in self.processes]
            self.kill()
            return [self._ended(rank, late=is_late) for rank, is_late in enumerate(late)]

    def wait_stopped(self, rank: int) -> list[str]:
        """Wait until the process of that rank has stopped itself. What went wrong instead; everything is killed then.

        Raises `ProcessError`.
        """
        process = self.processes[rank]
        with self._nobody_left_on_error():
            until(lambda: is_stopped(process.pid) or process.poll() is not None, self._limit)
            if process.poll() is None and is_stopped(process.pid):
                return []
            reason = f"did not stop within {self._limit:.0f} s" if process.poll() is None else "ended before it stopped"
            self.kill()
            return [f"rank {rank} (process {process.pid}) {reason}"]

    def resume(self) -> None:
        """Let every process that was stopped go on."""
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End every process that still lives, and wait until it is gone."""
        for process in self.processes:
            process.kill()

    @contextlib.contextmanager
    def _nobody_left_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _ended(self, rank: int, *, late: bool) -> Ended:
        process, files = self.processes[rank], self._files[rank]
        status = process.poll()
        missing = f"process {process.pid} ({self.what}) did not end within {self._limit:.0f} s and was killed" if late else ""
        output = read_text(files.output)
        return Ended(
            pid=process.pid,
            status=0 if status is None else status,
            answer=answer_of(output),
            log=_tail(_but_last(output) + read_text(files.log)),  # the end of a traceback stands last
            late=missing,
        )


def start(what: str, launcher: Launcher, requests: Sequence[Mapping[str, Any]], folder: Path, *, limit: float) -> RunningJob:
    """Start one process a request, its files in `folder`. Raises `ProcessError`, with every process ended that was started."""
    folder.mkdir(parents=True, exist_ok=True)
    files, processes = [], []
    try:
        for rank, request in enumerate(requests):
            files.append(Files(*(folder / f"{rank}.{name}" for name in ("request", "output", "log"))))
            files[-1].request.write_text(json.dumps(request), encoding="utf-8")
            processes.append(launcher.start(files[-1]))
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return RunningJob(what, processes, files, limit)


def end_group(pid: int) -> None:
    """SIGKILL to whoever is in the process group that the process leads, or led: nobody, if it is no leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, at most so long. Whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return holds


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        return read_text(stat).rpartition(")")[2].split()[:1] == ["T"]
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607 - found on PATH
    return shown.stdout.strip().startswith("T")


def answer_of(output: str) -> Mapping[str, Any] | None:
    """The answer: the last line, if it is a JSON object."""
    lines = output.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def rendezvous() -> str:
    """An address on the loopback interface that nobody listens on; below the ports that outgoing connections take."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"


def read_text(path: Path) -> str:
    """The text of a file that any program wrote; empty if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _but_last(output: str) -> str:
    lines = output.splitlines(keepends=True)
    return "".join(lines[:-1] if answer_of(output) is not None else lines)


def _tail(text: str) -> str:
    return text if len(text) <= LOG_LIMIT else f"…{text[-LOG_LIMIT:]}"
