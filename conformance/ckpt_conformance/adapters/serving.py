"""The fork server: processes that behave as newly started ones, without the seconds that imports take (ADAPTER.md, serving).

A process is forked twice. The first fork keeps the second: it tells of its birth and its end, so that the server itself has
nothing to wait for. Neither outlives the server. All of it needs a server that has no thread.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

_PR_SET_PDEATHSIG = 1


def serve(preloaded: Iterable[str]) -> bool:
    """Fork a process for each line of standard input. True in each of them; False in the server, at the end of its input.

    `preloaded`: modules to import first, for they would be imported late in each process.
    """
    for name in preloaded:
        importlib.import_module(name)
    gc.freeze()  # what is here now is shared by all: no collection of a child needs to look through it, and copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    server = os.getpid()
    for line in _lines(0):
        if os.fork() == 0:
            _die_with(server)
            return _keep(json.loads(line))
    return False


def _keep(order: dict[str, Any]) -> bool:
    """Fork the process of an order, and report on it. Returns in that process only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _die_with(keeper)
        _be_new(order)
        return True
    _report({"id": order["id"], "pid": child})
    _, status = os.waitpid(child, 0)
    _report({"id": order["id"], "status": os.waitstatus_to_exitcode(status)})
    os._exit(0)


def _be_new(order: dict[str, Any]) -> None:
    """Take the files of the order in the place of the server's, and draw other random numbers than its siblings."""
    _open_as(0, order["request"], os.O_RDONLY)
    _open_as(1, order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _open_as(2, order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.environ.update(order.get("env") or {})
    np.random.seed(int.from_bytes(os.urandom(4)))  # noqa: NPY002 -- the global one is what a fork shares


def _open_as(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, descriptor)
    os.close(opened)


def _report(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")  # one write, so that lines of several keepers do not mix


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they come. No buffer of Python's is involved, which a fork would copy."""
    rest = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from filter(None, lines)


def _die_with(parent: int) -> None:
    """End when the parent ends, where the system offers that; at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
