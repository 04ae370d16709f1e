"""Jobs of several torch processes for tests.

A script is Python source. In it `RANK`, `SIZE` and `ARGS` are set, torch uses one thread, and
`torch.distributed` is initialized with gloo if the job has several processes, or is told `group=True`.
The processes are forked from one that has imported torch, but not what is tested (`nursery`).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import IO, Any

from tests import processes
from tests.processes import ROOT, free_port

_PREAMBLE = """\
import atexit, datetime, sys
import torch
import torch.distributed as dist
RANK, SIZE, ARGS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[5:]
torch.set_num_threads(1)
if SIZE > 1 or sys.argv[4] == "group":
    dist.init_process_group(
        "gloo", init_method=sys.argv[3], rank=RANK, world_size=SIZE, timeout=datetime.timedelta(seconds=60)
    )
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
"""


class Forked:
    """A process that the nursery forks, with the methods of `subprocess.Popen` that a job needs."""

    def __init__(self, script: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
        output, output_end = os.pipe()
        report, report_end = os.pipe()
        order = json.dumps({"script": str(script), "argv": argv, "env": dict(env)}).encode()
        socket.send_fds(_nursery(), [order], [output_end, report_end])
        os.close(output_end)
        os.close(report_end)
        self.stdout: IO[str] | None = os.fdopen(output, encoding="utf-8", errors="replace")
        self._report = os.fdopen(report, "rb", buffering=0)
        self._status: int | None = None
        self.pid = int(self._report.readline())

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        if self._status is None and select.select([self._report], [], [], 0)[0]:
            self._status = int(self._report.readline())
            self._report.close()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there is one. Raises `TimeoutExpired`."""
        if self._status is None:
            select.select([self._report], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Job(processes.Job):
    """`size` processes of one script. Leaving the context kills what still runs."""

    def __init__(
        self, script: str, *, size: int = 2, group: bool = False, args: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="job-")
        path = Path(self._folder.name, "script.py")
        path.write_text(_PREAMBLE + dedent(script))
        common = [str(size), f"tcp://127.0.0.1:{free_port()}", "group" if group else "", *args]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        super().__init__([Forked(path, [str(rank), *common], environment) for rank in range(size)])

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._folder.cleanup()


def run_job(
    script: str,
    *,
    size: int = 2,
    group: bool = False,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 90,
) -> list[str]:
    """Run a job to its end; the outputs in rank order. Fails unless every rank ends with status 0."""
    with Job(script, size=size, group=group, args=args, env=env) as job:
        return job.wait(timeout=timeout)


def forking(test: Callable[..., None]) -> Callable[..., None]:
    """A test whose loader forks workers. With `workers` it runs in a process that has not loaded JAX.

    Other tests may have loaded it here, and then it has threads, which a fork can leave with a lock that nobody lets go of.
    """

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        if not arguments.get("workers", 1):
            test(**arguments)
            return
        module = f"tests.torchckpt.{Path(test.__code__.co_filename).stem}"
        run_job(f"from {module} import {test.__name__} as test\ntest.__wrapped__(**{arguments!r})", size=1)

    return run


@functools.cache
def _nursery() -> socket.socket:
    """A connection to the nursery of this test process."""
    connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.torchckpt.nursery", str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            start_new_session=True,
        )
    atexit.register(_close, connection, process)
    return connection


def _close(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.send_signal(signal.SIGTERM)
    process.wait()
