"""From a run that fails to the smallest run of the same seed that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from simulation.run import Outcome, Reduced, Setup, run_seed

T = TypeVar("T")
MOST_RUNS = 120


def shrink(outcome: Outcome, setup: Setup = lambda _: None, most_runs: int = MOST_RUNS) -> tuple[Reduced, Outcome]:
    """Leave out those who take part, then kinds of faults, then single faults, as long as the same clause is violated."""
    left = most_runs
    best = Reduced()

    def still_fails(reduced: Reduced) -> bool:
        nonlocal left, outcome, best
        if left <= 0:
            return False
        left -= 1
        found = run_seed(outcome.seed, reduced, setup)
        if found.clause != outcome.clause:
            return False
        outcome, best = found, reduced
        return True

    for name in outcome.scenario.everybody[::-1]:
        still_fails(replace(best, without=best.without | {name}))
    for kind in {fault.fault.kind: None for fault in outcome.faults}:
        still_fails(replace(best, without=best.without | {kind}))
    numbers = [fault.number for fault in outcome.faults]
    if still_fails(replace(best, only=frozenset(numbers))):
        fewest(numbers, lambda some: still_fails(replace(best, only=frozenset(some))))
    return best, outcome


def fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A small part of `items` for which `fails` is true, given that it is for all: halves, quarters, … are left out in turn."""
    kept, size = list(items), max(len(items) // 2, 1)
    while kept and size >= 1:
        start = 0
        while start < len(kept):
            without = kept[:start] + kept[start + size :]
            if fails(without):
                kept = without
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return kept
