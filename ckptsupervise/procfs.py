"""Processes as `/proc` shows them. A process may end between any two looks: what is gone is not there, and no error."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Seen:
    """A process: its ID, its parent's, its session's, and its state (`Z`: ended, and not yet waited for)."""

    pid: int
    parent: int
    session: int
    state: str


def processes() -> Iterator[Seen]:
    """Every process of this machine, or container, but those that have ended."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - names are all that is needed
        found = look(int(name)) if name.isdecimal() else None
        if found is not None and found.state not in "ZX":
            yield found


def look(pid: int) -> Seen | None:
    """One process; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, _group, session, *_ = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
    return Seen(pid, int(parent), int(session), state)


def environment(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with; empty if that cannot be read."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in entries)
    return {name: value for name, found, value in pairs if found}


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal: another one would be ended by it, or ignore it."""
    caught = status(pid).get("SigCgt", "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def status(pid: int) -> dict[str, str]:
    """The fields of `/proc/PID/status`; empty if the process has gone."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def memory_kills() -> int:
    """How many processes of this one's control group the kernel has killed for memory; 0 where that cannot be known."""
    try:
        group = next(line for line in (_PROC / "self" / "cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path(f"/sys/fs/cgroup{group[3:]}/memory.events").read_text().split()
    except (OSError, StopIteration):
        return 0
    return int(events[events.index("oom_kill") + 1]) if "oom_kill" in events else 0


def send(pid: int, number: int) -> bool:
    """Send a signal; whether there was somebody to get it."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill(pid: int) -> bool:
    """SIGKILL; whether there was somebody to get it."""
    return send(pid, signal.SIGKILL)
