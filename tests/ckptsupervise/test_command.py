"""`ckpt supervise` with real processes: killed, stopped, failing for good, preempted; supervisors killed, and two at a time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ckptcli import schemas
from ckptcli.app import main
from ckptcore.attempts import AttemptEnd
from ckptcore.names import GenerationId
from ckptsupervise import procfs
from tests.ckptsupervise.supervising import Supervised, supervised

pytestmark = [pytest.mark.whole, pytest.mark.timeout(120)]
PATIENT = 20.0
"""Seconds in which a machine that is busy notices what it should. How soon that is otherwise, `test_watching.py` tells."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path) as made:
        yield made


def seconds(end: AttemptEnd | None) -> float:
    """From the last sign of life to the detection."""
    assert end is not None
    assert end.last_sign is not None
    return (datetime.fromisoformat(end.detected) - datetime.fromisoformat(end.last_sign)).total_seconds()


def test_a_killed_rank_is_noticed_and_the_job_goes_on_from_its_newest_commit(job: Supervised) -> None:
    ckpt = job.start(40, [{"attempt": 1, "rank": 1, "step": 18, "do": "SIGKILL"}])
    assert ckpt.wait() == 0, ckpt.output
    first, second = job.attempts
    assert first.end is not None
    assert first.end.incident is not None
    assert (first.end.incident.kind, first.end.incident.rank, first.end.incident.status) == ("signal", 1, -9)
    assert seconds(first.end) < PATIENT
    assert second.plan.committed is not None
    committed = GenerationId.parse(second.plan.committed).step
    assert committed in (10, 15, 18), (
        "on a slow disk rank 0 has no time left for 15; told to end before it goes on it saves at 18"
    )
    assert f"attempt 2 of 2 ranks from step {committed}\n" in ckpt.output
    assert second.end is not None
    assert (second.end.outcome, job.head) == ("finished", 40)
    assert job.left() == []
    assert list(job.top.rglob("rank-*")) == []


def test_a_stopped_rank_is_found_and_its_stack_recorded(job: Supervised) -> None:
    ckpt = job.start(40, [{"attempt": 1, "rank": 1, "step": 12, "do": "SIGSTOP"}], "--deadline", "train=2s")
    assert ckpt.wait() == 0, ckpt.output
    end = job.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert (end.incident.kind, end.incident.rank, end.incident.phase) == ("hang", 1, "train")
    assert 2 <= seconds(end) < PATIENT
    assert "toy.py" in end.stack
    assert job.head == 40


def test_a_slot_that_always_fails_is_dropped_and_comes_back(job: Supervised) -> None:
    faults = [{"attempt": each, "slot": 1, "step": 3 + each, "do": "exit"} for each in (1, 2)]
    ckpt = job.start(300, faults, "--min-nproc", "1", "--grow-after", "4s", every=50)
    assert ckpt.wait() == 0, ckpt.output
    attempts = job.attempts
    assert [each.plan.slots for each in attempts] == [[0, 1], [0, 1], [0], [0, 1]]
    assert [each.plan.cause for each in attempts] == ["start", "restart", "shrunk", "grown"]
    assert [each.end and each.end.outcome for each in attempts] == ["failed", "failed", "resized", "finished"]
    assert attempts[0].end
    assert attempts[0].end.incident
    assert "RuntimeError: this was to be expected" in attempts[0].end.incident.message
    assert "RuntimeError: this was to be expected" in ckpt.output, "what ranks write to standard error is passed on"
    assert job.head == 300


def test_a_slow_rank_is_told_of_and_drained_if_that_is_wanted(tmp_path: Path) -> None:
    """Two jobs at a time, since each of them is watched for three windows of ten seconds."""
    (tmp_path / "warned").mkdir()
    (tmp_path / "drained").mkdir()
    faults, options = [{"slot": 1, "do": "slow"}], ("--min-nproc", "2", "--grow-after", "1h")
    with supervised(tmp_path / "warned") as warned, supervised(tmp_path / "drained") as drained:
        told = warned.start(10_000, faults, *options, nproc=3, every=50, seconds=0.1)
        ckpt = drained.start(150, faults, *options, "--drain", nproc=3, every=50, seconds=0.1)
        told.wait_for("rank 1 takes", timeout=100)
        assert ckpt.wait(timeout=100) == 0, ckpt.output
        told.send(signal.SIGTERM)
        assert told.wait() == 143, told.output
        first, second = drained.attempts
        assert first.end is not None
        assert first.end.incident is not None
        slow = first.end.incident
        assert (first.end.outcome, slow.kind, slow.rank, slow.slot) == ("failed", "straggler", 1, 1)
        assert (second.plan.cause, second.plan.slots) == ("shrunk", [0, 2])
        assert second.resumed is not None
        assert second.resumed.restored_step == first.end.last_step, "it was saved before it was drained: nothing is lost"
        assert second.end is not None
        assert (second.end.outcome, drained.head) == ("finished", 150)
        assert "rank 1 is slow: the job saves, and goes on without its slot" in ckpt.output
        (only,) = warned.attempts
        assert only.end is not None
        assert (only.end.outcome, only.end.incident) == ("preempted", None), "without --drain it is told of, and that is all"
        assert "goes on without its slot" not in told.output
        assert [warned.left(), drained.left()] == [[], []]


def test_sigterm_saves_and_ends(job: Supervised) -> None:
    ckpt = job.start(10_000, every=100_000)
    ckpt.wait_for("training is at step")
    ckpt.send(signal.SIGTERM)
    assert ckpt.wait() == 143, ckpt.output
    (attempt,) = job.attempts
    assert attempt.end is not None
    assert (attempt.end.outcome, attempt.end.incident) == ("preempted", None)
    assert attempt.end.committed is not None
    assert job.head > 0
    assert job.left() == []


def test_a_job_that_never_commits_is_given_up_with_an_explanation(job: Supervised) -> None:
    ckpt = job.start(40, [{"rank": 0, "step": 3, "do": "exit"}], "--max-restarts", "2")
    assert ckpt.wait() == 1, ckpt.output
    assert len(job.attempts) == 3
    assert "2 restarts without a newly committed step" in ckpt.output
    assert "nothing was ever committed" in ckpt.output
    assert "no save was begun since" in ckpt.output
    assert "attempt 3: exit, rank 0 on slot 0" in ckpt.output


@pytest.mark.parametrize("moment", ["attempt 1: 2 ranks", "attempt 1 of 2 ranks from step 0", "training is at step", "has ended"])
def test_a_supervisor_killed_at_any_moment_leaves_nothing_and_the_next_one_goes_on(job: Supervised, moment: str) -> None:
    faults = [{"attempt": 1, "rank": 0, "step": 7, "do": "spawn"}, {"attempt": 1, "rank": 1, "step": 30, "do": "SIGKILL"}]
    ckpt = job.start(60, faults, every=20)
    ckpt.wait_for(moment)
    ckpt.send(signal.SIGKILL)
    assert ckpt.wait() == -signal.SIGKILL
    job.wait_until_none_is_left()
    again = job.start(60, every=20)
    assert again.wait() == 0, again.output
    first, *_, last = job.attempts
    assert first.end is not None
    assert first.end.outcome in ("lost", "failed")
    assert last.plan.cause in ("resumed-supervisor", "start")
    assert job.head == 60
    assert job.left() == []


def test_two_supervisors_do_not_fight(job: Supervised) -> None:
    first = job.start(10_000, seconds=0.1)
    first.wait_for("training is at step")
    second = job.start(200, every=50)
    assert second.wait() == 0, second.output
    assert first.wait() == 6, first.output
    assert "has the run" in first.output
    assert job.head == 200
    assert job.left() == []


def test_a_second_signal_ends_at_once(job: Supervised) -> None:
    ckpt = job.start(10_000, [{"rank": 0, "step": 20, "do": "SIGSTOP"}])
    ckpt.wait_for("training is at step")
    ckpt.send(signal.SIGTERM)
    ckpt.wait_for("told to stop")
    ckpt.send(signal.SIGTERM)
    assert ckpt.wait(timeout=30) == 143, ckpt.output
    assert job.left() == []


def test_what_ranks_leave_behind_is_ended(job: Supervised) -> None:
    ckpt = job.start(20, [{"rank": 1, "step": 7, "do": "spawn"}])
    spawned = int(ckpt.wait_for("spawned").split()[-1])
    assert ckpt.wait() == 0, ckpt.output
    found = procfs.look(spawned)
    assert found is None or found.state == "Z"


def test_json_lines(job: Supervised) -> None:
    ckpt = job.start(20, [], "--json", apart=True)
    assert ckpt.wait() == 0, ckpt.output
    told = [json.loads(line) for line in ckpt.output.splitlines()]
    assert [each["event"] for each in told] == ["launched", "recovered", "ended", "finished"]
    schema = Draft202012Validator(schemas.schema("supervise"))
    for each in told:
        schema.validate(each)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--deadline", "compile=3s"], "expected PHASE=SPAN"),
        (["--nnodes", "2", "--min-nnodes", "3"], "expected 1 ≤ min_nnodes ≤ nnodes"),
        (["--nnodes", "2", "--silence", "1s"], "expected 2s at least"),
        (["--nnodes", "2", "--node", "n" * 201], "201 characters; expected 200 at most"),
        (["--deadline", "train"], "expected a span of time"),
        (["--grace", "long"], "--grace 'long'"),
        (["--min-nproc", "3"], "1 ≤ min_nproc ≤ nproc"),
        (["--min-nnodes", "2"], "1 ≤ min_nnodes ≤ nnodes"),
        (["--nnodes", "2", "--address", "192.0.2.1"], "--address 192.0.2.1: this node cannot listen there"),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    run = ["--run", str(tmp_path / "run"), "--nproc", "2"]
    assert main(["supervise", *run, *arguments, "--", "true"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
