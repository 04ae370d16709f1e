"""Processes of an attempt, all of them, and their end.

A rank starts others: data loaders, compilers, loggers. What belongs to an attempt is told by the environment that it has
inherited, in which the attempt's folder is named, and by the session of such a process. Process IDs, which the kernel gives again
to others, prove nothing and are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ckptcore.clock import Clock
from ckptcore.heartbeat import FOLDER
from ckptsupervise import procfs

QUIET = 3
"""So many looks in a row have to find nothing: a process that is being started carries no mark yet."""


def members(folder: Path, known: Collection[int] = ()) -> list[int]:
    """The processes that have `folder`, or a folder in it, as their heartbeats' place, and all of their sessions.

    So are those of this process's own children that are `known` to belong: a program may write over its environment, as it does
    to give itself another title.
    """
    seen = list(procfs.processes())
    ours = {each.pid for each in seen if each.pid in known and each.parent == os.getpid()}
    marked = ours | {each.pid for each in seen if _within(each.pid, folder)}
    sessions = {each.session for each in seen if each.pid in marked} - {os.getsid(0)}
    return sorted(each.pid for each in seen if each.pid != os.getpid() and (each.pid in marked or each.session in sessions))


def end(folder: Path, *, timeout: float = 10.0) -> list[int]:
    """Kill all members of `folder`; returns those that are still there after `timeout` seconds, since the kernel holds them."""
    quiet, left = 0, []
    for _ in Clock().polls(timeout, first=0.01, most=0.1):
        left = members(folder)
        quiet = 0 if left else quiet + 1
        if quiet == QUIET:
            break
        for pid in left:
            procfs.kill(pid)
    return left


def _within(pid: int, folder: Path) -> bool:
    mark = procfs.environment(pid).get(FOLDER.encode())
    return mark is not None and Path(os.fsdecode(mark)).is_relative_to(folder)
