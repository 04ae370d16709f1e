"""What one rank of the demo does besides training: it logs every step, and does to itself what the plan says."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Any, TextIO

import numpy as np

from ckptcore import launch
from ckptcore.launch import Launch
from demo.failures import plan as plans
from demo.failures.plan import RANKS, Plan
from demo.run_log import write_line

PACE = 0.05
"""Seconds that a step takes while something is still to happen, so that the run is not over before."""
SLOW_PACE = 0.2
"""The same while a straggler is looked for, and with fewer ranks: windows of 10 s, and 15 s until the job grows, in few steps."""
STRAGGLER = 0.45
"""Seconds that the straggler takes instead."""


class Rank:
    """One rank in one attempt."""

    def __init__(self, plan: Plan, place: Launch) -> None:
        self._plan, self._place = plan, place
        self._attempt, self._start = int(os.environ[launch.ATTEMPT]), 0
        path = plan.log(self._attempt, place.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log: TextIO = path.open("w")

    def begin(self, step: int) -> None:
        """Training begins after `step` updates."""
        self._start = step
        write_line(self._log, start=step, size=self._place.size, slot=self._place.slot)

    def work(self, step: int) -> float:
        """This rank's own work for update `step`; how many seconds it took. It may not come back."""
        began = time.perf_counter()
        if self._plan.faults:
            done = plans.marks(self._plan.marks)
            fault = plans.due(done, self._attempt)
            mine = fault is not None and fault.slot == self._place.slot
            if fault and mine and fault.do != "dies-in-commit" and plans.is_moment(fault, step, step - self._start):
                self._fail(fault, step)
            time.sleep(self._pace(fault, mine=mine))
        return time.perf_counter() - began

    def made(self, step: int, *, loss: float, state: Iterable[np.ndarray], samples: np.ndarray) -> None:
        """Update `step` is complete. `state`: this rank's parts of parameters and optimizer, in any fixed order."""
        digest = hashlib.sha256()
        for array in state:
            digest.update(array.tobytes())
        line = {"step": step, "loss": loss.hex(), "state": digest.hexdigest(), "samples": samples.tolist()}
        write_line(self._log, **line)

    def end(self, position: int) -> None:
        """Training is complete; the data cursor is at `position`."""
        write_line(self._log, position=position)
        self._log.close()

    def on_event(self, event: Any) -> None:
        """The `on_event` of the Checkpointer: here the coordinator dies, when all receipts are there and nothing is decided."""
        if event.kind != "receipts-complete" or not self._plan.faults:
            return
        fault = plans.due(plans.marks(self._plan.marks), self._attempt)
        if fault is not None and fault.do == "dies-in-commit":
            self._note(fault, event.generation.step, generation=str(event.generation))
            os.kill(os.getpid(), signal.SIGKILL)

    def _pace(self, fault: plans.Fault | None, *, mine: bool) -> float:
        if fault is not None and fault.do == "slow":
            return STRAGGLER if mine else SLOW_PACE
        if self._place.size < RANKS:
            return SLOW_PACE
        return PACE if fault is not None else 0.0

    def _fail(self, fault: plans.Fault, step: int) -> None:
        if fault.do == "slow":
            return
        self._note(fault, step)
        if fault.do == "raise":
            raise RuntimeError(f"the device of slot {self._place.slot} does not answer")
        os.kill(os.getpid(), getattr(signal, fault.do))

    def _note(self, fault: plans.Fault, step: int, *, generation: str = "") -> None:
        plans.note(self._plan.marks, fault.name, attempt=self._attempt, step=step, generation=generation)
