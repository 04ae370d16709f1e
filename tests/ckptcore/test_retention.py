"""Retention and collection: what is needed is never deleted, what is not needed is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.errors import CallError, Damaged, StoreUnavailable
from ckptcore.events import Event
from ckptcore.filestore import FileStore
from ckptcore.history import History
from ckptcore.incarnations import stored, undecided
from ckptcore.keep import Best, Keep
from ckptcore.names import GenerationId
from ckptcore.retention import Collected, Collector, pinned, referenced
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, Job, check_commits, contents, file_store, flip, state


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def job(store: FileStore, *steps: int, choose: GenerationId | None = None) -> Job:
    started = Job(store)
    started.open(choose)
    for step in steps:
        assert started.save(step).committed
    return started


def collect(store: Any, keep: Keep | None, incarnation: int | None = None, **more: Any) -> Collected:
    return Collector(store, incarnation, FakeClock(), **more).collect(keep)


def steps(store: FileStore) -> list[int]:
    """The steps that are left, all of them whole."""
    left = [generation.step for generation in check_commits(store)][::-1]
    assert [generation.step for generation in stored(store)] == left
    return left


def note(store: FileStore, step: int, **what: Any) -> None:
    notes.annotate(store, History.load(store).run.run_id, GenerationId(1, step, 1), clock=Clock(), **what)


def mark(store: FileStore, generation: GenerationId, kind: str) -> None:
    notes.write(store, History.load(store).run.run_id, generation, kind, clock=Clock(), text="by the test")


def test_the_newest_are_kept(store: FileStore) -> None:
    job(store, *range(10, 70, 10))
    events: list[Event] = []
    found = collect(store, Keep(last=2), 1, on_event=events.append)
    assert [generation.step for generation in found.retired] == [10, 20, 30, 40]
    assert found.deleted == found.retired
    assert steps(store) == [50, 60]
    assert [event.generation for event in events if event.kind == "retired"] == list(found.retired)
    assert all(ledger.is_retired(store, generation) for generation in found.retired)
    assert collect(store, Keep(last=2), 1) == Collected()


def test_ledger_records_stay(store: FileStore) -> None:
    job(store, 10, 20, 30, 40)
    before = {key: store.get(key) for key in store.list(names.LEDGER)}
    collect(store, Keep(last=2), 1)
    assert {key: store.get(key) for key in before} == before


def test_a_dry_run_tells_the_same_and_changes_nothing(store: FileStore, place: Path) -> None:
    job(store, 10, 20, 30, 40)
    started = job(store, 50)
    started.write(started.next_generation(60), 0)
    before = contents(place)
    plan = Collector(store, started.number).collect(Keep(last=2), dry_run=True)
    assert contents(place) == before
    assert collect(store, Keep(last=2), started.number) == plan


def test_tags_pins_and_multiples_are_kept(store: FileStore) -> None:
    job(store, *range(10, 90, 10))
    note(store, 20, tags=["good"])
    note(store, 30, pin="in a paper")
    collect(store, Keep(last=2, every=40), 1)
    assert steps(store) == [20, 30, 40, 70, 80]


def test_the_best_are_kept_and_never_push_out_the_newest(store: FileStore) -> None:
    job(store, 10, 20, 30, 40, 50)
    for step, loss in ((10, 0.1), (20, 0.2), (30, 0.3), (40, 0.4), (50, 9.9)):
        note(store, step, metrics={"loss": loss})
    collect(store, Keep(last=2, best=Best("loss", 1)), 1)
    assert steps(store) == [10, 40, 50]


def test_weights_have_their_own_budget(store: FileStore) -> None:
    started = job(store, 10, 20, 30)
    for step in (31, 32, 33, 34):
        started.save(step, guarantee="weights")
    collect(store, Keep(last=2, weights=1), 1)
    assert steps(store) == [20, 30, 34]


def test_quarantined_ones_fill_no_place(store: FileStore) -> None:
    job(store, 10, 20, 30, 40, 50)
    for step in (40, 50):
        mark(store, GenerationId(1, step, 1), "quarantine")
    collect(store, Keep(last=2), 1)
    assert steps(store) == [20, 30, 40, 50]


def test_the_head_is_kept_after_a_rollback(store: FileStore) -> None:
    job(store, *range(10, 70, 10))
    rolled = job(store, choose=GenerationId(1, 20, 1))
    collect(store, Keep(last=2), rolled.number)
    assert steps(store) == [10, 20, 30, 40, 50, 60], "the strays are newer than what counts"
    assert pinned(History.load(store)) == {GenerationId(1, 20, 1)}


def test_the_base_of_a_job_is_kept_while_the_job_lives(store: FileStore) -> None:
    job(store, 10, 20)
    started = job(store, 30, 40, 50)
    collect(store, Keep(last=2), started.number)
    assert steps(store) == [20, 40, 50]
    later = job(store, 60, 70)
    collect(store, Keep(last=2), later.number)
    assert steps(store) == [50, 60, 70]


def test_a_base_that_appears_during_the_collection_is_kept(store: FileStore) -> None:
    """Somebody rolls back to a generation right when its retirement is on record: one of the two sees the other."""
    job(store, 10, 20, 30, 40)
    started: list[Job] = []

    def roll_back(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.retired_key(GenerationId(1, 10, 1)) and not started:
            started.append(job(store, choose=GenerationId(1, 10, 1)))
        return False

    collect(FaultyStore(store, roll_back), Keep(last=2), 1)
    assert ledger.is_retired(store, GenerationId(1, 10, 1))
    assert 10 in [generation.step for generation in stored(store)]


def test_a_base_that_was_retired_is_kept_until_there_is_a_newer_one(store: FileStore) -> None:
    job(store, 10, 20, 30, 40)
    first = GenerationId(1, 10, 1)
    rolled = job(store, choose=first)
    decided = ledger.read(store, History.load(store).run.run_id, first)
    assert decided is not None
    ledger.retire(store, decided, "by the collector of the job before", clock=Clock())
    collect(store, Keep(last=2), rolled.number)
    again = job(store)
    assert again.latest == decided
    for step in (11, 12):
        again.save(step)
    assert first not in collect(store, Keep(last=2), again.number).deleted
    collected = collect(store, Keep(last=2), job(store).number)
    assert first in collected.deleted


@pytest.mark.parametrize("what", [{"tags": ["good"]}, {"pin": "a paper"}])
def test_what_is_pinned_or_tagged_during_the_collection_is_kept(store: FileStore, what: dict[str, Any]) -> None:
    """Right before its retirement is on record: nobody is told that the note came too late, so it must not be."""
    job(store, 10, 20, 30, 40)

    def pin(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.retired_key(GenerationId(1, 10, 1)):
            note(store, 10, **what)
        return False

    for _ in range(2):
        assert GenerationId(1, 10, 1) not in collect(FaultyStore(store, pin), Keep(last=2), 1).deleted
    assert [generation.step for generation in stored(store)] == [10, 30, 40]


def test_a_malformed_metric_stops_no_collection(store: FileStore) -> None:
    started = job(store, 10, 20, 30, 40)
    run_id = started.coordinator().run_id
    bad = records.Note(
        run_id=run_id, generation="000001-000000000040-1", kind="metrics", created=Clock().utc(), metrics={"loss": "x"}
    )
    store.put_if_absent(names.note_key(GenerationId(1, 40, 1), "metrics-0"), records.encode(bad))
    note(store, 10, metrics={"loss": 1.0})
    collect(store, Keep(last=2, best=Best("loss", 1)), 1)
    assert steps(store) == [10, 30, 40]


def test_a_collection_reads_decisions_and_bases_once(store: FileStore) -> None:
    job(store, 10, 20)
    started = job(store, 30, 40)
    read: list[str] = []

    def watch(operation: str, key: str) -> bool:
        if operation == "get" and key.startswith((names.LEDGER, names.INCARNATIONS)):
            read.append(key)
        return False

    collect(FaultyStore(store, watch), Keep(last=4), started.number)
    assert sorted(read) == sorted(set(read))
    assert len([key for key in read if key.startswith(names.LEDGER)]) == 4


def test_what_a_component_refers_to_is_kept(store: FileStore) -> None:
    started = job(store, 10)
    started.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    for step in (20, 30, 40, 50):
        started.save(step, unchanged=("params",))
    assert referenced(History.load(store)) == {GenerationId(1, 10, 1)}
    collect(store, Keep(last=2), 1)
    assert steps(store) == [10, 40, 50]
    started.state_of = state
    for step in (60, 70):
        started.save(step)
    for left in ([10, 60, 70], [60, 70]):
        collect(store, Keep(last=2), 1)
        assert steps(store) == left


def test_aborted_saves_are_deleted(store: FileStore) -> None:
    started = job(store, 10)
    generation = started.next_generation(20)
    started.write(generation, 0)
    started.coordinator().commit(generation, 2, timeout=1.0)
    assert collect(store, None, 1).deleted == (generation,)
    assert steps(store) == [10]


def test_undecided_saves_of_the_newest_incarnation_are_its_own_business(store: FileStore) -> None:
    started = job(store, 10, 20, 30)
    generation = started.next_generation(40)
    for rank in (0, 1):
        started.write(generation, rank)
    for incarnation in (1, None):
        assert collect(store, Keep(last=2), incarnation).aborted == ()
    assert undecided(store) == [generation]
    assert started.coordinator().conclude(generation).committed


def test_what_a_superseded_job_leaves_behind_is_aborted_before_it_is_deleted(store: FileStore) -> None:
    old = job(store, 10)
    new = job(store, 20)
    left = old.next_generation(99)
    for rank in (0, 1):
        old.write(left, rank)
    assert collect(store, None, None).aborted == ()
    assert collect(store, None, old.number).aborted == ()
    found = collect(store, None, new.number)
    assert (found.aborted, found.deleted) == ((left,), (left,))
    decided = ledger.read(store, History.load(store).run.run_id, left)
    assert decided is not None
    assert not decided.committed


def test_what_comes_late_into_a_deleted_folder_is_deleted_too(store: FileStore) -> None:
    started = job(store, 10, 20, 30)
    collect(store, Keep(last=2), 1)
    store.put_if_absent(f"{names.generation_prefix(GenerationId(1, 10, 1))}receipts/00007.json", b"late")
    assert collect(store, None, 1).deleted == (GenerationId(1, 10, 1),)
    assert started.number == 1


def test_nothing_is_collected_while_a_decision_cannot_be_read(store: FileStore, place: Path) -> None:
    """It may refer to what would be deleted."""
    job(store, 10, 20, 30, 40)
    flip(Path(store.root) / names.ledger_key(GenerationId(1, 40, 1)), 0)
    before = contents(place)
    with pytest.raises(Damaged, match="nothing is collected"):
        collect(store, Keep(last=2), 1)
    assert contents(place) == before


def test_a_retired_record_of_another_run_or_of_garbage_deletes_nothing(store: FileStore, place: Path) -> None:
    job(store, 10, 20, 30)
    other = file_store(place / "other")
    started = job(other, 10)
    assert started.latest is not None
    ledger.retire(other, started.latest, "old", clock=Clock())
    key = names.retired_key(GenerationId(1, 10, 1))
    store.put_if_absent(key, other.get(key) or b"")
    store.put_if_absent(names.retired_key(GenerationId(1, 20, 1)), b"")
    assert collect(store, None, 1) == Collected()
    assert 10 in [generation.step for generation in stored(store)]


def test_two_collections_at_a_time(store: FileStore) -> None:
    job(store, *range(10, 60, 10))
    first = Collector(store, 1, FakeClock())
    first.collect(Keep(last=3))
    assert collect(store, Keep(last=2), None).retired == (GenerationId(1, 30, 1),)
    assert steps(store) == [40, 50]


def test_no_commit_is_deleted_while_a_job_opens(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    """Its base may be what is retired meanwhile: then the run goes on from there, and its data must be there."""
    started = job(store, 10, 20, 30, 40)
    claimed: list[Job] = []

    def open_meanwhile(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.retired_key(GenerationId(1, 10, 1)) and not claimed:
            claimed.append(Job(FaultyStore(store, base_is_late)))
            with pytest.raises(StoreUnavailable):
                claimed[0].open(GenerationId(1, 10, 1))
        return False

    def base_is_late(operation: str, key: str) -> bool:
        return operation == "put_if_absent" and key == names.base_key(2)

    found = collect(FaultyStore(store, open_meanwhile), Keep(last=2), 1)
    assert [generation.step for generation in found.retired] == [10, 20]
    assert found.deleted == ()
    assert "kept as long as incarnation 2, which was claimed, has recorded no base" in caplog.text
    assert [generation.step for generation in stored(store)] == [10, 20, 30, 40]
    Job(store).open()
    assert [generation.step for generation in collect(store, Keep(last=2), 3).deleted] == [10, 20], "the next one does it"
    assert started.number == 1


def test_what_a_retired_base_refers_to_is_kept(store: FileStore) -> None:
    """The collector of a superseded job retires the base of a rollback, and what holds a component of it."""
    started = Job(store)
    started.open()
    started.save(10)
    started.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    started.save(20, unchanged=("params",))
    started.state_of = state
    for step in (30, 40):
        started.save(step)
    run_id, base = started.coordinator().run_id, GenerationId(1, 20, 1)
    Job(store).open(base)
    for step in (10, 20):
        decided = ledger.read(store, run_id, GenerationId(1, step, 1))
        assert decided is not None
        ledger.retire(store, decided, "by the job before", clock=Clock())
    assert collect(store, Keep(last=2), 1).deleted == ()
    again = Job(store)
    assert again.open().base_generation == base


def test_what_an_undecided_save_refers_to_is_kept(store: FileStore) -> None:
    """Its proof may have read that there is no retired record, right before there was one (spec: K-7)."""
    started = Job(store)
    started.open()
    started.save(10)
    started.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    undecided = started.next_generation(20)
    for rank in (1, 0):
        started.write(undecided, rank, unchanged=("params",))
    started.state_of = state
    for step in (30, 40):
        started.save(step)
    found = collect(store, Keep(last=2), 1)
    assert [generation.step for generation in found.retired] == [10]
    assert found.deleted == ()
    assert not started.coordinator().conclude(undecided).committed, "what it refers to is retired"
    assert [generation.step for generation in collect(store, Keep(last=2), 1).deleted] == [10, 20]


def test_nothing_is_deleted_while_a_newer_program_saves(store: FileStore, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What its receipt refers to is not known to this one."""
    started = job(store, 10, 20, 30)
    generation = started.next_generation(40)
    key = place / "run" / names.receipt_key(generation, 0)
    started.write(generation, 0)
    key.write_bytes(key.read_bytes().replace(b'"version":"1.0"', b'"version":"2.0"'))
    found = collect(store, Keep(last=2), 1)
    assert [generation.step for generation in found.retired] == [10]
    assert found.deleted == ()
    assert "a save under way may need it" in caplog.text
    key.unlink()
    assert [generation.step for generation in collect(store, Keep(last=2), 1).deleted] == [10]


def opener_dies(store: FileStore) -> None:
    """A claim that has no base: the disk was full."""
    with pytest.raises(StoreUnavailable):
        Job(FaultyStore(store, lambda operation, key: operation == "put_if_absent" and key.endswith("/base.json"))).open()


def test_a_person_vouches_that_the_opener_has_died(store: FileStore) -> None:
    """Otherwise a full disk, on which a job dies as it opens, could be emptied by nobody."""
    job(store, 10, 20, 30, 40)
    opener_dies(store)
    assert collect(store, Keep(last=2)).deleted == ()
    held = collect(store, None).held
    assert {generation.step for generation in held} == {10, 20}
    assert all("incarnation 2, which was claimed, has recorded no base" in why for why in held.values())
    found = Collector(store, None, FakeClock(), dead_claims=frozenset({2})).collect(None)
    assert [generation.step for generation in found.deleted] == [10, 20]
    assert steps(store) == [30, 40]
    assert Job(store).open().base_generation == GenerationId(1, 40, 1)


def test_who_vouches_for_one_claim_does_not_vouch_for_the_next(store: FileStore) -> None:
    job(store, 10, 20, 30, 40)
    opener_dies(store)
    opener_dies(store)
    for dead in ({2}, {3}):
        found = Collector(store, None, FakeClock(), dead_claims=frozenset(dead)).collect(Keep(last=2))
        assert found.deleted == ()
    assert Collector(store, None, FakeClock(), dead_claims=frozenset({2, 3})).collect(None).deleted != ()


def test_a_claim_that_appears_meanwhile_holds_back_all_the_same(store: FileStore) -> None:
    job(store, 10, 20, 30, 40)
    opener_dies(store)

    def claim_again(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.retired_key(GenerationId(1, 10, 1)):
            opener_dies(store)
        return False

    found = Collector(FaultyStore(store, claim_again), None, FakeClock(), dead_claims=frozenset({2})).collect(Keep(last=2))
    assert [generation.step for generation in found.retired] == [10, 20]
    assert found.deleted == ()
    assert "incarnation 3, which was claimed" in str(found.held)


def test_a_vouch_for_a_claim_that_holds_nothing_back_is_refused(store: FileStore, place: Path) -> None:
    job(store, 10, 20, 30, 40)
    before = contents(place)
    for dead in (1, 2):
        with pytest.raises(CallError, match=f"nothing is held back for incarnation {dead}: every incarnation"):
            Collector(store, None, FakeClock(), dead_claims=frozenset({dead})).collect(Keep(last=2))
    assert contents(place) == before


def test_what_is_held_back_is_told_with_the_reason(store: FileStore) -> None:
    job(store, 10, 20, 30, 40)
    note(store, 10, tags=["good"])
    decided = ledger.read(store, History.load(store).run.run_id, GenerationId(1, 10, 1))
    assert decided is not None
    ledger.retire(store, decided, "by a job", clock=Clock())
    dry = Collector(store, None, FakeClock()).collect(Keep(last=2), dry_run=True)
    found = collect(store, Keep(last=2))
    assert found.held == dry.held == {GenerationId(1, 10, 1): "it is pinned or tagged"}
    assert found.reasons == dry.reasons == {GenerationId(1, 20, 1): "not among the newest 2"}


def test_what_a_rollback_left_behind_pushes_nothing_out(store: FileStore) -> None:
    """No start falls back to it: the commits that count are those on the path from the head."""
    job(store, 10, 20, 30, 40, 50)
    back = Job(store)
    back.open(GenerationId(1, 30, 1))
    found = collect(store, Keep(last=2), None)
    assert [generation.step for generation in found.retired] == [10]
    assert steps(store) == [20, 30, 40, 50]
    for step in (35, 45):
        back.save(step)
    assert [generation.step for generation in collect(store, Keep(last=2), None).retired] == [20, 40, 50]
    assert steps(store) == [30, 35, 45]


def test_what_is_given_up_only_meanwhile_is_left_to_the_next_collection(store: FileStore) -> None:
    """Claims and bases were listed before that word: an opening may have begun, and chosen it, in between (K-7)."""
    late = GenerationId(1, 30, 1)
    started = job(store, 10, 20, 30, 40, 50)
    decided = History.load(store).decided(late)
    assert decided is not None
    listings: list[str] = []

    def another_collector(operation: str, key: str) -> bool:
        if operation == "list":
            listings.append(key)
            if key == names.LEDGER and listings.count(names.INCARNATIONS) == 2:
                ledger.retire(store, decided, "by another collector", clock=FakeClock())
        return False

    first = Collector(FaultyStore(store, another_collector), started.number, FakeClock()).collect(Keep(last=3))
    assert [generation.step for generation in first.deleted] == [10, 20]
    assert History.load(store).generations[late]
    assert collect(store, Keep(last=3), started.number).deleted == (late,)
