"""What benchmarks/README.md says of figures is what there is."""

import json
from pathlib import Path

import pytest

from benchmarks import budgets, cold_start_child
from benchmarks.budgets import MIB, Budget

FOLDER = Path(budgets.__file__).parent
TEXT = (FOLDER / "README.md").read_text()


def test_the_budgets_are_those_that_are_held() -> None:
    assert budgets.table() in TEXT


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (Budget("x", "save", "x_seconds", 0.05, "floor_copy", 0.020), "0.05 × memcpy of the state + 20 ms"),
        (Budget("x", "save", "x_seconds", 1.2, "floor_copy"), "1.2 × memcpy of the state"),
        (Budget("x", "save", "x_over", plus=256 * MIB), "256 MiB"),
        (Budget("x", "save", "x_over", 1.0, "bytes", 256 * MIB), "1 × the state + 256 MiB"),
        (Budget("x", "save", "files", 8, "ranks", 20), "8 × the ranks + 20"),
        (Budget("x", "restore", "2d_read", plus=2.0), "2 × the bytes needed"),
    ],
)
def test_a_budget_in_words(budget: Budget, most: str) -> None:
    assert budget.most == most


def test_each_row_of_a_cold_start_is_explained() -> None:
    record = json.loads((FOLDER / "recorded" / "cold-start.json").read_text())
    recorded = {phase for start in record["result"]["shown"].values() for phase in start["phases"]}
    assert set(cold_start_child.WATCHED) <= recorded
    assert [phase for phase in recorded if f"\n| {phase} | " not in TEXT] == []
