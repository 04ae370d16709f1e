"""When a job is told to stop (SIGTERM): one step that all ranks agree on, then a way out.

In a job of several processes JAX's own handler takes the signal, and JAX's sync point makes
all ranks agree on a step; a Python handler installed earlier would disable it. In a job of one
process a Python handler sets a flag. Once the step is reached, SIGTERM gets its default
action back, so that a second signal ends the process at once, even inside native code.
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
        self._asked = False
        self._fired = False
        self._handler_set = False
        self._previous: Any = None
        if not self._distributed:
            self._install(self._on_signal)
        elif distributed.global_state.preemption_sync_manager is None:
            raise CallError("JAX's preemption service is off: set jax_enable_preemption_service, or do not watch for preemption")

    def reached(self, step: int) -> bool:
        """Whether `step` is the one to save and stop at. Every rank gets the same answer; True stays True."""
        if not self._fired and self._agreed(step):
            self._fired = True
            self._install(signal.SIG_DFL)
        return self._fired

    def close(self) -> None:
        """Give SIGTERM back its handler from before. May be called twice."""
        if self._handler_set:
            # None: a handler from native code, which Python cannot put back.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
            self._handler_set = False

    def _agreed(self, step: int) -> bool:
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self._asked

    def _install(self, handler: Any) -> None:
        previous = signal.signal(signal.SIGTERM, handler)
        if not self._handler_set:
            self._previous = previous
            self._handler_set = True

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
        # From now on until the step is reached: one more signal must end the process at once.
        self._install(signal.SIG_DFL)
