"""Random seeds: every invariant holds in each. `python -m simulation replay SEED --trace` shows one that fails."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.faults import KINDS
from simulation.run import Outcome, run_seed

QUICK, MANY, PART = 60, 1220, 58


def explain(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.violation}\n  python -m simulation replay {outcome.seed} --trace"


def check(first: int, last: int) -> list[Outcome]:
    outcomes = [run_seed(seed) for seed in range(first, last)]
    failed = [explain(outcome) for outcome in outcomes if outcome.violation is not None]
    assert not failed, "\n".join(failed)
    return outcomes


def test_a_few_seeds() -> None:
    outcomes = check(0, QUICK)
    happened = Counter[str]()
    for outcome in outcomes:
        happened += Counter(outcome.counts)
    expected = {"acknowledged", "committed", "aborted", "retired", "restored by a rank", "superseded", "base: rolled-forward"}
    assert expected <= happened.keys(), "the simulation no longer gets to where it is needed"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(QUICK, MANY, PART))
def test_many_seeds(part: int) -> None:
    outcomes = check(part, min(part + PART, MANY))
    kinds = {fault.fault.kind for outcome in outcomes for fault in outcome.faults}
    assert len(kinds) > len(KINDS) / 3
    assert {outcome.scenario.kind for outcome in outcomes} == {"disk", "bucket"}
