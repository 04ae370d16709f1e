"""Ratios are to the floor of the same round; budgets hold or not; the tables say all of it."""

from typing import Any

import pytest

from benchmarks import budgets, summary, tables
from benchmarks.budgets import Budget
from tests.benchmarks import results


@pytest.fixture
def result() -> dict[str, Any]:
    return results.result()


def test_a_ratio_is_to_the_floor_of_its_own_round(result: dict[str, Any]) -> None:
    slow = result["derived"]["subjects"]["slow"]
    assert slow["save_seconds"] == {"median": 4.5, "min": 3.0, "max": 6.0}
    assert slow["save_ratio"] == {"median": 3.0, "min": 3.0, "max": 3.0}
    assert slow["restore_cached_ratio"]["median"] == 3.0


def test_a_floor_is_the_best_way_of_a_round_by_its_median() -> None:
    measured = [results.floors(1.0), results.floors(1.2), results.floors(50.0)]
    names = ("save", "copy", "cold", "cached", "proven_cold", "proven_cached")
    assert summary.floors_of(measured) == {f"floor_{name}": 1.2 for name in names}


def test_figures_are_of_the_second_save_and_memory_of_both(result: dict[str, Any]) -> None:
    fast = result["derived"]["subjects"]["fast"]
    assert fast["first_save_seconds"]["min"] == 2.0
    assert fast["save_seconds"]["min"] == 1.0
    assert fast["save_over"]["median"] == 3 << 20
    assert fast["sharded_save_ratio"]["median"] == 2.0


def test_the_floor_on_another_mesh_is_that_of_what_was_read(result: dict[str, Any]) -> None:
    fast, used = result["derived"]["subjects"]["fast"], result["derived"]["budgets"]["fast"]
    assert fast["2d_cold_ratio"]["median"] == pytest.approx(2.8)
    assert used["restore: 2d cold"]["median"] == pytest.approx(2.8 / (1.5 * 2.0))
    assert used["restore: read for 2d"]["median"] == 1.0


def test_what_is_read_again_from_the_page_cache_is_not_as_slow_as_the_disk() -> None:
    floors = {**summary.floors_of([results.floors(1.0)]), "floor_cached": 0.1}
    records = [{**results.restore("x", 1.5, "cold", "2d", asked=4.0), "disk": results.NBYTES}]
    assert summary.figures_of(records, "one", results.NBYTES, floors)["2d_cold_floor"] == pytest.approx(1.3)
    records = [{**results.restore("x", 1.5, "cold", "2d", asked=4.0), "disk": 3 * results.NBYTES}]
    assert summary.figures_of(records, "one", results.NBYTES, floors)["2d_cold_floor"] == pytest.approx(3.1)
    records = [results.restore("x", 1.5, "cached", "2d", asked=4.0)]
    assert summary.figures_of(records, "one", results.NBYTES, floors)["2d_cached_floor"] == pytest.approx(0.4)


def test_reading_less_than_is_needed_lowers_no_floor() -> None:
    records = [results.restore("x", 1.5, "cold", "2d", asked=0.1)]
    floors = summary.floors_of([results.floors(1.0)])
    assert summary.figures_of(records, "one", results.NBYTES, floors)["2d_cold_floor"] == 1.0


def test_what_failed_has_no_figure(result: dict[str, Any]) -> None:
    assert "2d_cold_ratio" not in result["derived"]["subjects"]["slow"]
    assert "absent" not in result["derived"]["subjects"]


def test_a_failure_in_one_round_leaves_the_others() -> None:
    rounds = [{"a": 1.0, "b": 5.0}, {"b": 7.0}, {"a": 3.0}]
    assert summary._spreads(rounds) == {
        "a": {"median": 2.0, "min": 1.0, "max": 3.0},
        "b": {"median": 6.0, "min": 5.0, "max": 7.0},
    }


def test_a_budget_is_a_part_of_another_figure_and_a_constant() -> None:
    budget = Budget("blocked", "save", "blocked_seconds", 0.05, "floor_copy", 0.020)
    assert budget.used({"blocked_seconds": 0.03, "floor_copy": 0.2}) == pytest.approx(1.0)
    assert budget.used({"floor_copy": 0.2}) is None


def test_each_framework_has_budgets_of_its_own() -> None:
    blocked = {kind: [one for one in budgets.of(kind) if one.name == "blocked"] for kind in ("jax", "torch", None)}
    assert {kind: [one.factor for one in found] for kind, found in blocked.items()} == {"jax": [0.05], "torch": [1.2], None: []}
    assert all(one.factor or one.plus for one in budgets.BUDGETS)


def test_each_budget_is_of_figures_that_there_are() -> None:
    """A figure that was renamed would have no budget, and nobody would see it."""
    records = [results.save("x", 1.0), results.save("x", 1.0, "1d")]
    records += [results.restore("x", 1.0, cache) for cache in ("cold", "cached")]
    records += [results.restore("x", 1.0, cache, mesh) for cache in ("cold", "cached") for mesh in ("2d", "transposed")]
    figures = summary.figures_of(records, "one", results.NBYTES, summary.floors_of([results.floors(1.0)]))
    assert all(budget.used(figures) is not None for budget in budgets.BUDGETS)
    shown = [cell for columns in (tables.SAVES, tables.RESTORES, tables.SHORT) for _, cell in columns]
    spreads = summary._spreads([figures])
    assert all(cell(spreads) != tables.NOTHING for cell in shown)


def test_the_table_says_what_is_within_budget(result: dict[str, Any]) -> None:
    text = tables.full(result)
    fast, slow = (next(line for line in text.splitlines() if line.startswith(f"| {name} |")) for name in ("Fast", "Slow"))
    assert fast.endswith("| ✓ save, memory, files; ✗ blocked 1.55× |")
    assert slow.endswith("| ✓ blocked, memory, files; ✗ save 2.61× |")
    assert "| 1.00 |" in fast


def test_a_smoke_is_not_judged(result: dict[str, Any]) -> None:
    assert "✗" in tables.full(result)
    text = tables.full(result | {"size": "smoke"})
    assert "budget" not in text
    assert "✗" not in text
    assert "| Fast | 1.00 |" in text


def test_the_table_names_what_failed_and_why(result: dict[str, Any]) -> None:
    text = tables.full(result)
    assert "- absent: No module named 'x'" in text
    assert text.count("- Slow, restore on 2d: it cannot") == 1
    assert "| absent | – |" in text


def test_the_table_has_settings_and_floors(result: dict[str, Any]) -> None:
    text = tables.full(result)
    assert "- Fast: as Fast comes (jax 1.0)" in text
    assert "66 arrays, 1 MB; 2 rounds, median (least–most). Floors, each with the least and the most" in text
    assert ": save 1.50 s (1.00 s–18.00 s); restore, cold 1.50 s (1.00 s–18.00 s); " in text


def test_a_floor_is_measured_in_the_way_that_is_the_best_of_its_round(result: dict[str, Any]) -> None:
    for one, seconds in zip(result["rounds"], ([0.9, 1.0, 1.1], [3.0, 2.0, 2.5]), strict=True):
        one["floors"] = [results.floors(1.0) for _ in seconds]
        for floors, found in zip(one["floors"], seconds, strict=True):
            floors["save"] = {"one-file": 0.5 if found == 0.9 else 9.0, "files-2": found}
            del floors["proven"]
    text = tables.heading(result)
    assert "save 1.50 s (900 ms–3.00 s);" in text
    assert "digests" not in text


def test_columns_without_figures_are_left_out(result: dict[str, Any]) -> None:
    assert "transposed" not in tables.full(result)
    assert "2d, cold" in tables.full(result)


def test_what_was_not_cold_is_said(result: dict[str, Any]) -> None:
    assert "page cache still held" not in tables.full(result)
    cold = next(record for record in result["rounds"][0]["records"] if record.get("cache") == "cold")
    cold["held"] = 0.4
    assert "The page cache still held up to 40% of the files" in tables.full(result)


def test_the_short_table_has_no_settings(result: dict[str, Any]) -> None:
    text = tables.short(result)
    assert "save ÷ floor" in text
    assert "Settings" not in text
    assert "- Slow, restore on 2d: it cannot" in text
