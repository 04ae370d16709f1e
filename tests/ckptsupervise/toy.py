"""A training program without a framework: `python toy.py RUN STEPS [FAULTS] [EVERY] [SECONDS]`.

Rank 0 saves and restores, the others keep step with it through heartbeats, as ranks do in collectives. `FAULTS` is a JSON list of
what goes wrong: {"attempt", "rank", "slot", "step", "do"}; what is left out is any. `do`: a signal's name, "exit", "spawn" (a
process of a session of its own), or "slow" (a step takes its rank a fifth of a second more).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from ckptcore import heartbeat
from ckptcore.heartbeat import Pulse
from ckptcore.signals import Watch

FOLDER = os.environ[heartbeat.FOLDER]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ME = {"attempt": int(os.environ["CKPT_ATTEMPT"]), "rank": RANK, "slot": int(os.environ["CKPT_SLOT"])}


class Stop(Watch):
    """Rank 0 alone decides."""

    def agreed(self, step: int) -> bool:  # noqa: ARG002
        return self.handler.asked


def main(run: str, steps: str, faults: str = "[]", every: str = "5", seconds: str = "0.02") -> int:
    train = lead if RANK == 0 else follow
    return train(run, int(steps), json.loads(faults), int(every), float(seconds))


def lead(run: str, steps: int, faults: list[dict[str, Any]], every: int, seconds: float) -> int:
    from tests.ckptcore.support import checkpointer, state

    with checkpointer(run, interval=every, watch=_watch) as saver:
        began = saver.restore_or_init(lambda: state(0), like=state(0)).step
        say(f"attempt {ME['attempt']} of {SIZE} ranks from step {began}")
        for step in range(began + 1, steps + 1):
            saver.heartbeat(step, seconds=turn(step, faults, seconds))
            if saver.should_save(step):
                saver.save(step, state(step))
    say(f"finished at step {steps}")
    return 0


def _watch() -> Stop:
    watch = Stop()
    watch.handler.listen()
    return watch


def follow(run: str, steps: int, faults: list[dict[str, Any]], every: int, seconds: float) -> int:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pulse = Pulse.of(os.environ, RANK)
    pulse.enter("restore")
    began = wait_for(lambda beat: beat.restored_step is not None).restored_step or 0
    pulse.restored(began)
    for step in range(began + 1, steps + 1):
        if wait_for(lambda _: True).phase == "final":
            break
        pulse.stepped(step, turn(step, faults, seconds))
    wait_for(lambda beat: beat.phase == "final")
    return 0


def turn(step: int, faults: list[dict[str, Any]], seconds: float) -> float:
    """One step: the own work, which may go wrong, then all wait for each other. What the own work took."""
    began = time.monotonic()
    time.sleep(seconds)
    for fault in faults:
        if {**ME, "step": step}.items() >= {name: value for name, value in fault.items() if name != "do"}.items():
            fail(fault["do"])
    own = time.monotonic() - began
    for rank in range(SIZE):
        if rank != RANK:
            wait_for(lambda beat: (beat.step is not None and beat.step >= step - 1) or beat.phase == "final", rank)
    return own


def fail(how: str) -> None:
    if how == "exit":
        raise RuntimeError("this was to be expected")
    if how == "slow":
        time.sleep(0.2)
    elif how == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        say(f"spawned {child.pid}")
    else:
        os.kill(os.getpid(), getattr(signal, how))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for(ready: Any, rank: int = 0) -> heartbeat.Beat:
    while True:
        beat = heartbeat.read_one(FOLDER, rank)
        if beat is not None and ready(beat):
            return beat
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
