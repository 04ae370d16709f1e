"""Where a hung process hangs: the stacks of all its threads, by whatever means there is. Never raises, and takes a bounded time.

py-spy reads another process's memory, and so sees also one that is stopped. A rank that listens to `STACK_SIGNAL` writes its own
stacks, if it can run. What is left is what the kernel says. None of it tells the command line, which may hold secrets: of what
py-spy says only the stacks are taken.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ckptcore.attempt_structs import MAX_STACK
from ckptcore.clock import Clock
from ckptcore.heartbeat import STACK_SIGNAL, stack_file
from ckptsupervise import procfs

SECONDS = 10.0
"""The longest that py-spy may take: a program with many libraries has many symbols."""
PATIENCE = 1.0
"""Seconds that a rank has to write its own stacks."""
MOST = 8
"""Ranks whose stacks are taken: of a thousand that wait for one, a few tell enough."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int
    short_filename: str | None = None


class _Thread(msgspec.Struct):
    """What py-spy says of a thread, as far as it is used."""

    thread_id: int
    frames: list[_Frame]
    active: bool = False
    owns_gil: bool = False
    thread_name: str | None = None
    os_thread_id: int | None = None


def of_ranks(pids: Mapping[int, int], folder: Path) -> str:
    """The stacks of ranks, in the order given, as one text. `pids`: rank → process. `folder`: of the attempt's heartbeats."""
    chosen = list(pids.items())[:MOST]
    if not chosen:
        return ""
    with ThreadPoolExecutor(len(chosen), "stacks") as pool:
        found = list(pool.map(lambda each: of(each[1], folder, each[0]), chosen))
    each_may = MAX_STACK // len(chosen) - 100
    parts = [f"rank {rank}, process {pid}:\n{text[:each_may]}" for (rank, pid), text in zip(chosen, found, strict=True)]
    return "\n\n".join(parts)


def of(pid: int, folder: Path, rank: int) -> str:
    """The stacks of one process."""
    return by_py_spy(pid) or by_itself(pid, folder, rank) or by_kernel(pid)


def by_py_spy(pid: int, program: str | None = None) -> str:
    """What py-spy says; empty if it is not there, may not look, or takes too long."""
    found = program or shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if found is None:
        return ""
    command = [found, "dump", "--json", "--nonblocking", "--pid", str(pid)]  # its text begins with the command line
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return _shown(done.stdout) if done.returncode == 0 else ""


def by_itself(pid: int, folder: Path, rank: int) -> str:
    """What the process writes when it is asked to; empty if it does not listen, or cannot run."""
    path = stack_file(folder, rank)
    if not procfs.handles(pid, STACK_SIGNAL):
        return ""
    before = _size(path)
    procfs.send(pid, STACK_SIGNAL)
    size = before
    for _ in Clock().polls(PATIENCE, first=0.05, most=0.1):
        size, previous = _size(path), size
        if before < size == previous:  # and no longer growing
            return _text(path)[before:].strip()
    return _text(path)[before:].strip()


def by_kernel(pid: int) -> str:
    """The process's state, and where in the kernel it waits. Not its name, which is that of the command, or the program's own."""
    lines = [f"{name}: {value}" for name, value in procfs.status(pid).items() if name in ("State", "Threads", "SigBlk")]
    waiting = _text(Path(f"/proc/{pid}/wchan")).strip("0\n")
    kernel = _text(Path(f"/proc/{pid}/stack")).strip()
    return "\n".join([*lines, *([f"waits in: {waiting}"] if waiting else []), *([kernel] if kernel else [])])


def _shown(told: bytes) -> str:
    """The stacks in what py-spy says, the main thread first as a rule; empty if that cannot be read."""
    try:
        threads = msgspec.json.decode(told, type=list[_Thread])
    except msgspec.MsgspecError:
        return ""
    return "\n".join(line for thread in reversed(threads) for line in _lines(thread))


def _lines(thread: _Thread) -> list[str]:
    state = ("active" if thread.active else "idle") + ("+gil" if thread.owns_gil else "")
    name = "" if thread.thread_name is None else f': "{thread.thread_name}"'
    frames = [f"    {each.name} ({each.short_filename or each.filename}:{each.line})" for each in thread.frames]
    return [f"Thread {thread.os_thread_id or thread.thread_id} ({state}){name}", *frames]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
