"""The processes of one operation, from outside: started together, asked together, ended whatever happens."""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.subject import DEVICES

SECONDS = 900.0
"""For one step of an operation, at the largest size."""


class Failed(Exception):
    """An operation failed; the message has no paths in it."""


class Job:
    """The processes of one operation of one subject. Use it as a context manager; leaving it ends them all."""

    def __init__(self, request: dict[str, Any], ranks: int) -> None:
        self._request, self._ranks = request, ranks
        self._stack = ExitStack()
        self._children: list[subprocess.Popen[bytes]] = []
        self._reports: list[int] = []
        self._unread: list[bytes] = [b""] * ranks

    def __enter__(self) -> Self:
        try:
            self._log = self._stack.enter_context(tempfile.TemporaryFile())
            port = _free_port()
            for rank in range(self._ranks):
                self._start(_environment(rank, self._ranks, port))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def go(self) -> None:
        """Let all processes go on."""
        for child in self._children:
            with suppress(BrokenPipeError):  # `reports` says why it has died
                _stdin(child).write(b"\n")
                _stdin(child).flush()

    def reports(self) -> list[dict[str, Any]]:
        """The next report of each process. Raises `Failed` when one of them fails, or none comes in time."""
        deadline = time.monotonic() + SECONDS
        while any(b"\n" not in unread for unread in self._unread):
            self._read(deadline)
        lines = [unread.partition(b"\n") for unread in self._unread]
        self._unread = [rest for _, _, rest in lines]
        return [json.loads(line) for line, _, _ in lines]

    def end(self) -> None:
        """Wait until all processes have ended. Raises `Failed` when one of them fails or does not end in time."""
        deadline = time.monotonic() + SECONDS
        for child in self._children:
            try:
                code = child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"a process did not end in {SECONDS:g} s") from None
            if code != 0:
                raise Failed(self._why(code))

    def _start(self, environment: dict[str, str]) -> None:
        readable, writable = os.pipe()
        self._stack.callback(os.close, readable)
        self._reports.append(readable)
        try:
            command = [sys.executable, "-m", "benchmarks.child", json.dumps({**self._request, "report": writable})]
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, env=environment, pass_fds=(writable,)
            )
        finally:
            os.close(writable)
        self._stack.callback(_ended, child)
        self._children.append(child)

    def _read(self, deadline: float) -> None:
        """Read what has come from whoever owes a report."""
        with selectors.DefaultSelector() as selector:
            for rank, unread in enumerate(self._unread):
                if b"\n" not in unread:
                    selector.register(self._reports[rank], selectors.EVENT_READ, rank)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Failed(f"no answer in {SECONDS:g} s")
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            if not data:
                raise Failed(self._why(self._children[key.data].wait()))
            self._unread[key.data] += data
            self._raise_error(self._unread[key.data])

    def _raise_error(self, line: bytes) -> None:
        if line.startswith(b'{"error"') and line.endswith(b"\n"):
            raise Failed(without_paths(json.loads(line)["error"]))

    def _why(self, code: int) -> str:
        """The last line of what the processes wrote."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return without_paths(f"ended with status {code}{': ' if lines else ''}{lines[-1] if lines else ''}")


def without_paths(text: str) -> str:
    """The first line of a message, without the folders of the paths in it: they say where a person works, and nothing else."""
    return re.sub(r"(?<![\w.])(?:/[\w.~-]+)*/(?=[\w.~-])", "…/", text.strip().partition("\n")[0])


def _stdin(child: subprocess.Popen[bytes]) -> IO[bytes]:
    """The standard input of a child that was started with one."""
    if child.stdin is None:
        raise ValueError("started without a pipe")
    return child.stdin


def _ended(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    with suppress(BrokenPipeError):
        _stdin(child).close()
    child.wait()


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What the frameworks look for: JAX the number of its devices, torch its place in the job, as from `torchrun`."""
    own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}", "TF_CPP_MIN_LOG_LEVEL": "1"}
    job = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    inherited = {name: value for name, value in os.environ.items() if name not in job}
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, **own, "PYTHONPATH": path, **({name: str(value) for name, value in job.items()} if ranks > 1 else {})}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
