"""What the next start would do, as it is told beforehand, is what it then does; and nothing is written to tell it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ckptcore import forks, ledger, names, notes
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, StoreUnavailable
from ckptcore.history import History
from ckptcore.incarnations import Incarnation
from ckptcore.inspect.explaining import Outlook, outlook
from ckptcore.names import GenerationId
from ckptcore.store import Storage
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import Job, contents, file_store, manifest


def told(place: Path) -> Outlook:
    before = contents(place)
    found = outlook(file_store(place), Storage())
    assert contents(place) == before
    return found


def kinds(found: Outlook) -> list[tuple[str, int | None]]:
    return [
        (each.kind, each.generation.step if each.generation else None) for each in found.findings if each.kind != "next-claim"
    ]


def started(place: Path) -> Incarnation:
    return Job(file_store(place)).open()


@pytest.fixture
def job(place: Path) -> Job:
    opened = Job(file_store(place))
    opened.open()
    opened.save(10)
    opened.save(20)
    return opened


def test_a_whole_head(job: Job, place: Path) -> None:
    found = told(place)
    assert kinds(found) == [("resume", 20)]
    assert found.answer.clause == "P-15, P-20"
    assert "the next start claims incarnation 2; a job of incarnation 1 that still runs must stop then" in found.findings[-1].text
    assert found.generation == started(place).base_generation
    assert job.number == 1


def test_a_save_without_all_receipts_is_told_by_rank(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    job.write(late, 0)
    found = told(place)
    assert kinds(found) == [("resume", 20), ("abort", 30), ("missing-receipt", 30)]
    missing = found.findings[2]
    assert (missing.rank, missing.key, missing.clause) == (1, names.receipt_key(late, 1), "P-12, P-35.1")
    assert "nothing of it is there" in missing.text
    assert started(place).base_generation == found.generation


def test_data_without_a_receipt_is_not_enough(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    for rank in (0, 1):
        job.write(late, rank)
    (place / names.receipt_key(late, 1)).unlink()
    assert "it began to write, and only a receipt vouches for data" in told(place).findings[2].text
    assert started(place).base.settled[0].decision == "abort"


def test_no_receipt_at_all(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    for rank in (0, 1):
        job.write(late, rank)
        (place / names.receipt_key(late, rank)).unlink()
    assert [each.rank for each in told(place).findings if each.kind == "missing-receipt"] == [0, 1]


def test_a_complete_save_is_rolled_forward(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    for rank in (0, 1):
        job.write(late, rank)
    found = told(place)
    assert kinds(found) == [("resume", 30), ("roll-forward", 30)]
    assert found.answer.clause == "P-11, P-20"
    base = started(place).base
    assert (base.generation, base.reason) == (str(late), "rolled-forward")


def test_a_lost_file_of_an_undecided_save(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    for rank in (0, 1):
        job.write(late, rank)
    file = next(
        path
        for path in sorted((place / names.state_prefix(late) / "ranks").rglob("*"))
        if path.is_file() and "/00001-" in str(path)
    )
    file.unlink()
    damaged = next(each for each in told(place).findings if each.kind == "damaged")
    assert (damaged.rank, damaged.key, damaged.clause) == (1, str(file.relative_to(place)), "P-12, P-35.8")
    assert started(place).base.settled[0].decision == "abort"


def test_a_damaged_head_is_passed_over(job: Job, place: Path) -> None:
    next((place / names.generation_prefix(GenerationId(1, 20, 1)) / "values").iterdir()).unlink()
    found = told(place)
    assert kinds(found) == [("resume", 10), ("passed-over", 20)]
    assert found.findings[1].clause == "P-15"
    assert "values/00000.json is missing" in found.findings[1].text
    base = started(place).base
    assert (base.generation, base.reason) == ("000001-000000000010-1", "fallen-back")
    assert job.number == 1


def test_nothing_usable_stops_the_start(job: Job, place: Path) -> None:
    for step in (10, 20):
        notes.write(job.store, manifest_run(job), GenerationId(1, step, 1), "quarantine", clock=Clock(), text="spike")
    found = told(place)
    assert kinds(found) == [("stop", None), ("passed-over", 20), ("passed-over", 10)]
    assert found.answer.clause == "P-17"
    with pytest.raises(CheckpointError):
        started(place)


def manifest_run(job: Job) -> str:
    assert job.incarnation is not None
    return job.incarnation.run.run_id


def test_a_lost_base_stops_the_start(job: Job, place: Path) -> None:
    (place / names.base_key(1)).unlink()
    found = told(place)
    assert kinds(found) == [("stop", None), ("lost-base", None)]
    assert found.answer.clause == "P-20"
    assert names.base_key(1) in found.answer.text
    with pytest.raises(CheckpointError):
        started(place)
    assert job.number == 1


def test_a_claim_without_a_base(job: Job, place: Path) -> None:
    claimed = Job(file_store(place))
    opening = claimed.open()
    (place / names.base_key(2)).unlink()
    found = told(place)
    assert kinds(found) == [("resume", 20), ("opening", None)]
    assert found.findings[1].clause == "P-18"
    assert (opening.number, job.number) == (2, 1)


def test_what_nobody_can_determine_stops_the_start(job: Job, place: Path) -> None:
    late = job.next_generation(30)
    for rank in (0, 1):
        job.write(late, rank)
    store = FaultyStore(file_store(place), lambda _, key: key == names.values_key(late, 0), times=2)
    found = outlook(store, Storage())
    assert kinds(found) == [("stop", None), ("undetermined", 30)]
    assert (found.answer.clause, found.findings[1].clause) == ("P-13", "P-13")
    with pytest.raises(StoreUnavailable):
        Job(store).open()


def test_a_record_of_a_newer_format_stops_the_start(job: Job, place: Path) -> None:
    key = place / names.ledger_key(GenerationId(1, 20, 1))
    key.write_bytes(key.read_bytes().replace(b'"version":"1.0"', b'"version":"2.0"'))
    assert told(place).answer.clause == "P-25"
    with pytest.raises(CheckpointError):
        started(place)
    assert job.number == 1


def test_a_run_without_checkpoints(place: Path) -> None:
    Job(file_store(place)).open()
    found = told(place)
    assert kinds(found) == [("begin", None)]
    assert "fresh" in found.answer.text


def test_a_fork_begins_from_its_parent(job: Job, place: Path) -> None:
    assert job.latest is not None
    parent = forks.parent_record(job.store, job.latest, list(manifest(job.latest).components), clock=Clock())
    forks.create(file_store(place / "child"), parent, clock=Clock())
    found = told(place / "child")
    assert kinds(found) == [("begin", None)]
    assert "from generation 000001-000000000020-1 of file://" in found.answer.text
    notes.write(job.store, manifest_run(job), GenerationId(1, 20, 1), "quarantine", clock=Clock(), text="spike")
    found = told(place / "child")
    assert (found.answer.kind, found.answer.clause) == ("stop", "O-19")
    assert "is marked quarantine: spike" in found.answer.text


# Any run that comes about


def act(place: Path, job: Job, chance: random.Random, step: int) -> Job:
    """One more thing that happens to a run."""
    store = file_store(place)
    history = History.load(store)
    commits = [decided.generation for decided in history.commits()]
    what = chance.choice(["save", "save", "part", "whole", "mark", "retire", "lose", "restart", "rollback"])
    if what == "save":
        job.save(step)
    elif what in ("part", "whole"):
        generation = job.next_generation(step)
        for rank in range(1 if what == "part" else 2):
            job.write(generation, rank)
    elif what == "mark" and commits:
        notes.write(store, history.run.run_id, chance.choice(commits), "quarantine", clock=Clock(), text="x")
    elif what == "retire" and len(commits) > 1:
        decided = history.decided(chance.choice(commits[1:]))
        assert decided is not None
        ledger.retire(store, decided, "policy", clock=Clock())
    elif what == "lose" and commits:
        files = sorted(
            path for path in (place / names.generation_prefix(chance.choice(commits))).rglob("*.json") if path.is_file()
        )
        chance.choice(files).unlink() if files else None
    elif what in ("restart", "rollback"):
        return restarted(place, job, chance.choice(commits) if commits and what == "rollback" else None)
    return job


def restarted(place: Path, job: Job, choose: GenerationId | None) -> Job:
    following = Job(file_store(place))
    try:
        following.open(choose)
    except CheckpointError:
        return job
    return following


@pytest.mark.parametrize("seed", range(12))
def test_it_comes_as_it_was_told(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    job = Job(file_store(place))
    job.open()
    for step in range(10, 10 + 10 * chance.randint(2, 9), 10):
        try:
            job = act(place, job, chance, step)
        except CheckpointError:
            continue  # a superseded job, a damaged one: that is how runs are
    found = told(place)
    verdicts = {
        str(each.generation): "commit" if each.kind == "roll-forward" else "abort"
        for each in found.findings
        if each.kind in ("roll-forward", "abort")
    }
    try:
        base = started(place).base
    except CheckpointError:
        assert found.answer.kind == "stop"
        return
    assert base.generation == (None if found.generation is None else str(found.generation))
    assert {each.generation: each.decision for each in base.settled} == verdicts
    passed = {str(each.generation) for each in found.findings if each.kind == "passed-over"}
    assert passed == {each.generation for each in base.skipped} - verdicts.keys()


def test_a_base_that_is_missed_once_its_save_is_settled(job: Job, place: Path) -> None:
    """Before that, the claim without a base says nothing: its job may have died while it opened."""
    following = Job(file_store(place))
    following.open()
    late = following.next_generation(30)
    for rank in (0, 1):
        following.write(late, rank)
    (place / names.base_key(2)).unlink()
    found = told(place)
    assert kinds(found)[:2] == [("stop", None), ("roll-forward", 30)]
    assert found.answer.clause == "P-20"
    with pytest.raises(CheckpointError, match="is missing, although incarnation 2 has saves"):
        started(place)
    assert job.number == 1
