"""A seed is a run: the same operations, at the same times, with the same bytes, in every interpreter."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.run import Outcome, Reduced, run_seed
from simulation.scenario import ARRAYS_EVERY

ROOT = Path(__file__).parents[2]
SEEDS = range(2 * ARRAYS_EVERY)


def lines(outcome: Outcome) -> list[str]:
    return [str(line) for line in outcome.trace]


def fingerprint(outcome: Outcome) -> str:
    """Of the trace, and of all that is stored. What TensorStore writes has names of its own choice: then of the trace alone."""
    told = hashlib.sha256("\n".join(lines(outcome)).encode())
    for key, data in () if outcome.scenario.arrays else outcome.contents:
        told.update(key.encode() + b"\0" + data)
    return told.hexdigest()


def main() -> None:
    """Called in other interpreters."""
    for seed in SEEDS:
        sys.stdout.write(fingerprint(run_seed(seed)) + "\n")


def fingerprints(hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from tests.simulation import test_determinism as t; t.main()"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_a_seed_gives_the_same_run_in_two_interpreters() -> None:
    one, two = fingerprints("1"), fingerprints("2")
    assert one == two
    assert len(set(one)) == len(SEEDS), "the seeds differ from each other"


def test_a_seed_gives_the_same_run_twice_in_one_interpreter() -> None:
    assert fingerprint(run_seed(3)) == fingerprint(run_seed(3))


def test_what_is_left_out_changes_no_draw_before_it() -> None:
    """So a fault keeps its number while others are left out, and a run can be made smaller."""
    whole = next(found for found in map(run_seed, range(100)) if len(found.faults) > 2)
    part = run_seed(whole.seed, Reduced(only=frozenset(fault.number for fault in whole.faults[:2])))
    assert part.faults[:2] == whole.faults[:2]
    assert len(part.faults) == 2
    again = run_seed(whole.seed, Reduced(only=frozenset(fault.number for fault in whole.faults)))
    assert lines(again) == lines(whole)
