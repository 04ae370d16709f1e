"""What ranks write to standard error: passed on at once, and the end of it kept, since last words tell who failed first."""

from __future__ import annotations

import os
import select
import selectors
import sys
import threading
from collections.abc import Callable
from pathlib import Path

KEPT = 32768
"""Bytes of each rank's last words."""
_LOOK = 0.1
"""Seconds after which the thread looks whether it is done."""
PATIENCE = 1.0
"""Seconds that somebody may take to read on before what is written is dropped."""

Sink = Callable[[bytes], None]


class Errors:
    """The standard error of all ranks, through a named pipe for each: what opens `path(rank)` for writing is heard.

    A thread reads them. `sink` is where everything goes; by default to standard error.
    """

    def __init__(self, folder: Path, size: int, sink: Sink | None = None) -> None:
        self._folder, self._sink = folder, sink or _to_stderr
        self._kept = dict.fromkeys(range(size), b"")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)
        self._pipes: dict[int, int] = {}

    def path(self, rank: int) -> Path:
        """Where a rank's standard error goes."""
        return self._folder / f"stderr-{rank}"

    def start(self) -> None:
        """Make the pipes, and begin to read. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for rank in self._kept:
            self._pipes[rank] = _pipe(self.path(rank))
        self._thread.start()

    def words(self, rank: int) -> str:
        """The end of what a rank has written."""
        return self._kept[rank].decode(errors="replace")

    def close(self) -> None:
        """Read what is there still, and end. What processes that are left over write later is lost."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
        for pipe in self._pipes.values():
            os.close(pipe)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, rank)
            done = False
            while not done:
                done = self._done.is_set()  # before the last look, not after
                for key, _ in selector.select(0 if done else _LOOK):
                    self._take(key.data, key.fd)

    def _take(self, rank: int, pipe: int) -> None:
        try:
            data = os.read(pipe, 65536)
        except BlockingIOError:
            return
        self._kept[rank] = (self._kept[rank] + data)[-KEPT:]
        self._sink(data)


def _pipe(path: Path) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)  # for writing too: so it has no end while ranks come and go


def _to_stderr(data: bytes) -> None:
    try:
        write(sys.stderr.fileno(), data)
    except (OSError, ValueError):  # nobody reads it any more: training does not depend on that
        return


def write(stream: int, data: bytes) -> None:
    """Write all of `data` at once, past any buffer: what fails must not be tried again later.

    Raises `OSError`, also if nobody takes it: a terminal that was stopped, or a pipe whose reader was, must not stop who writes.
    """
    while data:
        _, ready, _ = select.select([], [stream], [], PATIENCE)
        if not ready:
            raise TimeoutError(f"nobody has read for {PATIENCE:g} s")
        data = data[os.write(stream, data[: select.PIPE_BUF]) :]  # so much does not block
