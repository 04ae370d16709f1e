"""A process dies at every change of a save, an opening and a collection. `python -m simulation exhaustive` adds every read."""

from __future__ import annotations

import pytest

from simulation.exhaustive import Case, families, play, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", families())
def test_every_moment(name: str) -> None:
    cases = list(families(every=False)[name])
    problems = [f"{case}: {problem}" for case in cases if (problem := play(case)) is not None]
    assert not problems, "\n".join(problems)
    assert len(cases) > 10


def keys(procedure: str, process: str) -> list[str]:
    return [step.key for step in run(Case(procedure, "disk", process)).steps if step.changes]


def test_the_procedures_do_what_they_are_meant_to() -> None:
    assert any(key.startswith("ledger/000002-") for key in keys("save", "saver0"))
    assert any("/receipts/" in key for key in keys("save", "saver1"))
    settled = [key for key in keys("settle", "settler0") if key.startswith("ledger/") and key.endswith(".json")]
    assert len(settled) == 2, "one that is complete, one that is not"
    collected = keys("collect", "collect")
    assert (
        sum(key.endswith(".retired.json") for key in collected) == sum(key.startswith("generations/") for key in collected) == 2
    )


def test_a_fault_that_is_never_met_is_an_error() -> None:
    assert play(Case("collect", "disk", "collect", ((100_000, "crash"),))) is not None
