"""A rank of a job of several nodes, without a framework: `python toy_nodes.py RUN SECONDS`, a step each SECONDS, for ever.

Rank 0 saves and restores. The others begin where it does, by the run, and then keep no step with it: if a rank is lost, only the
supervisors can know.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ckptcore.errors import Preempted
from ckptcore.heartbeat import Pulse
from ckptcore.signals import Watch
from tests.ckptcore.support import checkpointer, state

RANK = int(os.environ["RANK"])


class Stop(Watch):
    """Rank 0 alone decides."""

    def agreed(self, step: int) -> bool:  # noqa: ARG002
        return self.handler.asked


def lead(run: str, seconds: float) -> int:
    watch = Stop()
    watch.handler.listen()
    with checkpointer(run, interval=5, watch=lambda: watch) as saver:
        step = saver.restore_or_init(lambda: state(0), like=state(0)).step
        while True:
            step += 1
            time.sleep(seconds)
            if saver.should_save(step):
                saver.save(step, state(step))


def follow(seconds: float) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pulse = Pulse.of(os.environ, RANK)
    pulse.enter("restore")
    pulse.restored(0)
    step = 0
    while True:
        step += 1
        time.sleep(seconds)
        pulse.stepped(step)


if __name__ == "__main__":
    pace = float(sys.argv[2])
    try:
        sys.exit(lead(sys.argv[1], pace) if RANK == 0 else follow(pace))
    except Preempted:
        sys.exit(143)
