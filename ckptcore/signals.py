"""SIGTERM, and several who watch for it: what a framework's `Preemption` is built on.

A Python handler notes that the signal came. Then SIGTERM gets its default action back, so that a second
signal ends the process at once, even inside native code. Under supervision it is ignored from then on: whoever
supervises kills what takes too long, and SIGTERM may come from a scheduler, from the supervisor and from the launcher.

Several watches of one process, one for each `Checkpointer`, form a chain of handlers: the newest takes the
signal and tells those before it. A watch that is closed leaves the chain, wherever it stands in it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from ckptcore import heartbeat
from ckptcore.errors import CallError


class Watch:
    """A watch for SIGTERM whose ranks agree on the step to stop at: a subclass says how. Make it in the main thread.

    `reached` must be called at every step, on every rank, with the same steps.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise CallError("preemption can only be watched from the main thread: Python delivers signals there")
        self.handler = Handler()
        self._fired = False

    def reached(self, step: int) -> bool:
        """Whether `step` is the one to save and stop at. Every rank gets the same answer; True stays True."""
        # CPython notices a signal that came to a thread of native code only when this one next takes the interpreter lock.
        time.sleep(0)
        if not self._fired and self.agreed(step):
            self._fired = True
            self.handler.end_at_once()
        return self._fired

    def close(self) -> None:
        """Leave the chain; if SIGTERM was this watch's, it gets its handler from before. May be called twice."""
        self.handler.leave()

    def agreed(self, step: int) -> bool:
        """Whether the ranks have agreed to stop at `step`. A job of one process just looks at `handler.asked`."""
        raise NotImplementedError


class Handler:
    """A place in the chain. `asked`: SIGTERM has come. `previous` is what SIGTERM did before, `newer` who came after."""

    def __init__(self) -> None:
        self.asked = False
        self.previous: Any = None
        self.newer: Handler | None = None
        self._current: Any = None

    def listen(self) -> None:
        """Let the next SIGTERM be noted."""
        self._take(self.told)

    def end_at_once(self) -> None:
        """Let the next SIGTERM end the process, unless it is supervised."""
        self._take(signal.SIG_IGN if heartbeat.FOLDER in os.environ else signal.SIG_DFL)

    def told(self, number: int, frame: FrameType | None) -> None:
        """Take the signal. From now on until the step is reached one more must end the process at once."""
        self.asked = True
        if self._older is not None:
            self._older.told(number, frame)
        self.end_at_once()

    def leave(self) -> None:
        """Let the newer one follow the older one; the newest gives SIGTERM back, unless the program has taken it since."""
        if self._current is None:
            return
        older = self._older
        if self.newer is not None:
            self.newer.previous = self.previous
        elif signal.getsignal(signal.SIGTERM) == self._current:
            # None: a handler from native code, which Python cannot put back.
            default = self.previous is None or (older is not None and older.asked)
            signal.signal(signal.SIGTERM, signal.SIG_DFL if default else self.previous)
        if older is not None:
            older.newer = self.newer
        self._current = None

    def _take(self, action: Any) -> None:
        previous = signal.signal(signal.SIGTERM, action)
        if self._current is None:
            self.previous = previous
            if self._older is not None:
                self._older.newer = self
        self._current = action

    @property
    def _older(self) -> Handler | None:
        owner = getattr(self.previous, "__self__", None)
        return owner if isinstance(owner, Handler) else None
