"""Looks aside, while ranks train, whether nodes wait that the job could use: whoever watches ranks must not wait for a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from ckptcore.errors import CheckpointError
from ckptcore.events import log


class Room:
    """Asks `look` every `pause` seconds, in a thread: who waits may have gone again by the time that there is a use for it."""

    def __init__(self, look: Callable[[], str], *, pause: float) -> None:
        self._look, self._pause = look, pause
        self._why, self._done = "", threading.Event()
        self._thread = threading.Thread(target=self._run, name="room", daemon=True)

    def why(self) -> str:
        """The newest answer; empty while there is none, or nobody can tell."""
        return self._why

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()  # it is not waited for: the store may be away

    def _run(self) -> None:
        while not self._done.wait(self._pause):
            try:
                self._why = self._look()
            except CheckpointError as error:
                self._why = ""
                log.warning("it is not known whether other nodes wait: %s", error)
