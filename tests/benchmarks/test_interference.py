"""What `interference` makes of its blocks, and one run at a tiny size."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import interference
from benchmarks.interference import derive, percentile, run, table


def options(folder: Path, *arguments: str) -> Namespace:
    parser = ArgumentParser()
    interference.add_arguments(parser)
    return Namespace(**vars(parser.parse_args(arguments)), smoke=True, dir=folder)


def block(steps: list[tuple[float, float]], cpu: float, **facts: float) -> dict[str, Any]:
    return {"steps": steps, "cpu": cpu, **facts}


def blocks(during: float) -> dict[str, Any]:
    """Three blocks of steps of 20 ms, and two saves with steps that long, which take a second of processor time each."""
    without = block([(0.015, 0.005)] * 10, 0.2)
    save = block([(during - 0.005, 0.005)] * 20, 0.4 + 1.0, blocked=0.1, seconds=2.0)
    return {"without": [without] * 3, "during": [save] * 2}


def test_ratios_are_of_steps_with_a_save_to_steps_without() -> None:
    found = derive(blocks(0.03))
    assert found["steps"]["median"]["ratio"] == pytest.approx(1.5)
    assert found["steps"]["p99"]["compute_ratio"] == pytest.approx(0.025 / 0.015)
    assert found["steps"]["p90"]["python_ratio"] == pytest.approx(1)
    assert found["rounds"] == pytest.approx([1.5, 1.5])
    assert not found["within_budget"]
    assert found["noise"] == pytest.approx(1)
    assert found["save_cpu_seconds"] == pytest.approx(1)
    assert derive(blocks(0.022))["within_budget"]


def test_a_round_goes_by_the_steps_around_it() -> None:
    """What makes all steps slower, before, during and after a save, is not the save."""
    given = blocks(0.02)
    slow = [(0.03, 0.01)] * 10
    given["without"] = [given["without"][0], block(slow, 0.2), block(slow, 0.2)]
    given["during"] = [given["during"][0], given["during"][0] | {"steps": slow}]
    assert derive(given)["rounds"][1] == pytest.approx(1)


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (90, 9), (99, 10)])
def test_percentiles(percent: int, expected: float) -> None:
    assert percentile([*range(10, 0, -1)], percent) == expected
    assert percentile([7], percent) == 7


def test_the_table_has_all_percentiles() -> None:
    result = {"size": "small", "bytes": 5_000_000, "rounds": 2, "derived": {"jax": derive(blocks(0.03))}}
    told = table(result)
    assert "| jax, p99 | 20.0 ms | 30.0 ms | 1.50 | 1.67 | 1.00 |" in told
    assert "over budget" in told
    assert "budget" not in table(result | {"size": "smoke"})  # its figures mean nothing


@pytest.mark.whole
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_small_run(tmp_path: Path, framework: str) -> None:
    result = run(options(tmp_path, "--framework", framework))
    assert list(result["blocks"]) == [framework]
    found = result["blocks"][framework]
    assert [len(found["without"]), len(found["during"])] == [2, 1]
    assert all(len(one["steps"]) >= 3 for one in found["without"])
    assert found["during"][0]["steps"]
    assert f"| {framework}, median |" in table(result)
