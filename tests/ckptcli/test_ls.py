"""`ckpt ls`: every state a generation may be in, several runs, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import jsonschema

from ckptcli import schemas
from ckptcore import names
from ckptcore.keep import Keep
from ckptcore.proof import Refuted
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.supervised import never_begun
from tests.ckptcore.support import Job, checkpointer, file_store, state
from tests.ckptcore.training import Later
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


def test_an_abort_says_once_who_has_not_delivered(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"), 3)
    job.open()
    job.coordinator().abort(job.next_generation(10), Refuted("no receipt from rank 1 of 3", (1,)))
    job.coordinator().abort(job.next_generation(20), Refuted("the store is full", (2,)))
    first, second = ckpt("ls", place / "run").out.splitlines()[-2:]
    assert first.endswith("  no receipt from rank 1 of 3")
    assert second.endswith("  no receipt from rank 2; the store is full")
    page = place / "report.html"
    ckpt("report", place / "run", "-o", page)
    assert "<td>no receipt from rank 1 of 3</td>" in page.read_text()


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


def test_many_that_are_retired_are_one_line(ckpt: Ckpt, place: Path) -> None:
    with checkpointer(place / "run", keep=Keep(last=2)) as saver:
        for step in range(1000, 7001, 1000):
            saver.save(step, state(step)).result()
    _, _, folded, _, head = ckpt("ls", place / "run").out.splitlines()
    assert folded.split()[:3] == ["5", "generations", "retired"]
    assert folded.endswith("steps 1,000 to 5,000; --all lists them")
    assert head.startswith("*")
    assert len(ckpt("ls", place / "run", "--all").out.splitlines()) == 2 + 7
    assert len(states(ckpt, place / "run")) == 7


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


def test_runs_whose_folders_have_odd_names(ckpt: Ckpt, place: Path) -> None:
    for name in ("run 42", "lr=0.1,bs=2", "ü"):
        Job(file_store(place / name), 1).open()
    urls = [run["url"] for run in ckpt("ls", place, "--json").json["runs"]]
    assert urls == [file_store(place / name).url for name in ("lr=0.1,bs=2", "run 42", "ü")]


def test_what_is_wrong_with_one_run_hides_no_other(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place / "good"), 1).open()
    (place / "latest").symlink_to("good")
    (place / "bad").mkdir()
    (place / "bad" / names.RUN).write_text("garbage")
    told = ckpt("ls", place, status=4)
    bad = file_store(place / "bad").url
    assert told.error.startswith(f"ckpt: {bad}: run.json: ")
    assert told.error.count("\n") == 1
    assert told.out == f"{file_store(place / 'good').url}\nno generations yet\n"
    assert [run["url"] for run in ckpt("ls", place, "--json", status=4).json["runs"]] == [file_store(place / "good").url]
    for command in ("ls", "status", "show"):
        assert bad in ckpt.refused(command, place / "bad", status=4)


def test_nobody_can_tell_who_is_missing(ckpt: Ckpt, place: Path) -> None:
    """Of a damaged receipt the next one tells, then the claim; where nothing does, that is what is said."""
    job = Job(file_store(place), 3)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 0)
    job.write(generation, 1)
    receipts = [place / names.receipt_key(generation, rank) for rank in (0, 1)]
    for damaged in (receipts[0], receipts[1]):
        damaged.write_bytes(b"garbage")
        assert "no receipt from rank 2 of 3" in ckpt("status", place).out
    (place / names.claim_key(1)).write_bytes(b"garbage")
    assert f"{generation}, nobody can tell who is missing" in ckpt("status", place).out
    assert "nobody can tell who is missing" in ckpt("ls", place).out
    (undecided,) = ckpt("status", place, "--json").json["undecided"]
    assert (undecided["participants"], undecided["missing"]) == (None, [])


def test_a_checkpoint_from_the_future(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place), 1)
    job.clock = Later(200)
    job.open()
    job.save(10)
    told = "in the future: a clock is wrong"
    assert told in ckpt("ls", place).out
    assert f"{told}, step 10" in ckpt("status", place).out
    assert f"UTC, {told}" in ckpt("show", place).out
    assert ckpt("status", place, "--json").json["committed"]["age_seconds"] < -100
    assert ckpt("status", place, "--max-age", "1h", "--json").json["fresh"] is True
    job.clock = Later(1000)
    job.save(20)
    late = ckpt("status", place, "--max-age", "1h", status=1)
    assert "older than" not in late.out


def test_metrics_that_are_no_numbers_satisfy_the_schema(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place), 1)
    job.open()
    generation = job.save(10).generation
    open_run(place).annotate(generation, metrics={"loss": float("nan"), "best": float("-inf"), "x\ny": 1.0})
    for command in ("ls", "show"):
        document = ckpt(command, place, "--json").json
        jsonschema.validate(document, schemas.schema(command))
        shown = document["runs"][0]["generations"][0] if command == "ls" else document
        assert shown["metrics"] == {"loss": "nan", "best": "-inf", "x\ny": 1.0}
    (line,) = [line for line in ckpt("ls", place).out.splitlines() if str(generation) in line]
    assert "x\\ny=1" in line
    assert "loss=nan" in ckpt("show", place).out


def test_a_run_that_no_job_has_begun(ckpt: Ckpt, place: Path) -> None:
    never_begun(place / "waiting")
    told = (
        "no run has begun here: 2 attempts of a supervisor, the newest: 2, 3 ranks (restart), failed; `ckpt status` tells more\n"
    )
    assert ckpt("ls", place / "waiting").out == told
    Job(file_store(place / "good"), 1).open()
    runs = ckpt("ls", place, "--json").json["runs"]
    assert [(run["url"].rpartition("/")[2], run["begun"], run["generations"]) for run in runs] == [
        ("good", True, []),
        ("waiting", False, []),
    ]
    assert told in ckpt("ls", place).out
