"""`ckpt show`: the manifest for people."""

from __future__ import annotations

from pathlib import Path

from ckptcore import names
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"


def test_a_golden_commit(ckpt: Ckpt) -> None:
    told = ckpt("show", GOLDEN, "4").out
    for line in (
        "generation  000002-000000000004-1",
        "guarantee   exact; schedule from optimizer",
        "topology    jax on cpu, 2 processes, 2 devices",
        "mesh        x=2",
        "metrics     accuracy=0.75, loss=0.25",
    ):
        assert line in told
    assert "params      parameters   global        9   2.20 KiB   000001-000000000001-1" in told
    assert "tag         best (" in told


def test_the_head_by_default(ckpt: Ckpt) -> None:
    found = ckpt("show", GOLDEN, "--json").json
    assert (found["generation"], found["head"], found["state"]) == ("000002-000000000005-1", True, "committed")
    assert found["manifest"]["decision"] == "commit"
    assert {phase["name"] for phase in found["phases"]} == {"stage", "write"}
    write = next(phase for phase in found["phases"] if phase["name"] == "write")
    assert write["seconds"] == write["ranks"][str(write["slowest"])] == max(write["ranks"].values())


def test_what_was_noted_later(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"))
    job.open()
    job.save(10, metadata={"lr": 0.5, "text": "a\x1b[31mb"})
    run = open_run(place / "run")
    run.annotate("000001-000000000010-1", pin="of a paper\x1b[2J", metrics={"loss": 0.5})
    run.verify(deep=True, note=True)
    run.quarantine("000001-000000000010-1", "a spike")
    told = ckpt("show", place / "run", "10").out
    assert 'metadata    {"lr": 0.5, "text": "a\\u001b[31mb"}' in told
    assert "state       quarantined: a spike" in told
    assert "pin         of a paper\\x1b[2J (" in told
    assert "verified    deep (" in told
    notes = {note["kind"]: note for note in ckpt("show", place / "run", "10", "--json").json["notes"]}
    assert (notes["verified"]["depth"], notes["quarantine"]["text"]) == ("deep", "a spike")


def test_a_commit_whose_receipts_are_lost_is_shown_all_the_same(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"))
    job.open()
    job.save(10)
    (place / "run" / names.receipt_key(GenerationId(1, 10, 1), 0)).unlink()
    assert "phase" not in ckpt("show", place / "run").out


def test_what_cannot_be_shown(ckpt: Ckpt) -> None:
    assert "was aborted" in ckpt.refused("show", GOLDEN, "000001-000000000003-1", status=5)
    assert "no checkpoint of step 77" in ckpt.refused("show", GOLDEN, "77", status=5)
    assert "neither a step nor a generation ID" in ckpt.refused("show", GOLDEN, "latest", status=2)
