"""What a supervisor has recorded, attempt by attempt (spec: chapter 17). No checkpoint depends on it."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_conformance.oracle import keys
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.run import Run

FOLDER = "supervision/"


def faults(run: Run) -> Iterator[Problem]:
    """Numbers without a gap, nothing without a plan, and an end of all attempts but the newest (U-3, U-4).

    The oldest attempts may have been deleted (U-14).
    """
    kept = [named for key, named in run.named.items() if key.startswith(FOLDER) and named.kind != "attempt-node"]
    numbers = sorted({int(named.parts["attempt"]) for named in kept})
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        plan, end = keys.attempt(number, "plan"), keys.attempt(number, "end")
        if not _there(run, plan):
            yield Problem(plan, "U-3", "is not there, though the attempt or a later one has records")
        elif number < numbers[-1] and not _there(run, end):
            yield Problem(end, "U-4", "is not there, though a later attempt was planned")


def _there(run: Run, key: str) -> bool:
    return key in run.content or key in run.damaged
