"""`ckpt explain`: what a person on call is told, in a few lines that are true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptcli import explain
from ckptcore import names
from ckptcore.attempts import AttemptIncident
from ckptcore.inspect.findings import Finding
from ckptcore.names import GenerationId
from tests.ckptcli.support import Ckpt
from tests.ckptcore.supervised import NOON, Supervised, blamed, never_begun, of_nodes, supervised
from tests.ckptcore.support import Job, contents, file_store, flip
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"


@pytest.fixture
def job(place: Path) -> Job:
    opened = Job(file_store(place / "run"), 8)
    opened.open()
    opened.save(10)
    return opened


def test_rank_7_died(ckpt: Ckpt, job: Job, place: Path) -> None:
    generation = job.next_generation(20)
    for rank in range(7):
        job.write(generation, rank)
    before, receipt = contents(place), names.receipt_key(generation, 7)
    assert ckpt("explain", place / "run").out.splitlines() == [
        "000001-000000000010-1: the next start resumes from here (step 10), and all of its files are there (P-15, P-20)",
        "000001-000000000020-1: undecided: the next start aborts it, no receipt from rank 7 of 8 (P-12)",
        f"  000001-000000000020-1: no receipt from rank 7: nothing of it is there [{receipt}] (P-12, P-35.1)",
        "the next start claims incarnation 2; a job of incarnation 1 that still runs must stop then (P-8, P-9)",
    ]
    found = ckpt("explain", place / "run", "--json").json
    assert (found["generation"], found["resumable"]) == ("000001-000000000010-1", True)
    assert [fact["kind"] for fact in found["findings"]] == ["resume", "abort", "missing-receipt", "next-claim"]
    assert contents(place) == before


def test_many_ranks_that_died_are_one_line(ckpt: Ckpt, job: Job, place: Path) -> None:
    generation = job.next_generation(20)
    job.write(generation, 3)
    told = ckpt("explain", place / "run", "20", status=1).out
    assert told.startswith("000001-000000000020-1 cannot be resumed from\n")
    assert "no receipt from ranks 0-2, 4-7: nothing of it is there" in told
    facts = ckpt("explain", place / "run", generation, "--json", status=1).json["findings"]
    assert [fact["rank"] for fact in facts if fact["kind"] == "missing-receipt"] == [0, 1, 2, 4, 5, 6, 7]


def test_a_damaged_one(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place / "run"), 2)
    job.open()
    generation = job.save(10).generation
    for file in (place / "run" / names.state_prefix(generation) / "ranks").glob("00001-*/d/*"):
        for position in range(10, file.stat().st_size, 100):
            flip(file, position)
    assert "can be resumed from" in ckpt("explain", place / "run", "10").out
    told = ckpt("explain", place / "run", "10", "--deep", status=1).out
    assert "chunks 2, 3 of 'params.w', written by rank 1, cannot be read (O-10, O-11)" in told
    facts = ckpt("explain", place / "run", "10", "--deep", "--json", status=1).json["findings"]
    assert [(fact["rank"], fact["leaf"], fact["chunks"]) for fact in facts if fact["kind"] == "chunks"] == [
        (1, "params.w", [2, 3])
    ]


def test_golden_runs(ckpt: Ckpt) -> None:
    assert "the next start commits it, since it is proven whole, and resumes from here (step 7)" in ckpt("explain", GOLDEN).out
    assert "it is retired (P-21, K-6)" in ckpt("explain", GOLDEN, "2", status=1).out
    assert "it was aborted: a rank could not write its part" in ckpt("explain", GOLDEN, "3", status=1).out
    assert "marked quarantine: the loss rose (P-21)" in ckpt("explain", GOLDEN, "6", status=1).out


def test_nothing_to_resume_from(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place / "run")).open()
    assert "the next start is a fresh one" in ckpt("explain", place / "run", status=1).out


def test_what_is_wrong(ckpt: Ckpt, place: Path) -> None:
    assert "there is no run at" in ckpt.refused("explain", place, status=5)
    assert "no generation of step 77" in ckpt.refused("explain", GOLDEN, "77", status=5)
    assert "has no generation 000009-000000000001-1" in ckpt.refused("explain", GOLDEN, "000009-000000000001-1", status=5)
    assert "--deep reads one checkpoint" in ckpt.refused("explain", GOLDEN, "--deep", status=2)


class Counted(list[Finding]):
    """Findings that count how often somebody walks over them."""

    walks = 0

    def __iter__(self) -> Iterator[Finding]:
        self.walks += 1
        return super().__iter__()


def test_many_missing_receipts_are_grouped_in_few_passes() -> None:
    generations = [GenerationId(1, step, 1) for step in (10, 20)]
    found = Counted(
        Finding(kind="missing-receipt", text=f"no receipt from rank {rank}: gone", clause="P-12", generation=each, rank=rank)
        for rank in range(100)
        for each in generations
    )
    found.append(Finding(kind="whole", text="whole", clause=""))
    told = list(explain._grouped(found))
    assert [(each.generation, each.text) for each in told] == [
        *((each, "no receipt from ranks 0-99: gone") for each in generations),
        (None, "whole"),
    ]
    assert found.walks == 2


def told_by(ckpt: Ckpt, place: Path, status: int = 0) -> list[str]:
    """What is said of attempts, without ages."""
    lines = ckpt("explain", place, status=status).out.splitlines()
    said = [line for line in lines if "R-77" in line or "U-4" in line]
    return [re.sub(r"[0-9]+ (d|h|min|s)( [0-9]+ (h|min|s))? ago", "some time ago", line) for line in said]


def test_a_supervised_run_tells_how_its_last_attempt_ended(ckpt: Ckpt, place: Path) -> None:
    supervised(place)
    attempt, supervisor = told_by(ckpt, place)
    assert attempt == "attempt 4 was ended to go on with more or fewer ranks, some time ago (R-77)"
    assert supervisor.startswith(
        "attempt 5 of 4 ranks has no end: its supervisor (trainer-7, process 4711) is at work, or has died "
    )
    assert supervisor.endswith("; the newest sign of that is some time ago (U-3, U-4)")
    kinds = [fact["kind"] for fact in ckpt("explain", place, "--json").json["findings"]]
    assert kinds == ["resume", "next-claim", "attempt", "supervisor"]


def test_a_job_that_nobody_launches_again(ckpt: Ckpt, place: Path) -> None:
    run = Supervised(place)
    run.plan(0, "start")
    run.train(20, 4, {100: 600})
    run.end(700, 702, incident=blamed("hang", phase="save", step=120, message="silent for 600 s"))
    assert told_by(ckpt, place) == [
        "attempt 1 failed, some time ago: hang of rank 2 (trainer-7, slot 2) in save at step 120: silent for 600 s (R-77)",
        "no attempt has followed: its supervisor (trainer-7, process 4711) has given up, or has died; start it again (U-3, U-4)",
    ]


def test_of_several_nodes_they_are_named(ckpt: Ckpt, place: Path) -> None:
    of_nodes(place, "node-one", "node-two")
    (told,) = told_by(ckpt, place, status=1)
    assert told.startswith("attempt 1 of 4 ranks on node-one, node-two has no end: its supervisor (node-two, process 4711) is ")


def test_a_node_that_was_lost(ckpt: Ckpt, place: Path) -> None:
    run = of_nodes(place, "node-one", "node-two")
    run.end(10, 16, incident=AttemptIncident(kind="node", node="node-two", message="it has not answered for 6.0 s"))
    told = told_by(ckpt, place, status=1)[0]
    assert told == "attempt 1 failed, some time ago: loss of node node-two: it has not answered for 6.0 s (R-77)"
    assert "newest incident  loss of node node-two, " in re.sub(" {2,}", "  ", ckpt("status", place).out)


@pytest.mark.parametrize(
    ("ago", "due"),
    [
        (10_000, "no attempt has followed: its supervisor (trainer-7, process 4711) has given up, or has died; "),
        (
            10,
            "the next attempt is due: its supervisor (trainer-7, process 4711) is at work, or has just ended; if none follows, ",
        ),
    ],
)
def test_a_job_that_failed_again_and_again_is_to_be_mended_first(ckpt: Ckpt, place: Path, ago: int, due: str) -> None:
    run, then = Supervised(place), (datetime.now(UTC) - NOON).total_seconds() - ago
    run.plan(then - 90, "start")
    run.train(then - 80, 4, {100: then - 70})
    run.end(then - 60, then - 60, incident=blamed("exit"), committed="000001-000000000100-1")
    for start in (-50, -30, -10):
        run.plan(then + start, committed="000001-000000000100-1")
        run.end(then + start + 5, then + start + 5, incident=blamed("exit"), committed="000001-000000000100-1")
    told = told_by(ckpt, place)[-1]
    assert told == f"{due}the last 3 attempts have failed: mend what ended them, then start it again (U-3, U-4)"


@pytest.mark.parametrize(
    ("seconds", "outcome", "said"),
    [
        (10, None, "seems to be at work; the newest sign of that is some time ago"),
        (10, "failed", "the next attempt is due"),
        (10, "finished", "nobody supervises the job"),
        (10_000, "preempted", "nobody supervises the job"),
        (10_000, "lost", "no attempt has followed"),
    ],
)
def test_whether_a_supervisor_seems_to_be_at_work(ckpt: Ckpt, place: Path, seconds: int, outcome: str | None, said: str) -> None:
    now = (datetime.now(UTC) - NOON).total_seconds()
    run = Supervised(place)
    run.plan(now - seconds - 60, "start")
    run.train(now - seconds, 2, {10: now - seconds})
    if outcome is not None:
        incident = blamed("exit", message="no device") if outcome == "failed" else None
        run.end(now - seconds, now - seconds, outcome, incident=incident)
    assert said in told_by(ckpt, place)[-1]


def test_a_run_that_no_job_has_begun(ckpt: Ckpt, place: Path) -> None:
    never_begun(place)
    first, advice, attempt, _ = ckpt("explain", place, status=1).out.splitlines()
    assert first == "no run has begun here: the next start is a fresh one (P-5, U-8)"
    assert advice.startswith("its ranks end before they open the run")
    assert attempt.startswith("attempt 2 failed, ")
    assert attempt.endswith("in init: ModuleNotFoundError: No module named 'jax' (R-77)")
    assert ckpt("explain", place, "--json", status=1).json["resumable"] is False
