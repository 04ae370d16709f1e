"""A rollback by hand: an incarnation without a job (spec: P-23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import names
from ckptcore.errors import Damaged, StoreUnavailable, Superseded
from ckptcore.filestore import FileStore
from ckptcore.history import History, read_base
from ckptcore.incarnations import undecided
from ckptcore.names import GenerationId
from ckptcore.operate.rollback import NO_JOB, plan, roll_back
from ckptcore.run import Run
from ckptcore.store import Storage
from tests.ckptcore.failing import Died, DyingStore, FaultyStore
from tests.ckptcore.support import FACTS, FakeClock, Job, check_commits, contents, file_store

FIRST, SECOND, THIRD = (GenerationId(1, step, 1) for step in (10, 20, 30))


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def train(store: FileStore, *steps: int) -> Job:
    job = Job(store)
    job.open()
    for step in steps:
        job.save(step)
    return job


def test_the_base_is_what_was_chosen(store: FileStore) -> None:
    train(store, 10, 20, 30)
    made = roll_back(store, 20, clock=FakeClock())
    assert (made.number, made.base_generation, made.base.reason, made.base.guarantee) == (2, SECOND, "chosen", None)
    assert made.claim.topology == NO_JOB
    assert made.base.store.put_if_absent, "the store was probed"
    assert History.load(store).head() == History.load(store).decided(SECOND)
    assert list(store.list("probe/")) == []


def test_what_would_be_left_behind(store: FileStore, place: Path) -> None:
    train(store, 10, 20, 30)
    second = train(store, 40)
    before = contents(place)
    planned = plan(store, THIRD)
    assert (planned.head, planned.strays) == (GenerationId(2, 40, 1), (GenerationId(2, 40, 1),))
    assert planned.claim is not None
    assert planned.claim.incarnation == second.number
    assert plan(store, 10).strays == (GenerationId(2, 40, 1), THIRD, SECOND)
    assert contents(place) == before
    roll_back(store, 10)
    assert plan(store, 30).strays == ()
    assert plan(store, 10).head == FIRST


def test_a_running_job_stops(store: FileStore) -> None:
    job = train(store, 10, 20)
    generation = job.next_generation(30)
    for rank in (0, 1):
        job.write(generation, rank)
    roll_back(store, 10)
    assert undecided(store) == [], "what it had delivered was settled"
    late = job.next_generation(40)
    for rank in (0, 1):
        job.write(late, rank)
    with pytest.raises(Superseded):
        job.coordinator().conclude(late)


def test_an_error_says_that_the_claim_may_stand(store: FileStore) -> None:
    train(store, 10, 20)
    silent = FaultyStore(store, lambda operation, key: (operation, key) == ("put_if_absent", names.base_key(2)))
    with pytest.raises(StoreUnavailable) as caught:
        roll_back(silent, 10, probe=lambda *_, **__: FACTS)
    assert "An incarnation may have been claimed" in caught.value.__notes__[0]
    assert roll_back(store, 10).number == 3


@pytest.mark.slow
def test_killed_at_any_moment_the_run_goes_on_from_one_or_the_other(place: Path) -> None:
    moment, done = 0, False
    while not done:
        moment += 1
        store = file_store(place / f"run-{moment}")
        train(store, 10, 20)
        try:
            roll_back(DyingStore(store, moment), 10, probe=lambda *_, **__: FACTS)
            done = True
        except Died:
            pass
        rolled = read_base(store, History.load(store).run.run_id, 2) is not None
        assert Job(store).open().base_generation == (FIRST if rolled else SECOND)
        assert check_commits(store) == [SECOND, FIRST]
    assert moment > 2


def test_a_run_that_has_only_strays_left_names_them(store: FileStore) -> None:
    """What a rollback left behind is no resume point, but it may be the last that is whole."""
    train(store, 10, 20)
    Job(store).open(FIRST)
    Run(store, Storage()).quarantine(FIRST, "it was not the data after all")
    with pytest.raises(
        Damaged, match=r"Left behind, and not marked: 000001-000000000020-1\. Restore one by hand \(`ckpt rollback"
    ):
        Job(store).open()
    assert Job(store).open(SECOND).base_generation == SECOND
