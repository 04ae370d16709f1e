"""When a job is told to stop (SIGTERM): one step that all ranks agree on, then a way out.

In a job of several processes JAX's own handler takes the signal, and JAX's sync point makes
all ranks agree on a step; a Python handler installed earlier would disable it. In a job of one
process a Python handler sets a flag (`ckptcore.signals`).
"""

from __future__ import annotations

from jax._src import distributed  # jax.distributed does not show its client
from jax.experimental import multihost_utils

from ckptcore.errors import CallError
from ckptcore.signals import Watch


class Preemption(Watch):
    """Watches for SIGTERM. Make it in the main thread, after `jax.distributed.initialize`."""

    def __init__(self) -> None:
        super().__init__()
        self._distributed = distributed.global_state.client is not None
        if not self._distributed:
            self.handler.listen()
        elif distributed.global_state.preemption_sync_manager is None:
            raise CallError("JAX's preemption service is off: set jax_enable_preemption_service, or do not watch for preemption")

    def agreed(self, step: int) -> bool:
        """By JAX's sync point, or in a job of one process as soon as the signal has come."""
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self.handler.asked
