"""When a job is told to stop (SIGTERM): one step that all ranks agree on, then a way out.

In a job of several processes JAX's own handler takes the signal, and JAX's sync point makes
all ranks agree on a step; a Python handler installed earlier would disable it. In a job of one
process a Python handler sets a flag. Once the step is reached, SIGTERM gets its default
action back, so that a second signal ends the process at once, even inside native code.

Several watches of one process, one for each `Checkpointer`, form a chain of handlers: the newest takes the
signal and tells those before it. A watch that is closed leaves the chain, wherever it stands in it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from jax._src import distributed  # jax.distributed does not show its client
from jax.experimental import multihost_utils

from ckptcore.errors import CallError


class Preemption:
    """Watches for SIGTERM. Make it in the main thread, after `jax.distributed.initialize`.

    `reached` must be called at every step, on every rank, with the same steps.
    """

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise CallError("preemption can only be watched from the main thread: Python delivers signals there")
        self._distributed = distributed.global_state.client is not None
        self._fired = False
        self._handler = _Handler()
        if not self._distributed:
            self._handler.take(self._handler.told)
        elif distributed.global_state.preemption_sync_manager is None:
            raise CallError("JAX's preemption service is off: set jax_enable_preemption_service, or do not watch for preemption")

    def reached(self, step: int) -> bool:
        """Whether `step` is the one to save and stop at. Every rank gets the same answer; True stays True."""
        if not self._fired and self._agreed(step):
            self._fired = True
            self._handler.take(signal.SIG_DFL)
        return self._fired

    def close(self) -> None:
        """Leave the chain; if SIGTERM was this watch's, it gets its handler from before. May be called twice."""
        self._handler.leave()

    def _agreed(self, step: int) -> bool:
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self._handler.asked


class _Handler:
    """A place in the chain. `asked`: SIGTERM has come. `previous` is what SIGTERM did before, `newer` who came after."""

    def __init__(self) -> None:
        self.asked = False
        self.previous: Any = None
        self.newer: _Handler | None = None
        self._current: Any = None

    def take(self, action: Any) -> None:
        """Let SIGTERM do `action`: call `told`, or the default."""
        previous = signal.signal(signal.SIGTERM, action)
        if self._current is None:
            self.previous = previous
            if self._older is not None:
                self._older.newer = self
        self._current = action

    def told(self, number: int, frame: FrameType | None) -> None:
        """Take the signal. From now on until the step is reached one more must end the process at once."""
        self.asked = True
        if self._older is not None:
            self._older.told(number, frame)
        self.take(signal.SIG_DFL)

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

    @property
    def _older(self) -> _Handler | None:
        owner = getattr(self.previous, "__self__", None)
        return owner if isinstance(owner, _Handler) else None
