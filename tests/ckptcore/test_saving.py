"""The background half of a save: written, signed off, decided, or a clear error by a deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptcore import ledger, names, notes
from ckptcore.errors import CommitUnknown, SaveAborted, SaveFailed, StoreError, StoreFull, StoreUnavailable, Superseded
from ckptcore.events import Event
from ckptcore.history import History
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.proof import Refuted
from ckptcore.saving import GRACE, Saving
from ckptcore.store import Store
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, Job, check_commits, file_store


@pytest.fixture
def job(place: Path) -> Job:
    started = Job(file_store(place / "run"))
    started.open()
    return started


def saving(job: Job, generation: GenerationId, rank: int, store: Store | None = None, **more: Any) -> Saving:
    options: dict[str, Any] = {"timeout": 30.0, "keep": None, "metrics": None, "clock": FakeClock()}
    return Saving(store=store or job.store, shard=job.shard(generation, rank), **options | more)


def when(saved: Saving, action: Callable[[], object]) -> Saving:
    """Do something once, while `saved` waits for the first time."""
    clock = saved.clock
    assert isinstance(clock, FakeClock)

    def once() -> None:
        clock.on_sleep = lambda: None
        action()

    clock.on_sleep = once
    return saved


def test_both_ranks_learn_of_the_commit(job: Job) -> None:
    generation = job.next_generation(10)
    lead = saving(job, generation, 0)
    other = when(saving(job, generation, 1), lead.run)
    assert other.run() == ledger.read(job.store, job.coordinator().run_id, generation)
    assert other.clock.monotonic() < 1


def test_a_late_rank_is_named_by_the_deadline(job: Job) -> None:
    lead = saving(job, job.next_generation(10), 0)
    with pytest.raises(SaveAborted, match="no receipt from rank 1 of 2 within 30 s") as caught:
        lead.run()
    assert caught.value.missing == (1,)
    assert 30 <= lead.clock.monotonic() < 31


def test_the_other_ranks_learn_of_the_abort(job: Job) -> None:
    generation = job.next_generation(10)
    events: list[Event] = []
    other = saving(job, generation, 1, on_event=events.append)
    with pytest.raises(SaveAborted, match="decided by hand") as caught:
        when(other, lambda: job.coordinator().abort(generation, Refuted("decided by hand", (2,)))).run()
    assert caught.value.missing == (2,)
    assert events[-1] == Event("aborted", 1, generation, "decided by hand")


def test_no_decision_by_the_deadline_is_unknown_and_says_what_is_missing(job: Job) -> None:
    job.size = 3
    generation = job.next_generation(10)
    other = saving(job, generation, 2)
    with pytest.raises(CommitUnknown, match="no receipt from ranks 0, 1") as caught:
        other.run()
    assert "it may still become a checkpoint" in str(caught.value)
    assert 30 + GRACE <= other.clock.monotonic() < 40 + GRACE


def test_a_coordinator_that_does_not_decide_is_named(job: Job) -> None:
    generation = job.next_generation(10)
    job.write(generation, 0)
    with pytest.raises(CommitUnknown, match=r"all receipts are there, rank 0 .* has not decided"):
        saving(job, generation, 1).run()


def test_a_store_that_stops_answering_while_a_rank_waits(job: Job) -> None:
    generation = job.next_generation(10)
    silent = FaultyStore(job.store, lambda _, key: key.startswith(names.LEDGER), times=10**6)
    with pytest.raises(CommitUnknown, match="the store does not answer"):
        saving(job, generation, 1, silent).run()


def test_a_store_that_stops_answering_at_the_deadline(job: Job) -> None:
    """Whatever stops the look at what is missing, the outcome of the save is unknown."""
    generation = job.next_generation(10)
    silent = FaultyStore(job.store, lambda _, key: key == names.receipts_prefix(generation))
    with pytest.raises(CommitUnknown, match="the store does not answer"):
        saving(job, generation, 1, silent).run()
    assert silent.hits == 1


def test_a_short_silence_of_the_store_is_waited_out(job: Job) -> None:
    generation = job.next_generation(10)
    silent = FaultyStore(job.store, lambda _, key: key.startswith(names.LEDGER), times=3)
    lead = saving(job, generation, 0)
    assert when(saving(job, generation, 1, silent), lead.run).run().committed


def test_a_rank_that_cannot_write_makes_everybody_stop_at_once(job: Job) -> None:
    generation = job.next_generation(10)
    full = FaultyStore(job.store, lambda operation, _: operation == "sync", lambda: StoreFull("no room"))
    other = saving(job, generation, 1, full)
    with pytest.raises(SaveFailed, match="rank 1 could not write its part of 000001-000000000010-1: no room") as caught:
        other.run()
    assert isinstance(caught.value.__cause__, StoreFull)
    lead = saving(job, generation, 0)
    with pytest.raises(SaveAborted, match="rank 1: StoreFull: no room"):
        lead.run()
    assert lead.clock.monotonic() < 1
    assert job.save(20).committed


def test_rank_0_that_cannot_write_decides_at_once(job: Job) -> None:
    generation = job.next_generation(10)
    full = FaultyStore(job.store, lambda operation, _: operation == "sync", lambda: StoreFull("no room"))
    with pytest.raises(SaveFailed, match="no room"):
        saving(job, generation, 0, full).run()
    with pytest.raises(SaveAborted, match="rank 0 could not write its part: no room"):
        saving(job, generation, 1).run()


def test_trouble_before_the_first_byte_is_told_to_the_others_too(job: Job) -> None:
    generation = job.next_generation(10)
    silent = FaultyStore(job.store, lambda _, key: key == names.claim_key(2))
    with pytest.raises(SaveFailed, match="no answer") as caught:
        saving(job, generation, 1, silent).run()
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    lead = saving(job, generation, 0)
    with pytest.raises(SaveAborted, match="no answer"):
        lead.run()
    assert lead.clock.monotonic() < 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_superseded_job_is_told_to_stop(job: Job, rank: int) -> None:
    successor = Job(job.store)
    successor.open()
    events: list[Event] = []
    generation = job.next_generation(10)
    before = set(job.store.list())
    with pytest.raises(Superseded, match="another job runs on this run directory"):
        saving(job, generation, rank, on_event=events.append).run()
    assert [event.kind for event in events] == ["superseded"]
    assert set(job.store.list()) == before


def test_what_was_complete_when_a_successor_came_is_committed_by_it(job: Job) -> None:
    generation = job.next_generation(10)
    successor = Job(job.store)

    def succeed() -> None:
        job.write(generation, 0)
        assert successor.open().base_generation == generation

    assert when(saving(job, generation, 1), succeed).run().committed
    with pytest.raises(Superseded):
        saving(job, job.next_generation(20), 1).run()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_claim_that_appears_while_a_rank_waits_stops_it(job: Job, rank: int) -> None:
    events: list[Event] = []
    generation = job.next_generation(10)

    def claim() -> None:
        job.store.put_if_absent(names.claim_key(2), b"not settled yet")
        job.write(generation, 1 - rank)

    with pytest.raises(Superseded):
        when(saving(job, generation, rank, on_event=events.append), claim).run()
    assert events[-1].kind == "superseded"
    assert ledger.read(job.store, job.coordinator().run_id, generation) is None


def test_metrics_and_retention_come_after_the_commit(job: Job) -> None:
    for step in (10, 20, 30, 40):
        generation = job.next_generation(step)
        job.write(generation, 1)
        job.latest = saving(job, generation, 0, keep=Keep(last=2), metrics={"loss": 1 / step}).run()
    assert [generation.step for generation in check_commits(job.store)] == [40, 30]
    told = History.load(job.store).notes[GenerationId(1, 40, 1)]
    assert notes.metrics(told) == {"loss": 0.025}


def test_trouble_with_retention_does_not_undo_the_commit(job: Job) -> None:
    events: list[Event] = []
    generation = job.next_generation(10)
    job.write(generation, 1)
    broken = FaultyStore(job.store, lambda _, key: key == names.NOTES, times=10**6)
    saved = saving(job, generation, 0, broken, keep=Keep(last=2), on_event=events.append).run()
    assert saved.committed
    assert events[-1].kind == "collection-failed"
    assert "no answer" in events[-1].message


def silent_receipts(job: Job, generation: GenerationId, rank: int, **more: Any) -> FaultyStore:
    """A store that gives no answer about the put of a rank's receipt."""
    key = names.receipt_key(generation, rank)
    return FaultyStore(job.store, lambda operation, at: operation == "put_if_absent" and at == key, **more)


@pytest.mark.parametrize("after", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_receipt_without_an_answer_is_put_again(job: Job, rank: int, *, after: bool) -> None:
    generation = job.next_generation(10)
    store = silent_receipts(job, generation, rank, times=3, after=after)
    job.write(generation, 1 - rank)
    saved = saving(job, generation, rank, store)
    if rank == 1:
        clock = saved.clock
        assert isinstance(clock, FakeClock)
        clock.on_sleep = lambda: job.coordinator().conclude(generation) if store.inner.size(_receipt(generation)) else None
    assert saved.run().committed
    assert store.hits == 3


def _receipt(generation: GenerationId) -> str:
    return names.receipt_key(generation, 1)


@pytest.mark.parametrize("after", [False, True], ids=["lost", "applied"])
def test_who_never_learns_of_its_receipt_does_not_claim_that_the_save_failed(job: Job, *, after: bool) -> None:
    generation = job.next_generation(10)
    job.write(generation, 0)
    saved = saving(job, generation, 1, silent_receipts(job, generation, 1, times=10**6, after=after))
    with pytest.raises(CommitUnknown, match="it may still become a checkpoint"):
        saved.run()
    assert job.coordinator().conclude(generation).committed == after


def test_a_receipt_that_the_store_refuses_to_confirm_may_be_there(job: Job) -> None:
    generation = job.next_generation(10)
    job.write(generation, 1)
    refusing = silent_receipts(job, generation, 0, error=lambda: StoreError("injected: the credentials have expired"), after=True)
    assert saving(job, generation, 0, refusing).run().committed
    assert refusing.hits == 1


def test_a_receipt_that_the_store_refuses_is_followed_by_a_failed_one(job: Job) -> None:
    """P-32: nobody waits for the deadline when the store still takes the word that this rank failed."""
    generation = job.next_generation(10)
    refusing = silent_receipts(job, generation, 1, error=lambda: StoreError("injected: input/output error"), times=1)
    with pytest.raises(SaveFailed, match="input/output error"):
        saving(job, generation, 1, refusing).run()
    lead = saving(job, generation, 0)
    with pytest.raises(SaveAborted, match="rank 1: StoreError: injected: input/output error"):
        lead.run()
    assert lead.clock.monotonic() < 1
    assert job.save(20).committed


def test_a_short_silence_while_rank_0_polls_is_waited_out(job: Job) -> None:
    generation = job.next_generation(10)
    polled = FaultyStore(job.store, lambda operation, key: operation == "children" and "/receipts" in key, times=3)
    lead = when(saving(job, generation, 0, polled), lambda: job.write(generation, 1))
    assert lead.run().committed
    assert polled.hits == 3
    assert lead.clock.monotonic() < 1


def test_a_silence_up_to_the_deadline_is_unknown_and_the_next_save_settles_it(job: Job) -> None:
    first = job.next_generation(10)
    job.write(first, 1)
    silent = FaultyStore(job.store, lambda operation, key: operation == "children" and "/receipts" in key, times=10**6)
    with pytest.raises(CommitUnknown, match="the store did not answer: injected") as caught:
        saving(job, first, 0, silent).run()
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    assert ledger.read(job.store, job.coordinator().run_id, first) is None
    second = job.next_generation(20)
    job.write(second, 1)
    assert saving(job, second, 0).run().committed
    assert check_commits(job.store) == [second, first]


def test_what_stays_undecided_does_not_stop_the_next_save(job: Job) -> None:
    first = job.next_generation(10)
    job.write(first, 0)
    second = job.next_generation(20)
    job.write(second, 1)
    unreadable = FaultyStore(job.store, lambda _, key: f"{first}/receipts" in key, times=10**6)
    assert saving(job, second, 0, unreadable).run().committed
    assert ledger.read(job.store, job.coordinator().run_id, first) is None


def test_the_events_of_a_save(job: Job) -> None:
    events: list[Event] = []
    generation = job.next_generation(10)
    job.write(generation, 1)
    saving(job, generation, 0, on_event=events.append).run()
    kinds = [event.kind for event in events if event.kind != "chunk-written"]
    assert kinds == ["written", "receipt", "receipts-complete", "proven", "committed"]
    assert {event.generation for event in events} == {generation}
