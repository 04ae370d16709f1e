"""`ckpt diff`: what two checkpoints have in common, and what not."""

from __future__ import annotations

import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from ckptcli import schemas
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store, flip
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"


@pytest.fixture
def runs(place: Path) -> Path:
    for name, size in (("one", 1), ("two", 2)):
        job = Job(file_store(place / name), size)
        job.open()
        job.save(10, metadata={"lr": 0.5})
        job.save(20, metadata={"lr": 0.25})
    return place


def test_the_same(ckpt: Ckpt, runs: Path) -> None:
    found = ckpt("diff", runs / "one", "10", "10", "--json").json
    assert (found["equal"], found["same"], found["leaves"], found["fields"]) == (True, 8, [], [])
    assert "equal: 8 leaves the same" in ckpt("diff", runs / "one", "10", "10").out


def test_two_steps_of_a_run(ckpt: Ckpt, runs: Path) -> None:
    found = ckpt("diff", runs / "one", "10", "20", "--json", status=1).json
    changes = {change["leaf"]: change for change in found["leaves"]}
    assert (changes["params.w"]["largest"], changes["params.w"]["differing"]) == (1000.0, 768)
    assert (changes["optimizer.count"]["left"], changes["optimizer.count"]["right"]) == ("10", "20")
    told = ckpt("diff", runs / "one", "10", "20", status=1).out
    assert "metadata.lr" in told
    assert "params['w']" in told
    assert ckpt("diff", runs / "one", "10", "--json", status=1).json["right"]["generation"] == "000001-000000000020-1"


def test_two_runs_on_other_ranks(ckpt: Ckpt, runs: Path) -> None:
    found = ckpt("diff", runs / "one", "20", "20", "--to", runs / "two", "--json", status=1).json
    assert {(change["leaf"], change["rank"], change["change"]) for change in found["leaves"]} == {("rng.key", 1, "only-right")}
    assert {field["name"] for field in found["fields"]} == {"topology.participants", "topology.devices"}
    assert found["right"]["url"].endswith("/two")
    head = ckpt("diff", runs / "one", "20", "--to", runs / "two", "--json", status=1).json["right"]["generation"]
    assert head == "000001-000000000020-1"


def test_digests_alone_read_no_data(ckpt: Ckpt, runs: Path) -> None:
    for file in (runs / "one" / "generations").glob("*/state/ranks/*/d/*"):
        flip(file, 40)
    told = ckpt("diff", runs / "one", "20", "20", "--to", runs / "two", "--digests", status=1).out
    assert "the digests cannot tell" in told
    assert "rng['key'] (rank 1)" in told


def test_what_is_wrong(ckpt: Ckpt, runs: Path) -> None:
    assert "no checkpoint of step 77" in ckpt.refused("diff", GOLDEN, "77", "5", status=5)
    assert "there is no run at" in ckpt.refused("diff", GOLDEN, "5", "5", "--to", runs / "three", status=5)


def test_differences_that_no_number_tells(ckpt: Ckpt, place: Path) -> None:
    """A NaN against a number: "inf" is measured, null is not."""
    job = Job(file_store(place / "run"), 1)
    job.state_of = lambda step, *_: {"params": {"w": np.array([1.0, math.nan if step == 20 else 2.0])}}
    job.open()
    job.save(10, guarantee="weights")
    job.save(20, guarantee="weights")
    document = ckpt("diff", place / "run", "10", "20", "--json", status=1).json
    jsonschema.validate(document, schemas.schema("diff"))
    (leaf,) = document["leaves"]
    assert (leaf["largest"], leaf["relative"], leaf["differing"]) == ("inf", "inf", 1)
    (leaf,) = ckpt("diff", place / "run", "10", "20", "--digests", "--json", status=1).json["leaves"]
    assert (leaf["largest"], leaf["relative"]) == (None, None)
