"""Bytes read by jobs of several ranks: what is derived from them, and a small run of all of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ranks


def job(count: int, mode: str, *each: tuple[int, int, float], number: int = 0) -> dict[str, Any]:
    reports = [{"needed": needed, "read": read, "seconds": seconds, "over": 0} for needed, read, seconds in each]
    return {"round": number, "ranks": count, "placement": "replicated", "mode": mode, "each": reports}


def test_a_row_has_the_worst_process_and_the_sum_of_all() -> None:
    (row,) = ranks.derive(100, [job(2, "fetch_once", (100, 60, 1.0), (50, 55, 2.0))])
    assert (row["process"], row["job"], row["seconds"]) == (1.1, 1.15, 2.0)


def test_rows_are_medians_over_the_rounds() -> None:
    jobs = [job(1, "each for itself", (100, read, 1.0), number=number) for number, read in enumerate((100, 300, 110))]
    (row,) = ranks.derive(100, [*jobs])
    assert row["job"] == 1.1


def test_alone_there_is_nobody_to_pass_anything_on_to() -> None:
    kinds = list(ranks._kinds([1, 2, 4], smoke=False))
    assert {(placement, mode) for count, placement, mode in kinds if count == 1} == {("replicated", "each for itself")}
    assert {count for count, placement, _ in kinds if placement == "sharded, two copies"} == {4}
    assert len(kinds) == len(set(kinds))


@pytest.mark.whole
def test_all_of_it(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    ranks.add_arguments(parser)
    result = ranks.run(argparse.Namespace(smoke=True, dir=tmp_path, **vars(parser.parse_args([]))))
    (row,) = result["rows"]
    assert row["mode"] == "fetch_once"
    assert row["job"] < 1.5  # at this size records count for much
    assert "| fetch_once |" in ranks.table(result)


def test_a_job_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a job of 1 processes failed with status 1"):
        ranks._job(1, {"do": "restore", "size": "none", "folder": str(tmp_path), "placement": "replicated", "mode": ""})
