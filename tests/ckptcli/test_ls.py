"""`ckpt ls`: every state a generation may be in, several runs, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

from ckptcore import names
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, checkpointer, file_store, state
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden"


def states(ckpt: Ckpt, run: Path) -> dict[str, str]:
    (found,) = ckpt("ls", run, "--json").json["runs"]
    return {row["generation"]: row["state"] for row in found["generations"]}


def test_a_golden_run(ckpt: Ckpt) -> None:
    run = GOLDEN / "1.0-by-jax-0.1.0"
    assert list(states(ckpt, run).values()) == [
        "committed", "retired", "aborted", "committed", "committed", "quarantined", "undecided"
    ]  # fmt: skip
    lines = ckpt("ls", run).out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["000002-000000000005-1"]
    assert "accuracy=0.75" in lines[5]
    assert all(line == line.rstrip() for line in lines)


def test_the_runs_below_a_prefix(ckpt: Ckpt) -> None:
    found = ckpt("ls", GOLDEN, "--json").json["runs"]
    assert [run["url"].rpartition("/")[2] for run in found] == ["1.0-by-jax-0.1.0", "1.0-by-torch-0.1.0"]
    assert "1.0-by-torch-0.1.0" in ckpt("ls", GOLDEN).out


def test_who_has_not_delivered(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"), 3)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 1)
    (row,) = ckpt("ls", place / "run", "--json").json["runs"][0]["generations"]
    assert (row["state"], row["missing"], row["participants"], row["restorable"]) == ("undecided", [0, 2], 3, False)
    assert "no receipt from ranks 0, 2 of 3" in ckpt("ls", place / "run").out


def test_what_a_rollback_leaves_behind_is_a_stray(ckpt: Ckpt, place: Path) -> None:
    with checkpointer(place / "run") as saver:
        first = saver.save(10, state(10)).result()
        second = saver.save(20, state(20)).result()
        saver.restore(like=state(0), step=10)
        third = saver.save(15, state(15)).result()
    run = open_run(place / "run")
    run.verify(generation=third, note=True)
    run.annotate(first, tags=["a\x1b[31mb".replace("\x1b[31m", "-")], pin="of a paper")
    assert states(ckpt, place / "run") == {
        first.generation: "committed",
        second.generation: "stray",
        third.generation: "verified",
    }
    assert "pinned; tag a-b" in ckpt("ls", place / "run").out


def test_an_unreadable_decision(ckpt: Ckpt, place: Path) -> None:
    with checkpointer(place / "run") as saver:
        manifest = saver.save(10, state(10)).result()
    (place / "run" / f"{names.LEDGER}{manifest.generation}.json").write_bytes(b"{}")
    assert states(ckpt, place / "run") == {manifest.generation: "unreadable"}


def test_no_run(ckpt: Ckpt, place: Path) -> None:
    assert "there is no run at" in ckpt.refused("ls", place, status=5)
    assert "is not a store" in ckpt.refused("ls", "http://x/y", status=2)


def test_a_run_without_saves(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place / "run"), 1).open()
    assert ckpt("ls", place / "run").out == "no generations yet\n"
