"""What counts as flat, and a small run of all of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import soak


def samples(**rising: float) -> list[dict[str, float]]:
    """Ten samples of a constant 100, and of what rises by so much between two of them."""
    constant = dict.fromkeys((figure.name for figure in soak.FIGURES), 100.0)
    return [
        {**constant, "saves": 50.0 * (number + 1), **{name: 100 + by * number for name, by in rising.items()}}
        for number in range(10)
    ]


def flat(**rising: float) -> dict[str, bool | None]:
    return {row["figure"]: row["flat"] for row in soak.rows(samples(**rising))}


def test_what_does_not_rise_is_flat() -> None:
    assert set(flat().values()) == {True, None}
    assert flat(resident_bytes=-5.0, threads=-1.0)["resident_bytes"] is True


def test_what_rises_is_not() -> None:
    rising = flat(resident_bytes=0.5, descriptors=1.0, threads=1.0, bytes_read=5.0, step_seconds=5.0, data_files=1.0)
    assert {name for name, found in rising.items() if found is False} == {
        *("resident_bytes", "descriptors", "threads", "bytes_read", "step_seconds", "data_files")
    }


def test_a_little_may_be_noise() -> None:
    assert flat(resident_bytes=0.2, step_seconds=1.0, data_files=0.5)["resident_bytes"] is True


def test_what_is_made_once_does_not_count() -> None:
    found = samples()
    found[0]["resident_bytes"] = 1.0
    assert soak.rows(found)[0]["flat"] is True


def test_what_grows_by_design_is_shown_and_not_judged() -> None:
    (records,) = [row for row in soak.rows(samples(record_files=100.0)) if row["figure"] == "record_files"]
    assert records["flat"] is None
    assert records["per_100_saves"] == pytest.approx(200)


def test_a_smoke_is_not_judged() -> None:
    result = {"saves": 8, "every": 2, "rows": {"jax": soak.rows(samples(threads=9.0))}}
    assert "| **no** |" in soak.table(result)
    text = soak.table(result | {"smoke": True})
    assert "**no**" not in text
    assert "may rise by" not in text


@pytest.mark.slow
def test_all_of_it(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    soak.add_arguments(parser)
    result = soak.run(argparse.Namespace(smoke=True, dir=tmp_path, **vars(parser.parse_args([]))))
    judged = {row["figure"]: row["flat"] for row in result["rows"]["jax"]}
    assert judged["descriptors"] is True
    table = soak.table(result)
    assert table.startswith("jax: 8 saves")
    assert "flat" not in table
    assert "grows by design" in soak.table(result | {"smoke": False})
