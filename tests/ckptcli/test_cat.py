"""`ckpt cat`: values, statistics and slices."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store, flip, state
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
BIG = 1000 + np.arange(6000, dtype=np.float64).reshape(60, 100)


@pytest.fixture
def run(place: Path) -> Path:
    extra = {
        "big": BIG,
        "odd": np.array([math.nan, math.inf, 0, 2], ml_dtypes.bfloat16),
        "small": np.array([1, -2], ml_dtypes.int4),
        "value": {"a": (1, math.nan), "b": b"ab", 3: "x\x1b[31m"},
    }
    job = Job(file_store(place / "run"))
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"extra": extra}
    job.open()
    job.save(10)
    return place / "run"


def test_an_array(ckpt: Ckpt, run: Path) -> None:
    told = ckpt("cat", run, "extra.big").out
    for line in ("shape       (60, 100)", "min         1000", "max         6999", "mean        3999.5", "zeros       0 (0.0%)"):
        assert line in told
    assert told.rstrip().endswith("[6900., 6901., 6902., ..., 6997., 6998., 6999.]]")
    assert " ...,\n" in told


def test_a_slice(ckpt: Ckpt, run: Path) -> None:
    assert ckpt("cat", run, "extra['big']", "--slice", "2:4,1:3").out.rstrip().endswith("[[1201., 1202.],\n [1301., 1302.]]")
    found = ckpt("cat", run, "extra.big", "--slice", "-1,::50", "--json").json
    assert (found["selected"], found["elements"]) == ([2], [6900.0, 6950.0])
    assert found["statistics"]["mean"] == pytest.approx(3999.5)
    assert ckpt("cat", run, "extra.big", "--slice", ":", "--json").json["elements"] == BIG.tolist()
    assert ckpt("cat", run, "extra.big", "--json").json["elements"] is None


def test_only_what_is_printed_is_read(ckpt: Ckpt, run: Path) -> None:
    found = ckpt("cat", run, "extra.big", "--slice", "0,0", "--no-statistics", "--json").json
    assert (found["statistics"], found["elements"]) == (None, 1000.0)


def test_exotic_elements(ckpt: Ckpt, run: Path) -> None:
    found = ckpt("cat", run, "extra.odd", "--json").json
    assert found["elements"] == ["nan", "inf", 0.0, 2.0]
    assert (found["statistics"]["nan"], found["statistics"]["inf"], found["statistics"]["maximum"]) == (1, 1, 2.0)
    assert ckpt("cat", run, "extra.small", "--json").json["elements"] == [1, -2]
    assert "(of the moduli)" in ckpt("cat", GOLDEN, "params.phase").out


def test_a_value(ckpt: Ckpt, run: Path) -> None:
    found = ckpt("cat", run, "extra.value", "--json").json["value"]
    assert found["$dict"][0] == [3, "x\x1b[31m"]
    told = ckpt("cat", run, "extra.value").out
    assert '"a": [\n    1,\n    NaN\n  ]' in told
    assert '"3": "x\\u001b[31m"' in told


def test_the_leaf_of_one_rank(ckpt: Ckpt, run: Path) -> None:
    assert ckpt("cat", run, "rng.key", "--rank", "1", "--json").json["elements"] == [10, 1]
    assert ckpt("cat", run, "rank_state.1.rng.key", "--json").json["elements"] == [10, 1]
    assert "rank        0 of 2, each with its own" in ckpt("cat", run, "rng.key").out
    assert "there is no rank 5" in ckpt.refused("cat", run, "rng.key", "--rank", "5", status=5)


def test_several_leaves(ckpt: Ckpt, run: Path) -> None:
    assert [leaf["name"] for leaf in ckpt("cat", run, "params", "--json").json["below"]] == ["params.b", "params.w"]
    assert "params['w']" in ckpt("cat", run, "params").out


def test_what_is_wrong(ckpt: Ckpt, run: Path) -> None:
    assert "has no leaf 'extra.bigg'; did you mean extra.big" in ckpt.refused("cat", run, "extra.bigg", status=5)
    assert "index 60 is outside" in ckpt.refused("cat", run, "extra.big", "--slice", "60", status=2)
    for file in (run / "generations").glob("*/state/ranks/*/d/*"):
        for position in range(0, file.stat().st_size, 64):
            flip(file, position)
    assert "of array 'params.w'" in ckpt.refused("cat", run, "params.w", status=4)


def test_keys_that_have_quotes(ckpt: Ckpt, place: Path) -> None:
    """What `ckpt tree` shows is what `ckpt cat` takes."""
    odd = {"it's": {"w": np.arange(3.0)}, 'a"b': np.arange(2.0), "c": np.arange(4.0)}
    job = Job(file_store(place / "quotes"), 1)
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"odd": odd}
    job.open()
    job.save(10)
    parts = ckpt("tree", place / "quotes", "--component", "odd", "--json").json["components"][0]["copies"][0]["leaves"]
    assert [ckpt("cat", place / "quotes", leaf["path"], "--json").json["selected"] for leaf in parts] == [
        leaf["shape"] for leaf in parts
    ]
    assert ckpt("cat", place / "quotes", 'odd["c"]', "--json").json["selected"] == [4]
    assert ckpt("cat", place / "quotes", 'odd["it\'s"]', "--json").json["selected"] == [3]


def test_options_that_are_of_no_use_are_refused(ckpt: Ckpt, run: Path) -> None:
    assert "this is several leaves" in ckpt.refused("cat", run, "params", "--slice", "0", status=2)
    assert "this is a value" in ckpt.refused("cat", run, "extra.value", "--slice", "0", status=2)
    assert "is one for all ranks" in ckpt.refused("cat", run, "params.w", "--rank", "1", status=2)
    assert "is of rank 1, --rank says 0" in ckpt.refused("cat", run, "rank_state.1.rng.key", "--rank", "0", status=2)
    assert ckpt("cat", run, "rank_state.1.rng.key", "--rank", "1", "--json").json["rank"] == 1


def test_many_dimensions(ckpt: Ckpt, place: Path) -> None:
    wide = {"seven": np.arange(4.0**7).reshape((4,) * 7), "twelve": np.zeros((2,) * 12)}
    job = Job(file_store(place / "wide"), 1)
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"wide": wide}
    job.open()
    job.save(10)
    assert len(ckpt("cat", place / "wide", "wide.seven").out) < 20_000
    assert "4,096 elements in 12 dimensions: --slice selects" in ckpt("cat", place / "wide", "wide.twelve").out
