"""`ckpt tree`: all leaves, with what there is to know of each."""

from __future__ import annotations

from pathlib import Path

from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store, state
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"


def test_a_golden_commit(ckpt: Ckpt) -> None:
    lines = ckpt("tree", GOLDEN).out.splitlines()
    assert "│     └─ ['w']    bfloat16[6, 4]             48 B   1×2      (None, 'x') over x=2" in lines
    assert any(line.startswith("params            parameters, 9 leaves   2.20 KiB") for line in lines)
    assert [line for line in lines if line.startswith("rank ")] == ["rank 0", "rank 1"]
    assert all(line == line.rstrip() for line in lines)


def test_one_component_to_a_depth(ckpt: Ckpt) -> None:
    told = ckpt("tree", GOLDEN, "--component", "params", "--depth", "1").out
    assert "├─ ['layers']    2 leaves                  144 B" in told
    assert "['w']" not in told
    assert "optimizer" not in told


def test_json_has_every_leaf(ckpt: Ckpt) -> None:
    (part,) = ckpt("tree", GOLDEN, "--component", "params", "--json").json["components"]
    leaves = {leaf["path"]: leaf for leaf in part["copies"][0]["leaves"]}
    head = leaves["params['head']"]
    assert (head["dtype"], head["shape"], head["bytes"], head["chunks"]) == ("float32", [16, 16], 1024, [2, 1])
    assert part["copies"][0]["ranks"] is None
    assert sum(leaf["bytes"] for leaf in leaves.values()) == part["bytes"]


def test_ranks_with_the_same_leaves_are_shown_once(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"), 3)
    job.open()
    job.save(10)
    assert "ranks 0-2, each" in ckpt("tree", place / "run").out
    (part,) = ckpt("tree", place / "run", "--component", "rng", "--json").json["components"]
    assert [copy["ranks"] for copy in part["copies"]] == [[0, 1, 2]]


def test_an_alias_and_a_component_that_is_one_leaf(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"), 1)
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"extra": 7}
    job.open()
    job.save(10)
    assert "└─ (itself)" in ckpt("tree", place / "run", "--component", "extra").out


def test_an_unknown_component(ckpt: Ckpt) -> None:
    assert "has no component 'model'; it has" in ckpt.refused("tree", GOLDEN, "--component", "model", status=5)
