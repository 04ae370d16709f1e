"""Copies of commits: whole or nothing, resumable, and never into another run (spec: K-16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.errors import (
    CallError,
    CheckpointError,
    Damaged,
    InvalidRecord,
    NotFound,
    ProtocolViolation,
    Retired,
    StoreUnavailable,
)
from ckptcore.history import History
from ckptcore.names import GenerationId
from ckptcore.operate.copying import Copied, Copier, contents
from ckptcore.operate.transfer import Item, Pace, Transfer, batches
from ckptcore.run import Run
from ckptcore.store import Storage, Store, open_store
from tests.ckptcore.failing import Died, DyingStore, FaultyStore
from tests.ckptcore.support import FakeClock, Job, check_commits, file_store, flip, restored_step, state

FIRST, SECOND = GenerationId(1, 10, 1), GenerationId(1, 20, 1)


@pytest.fixture(params=["file", "memory"])
def target(request: pytest.FixtureRequest, place: Path) -> Store:
    if request.param == "file":
        return file_store(place / "copy")
    return open_store("memory://copy", Storage(context=ts.Context()))


@pytest.fixture
def source(place: Path) -> Store:
    return file_store(place / "run")


def train(source: Store, *steps: int, **more: Any) -> Job:
    job = Job(source)
    job.open(**more)
    for step in steps:
        job.save(step)
    return job


def copy(source: Store, target: Store, chosen: GenerationId | None = None, **more: Any) -> list[Copied]:
    copier = Copier(source, target, FakeClock(), **more)
    copier.open()
    found = [copier.copy(copier.plan(each)) for each in copier.pending(chosen)]
    if chosen is None:
        copier.follow_up()
    return found


def head(store: Store) -> GenerationId | None:
    found = History.load(store).head()
    return found.generation if found else None


def referring(source: Store) -> GenerationId:
    """A commit whose parameters lie in the one before."""
    job = train(source, 10)
    job.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    job.save(20, unchanged=("params",))
    return SECOND


def test_one_generation(source: Store, target: Store) -> None:
    train(source, 10, 20)
    (copied,) = copy(source, target, FIRST)
    assert copied.sent == copied.bytes > 0
    assert check_commits(target) == [FIRST]
    assert head(target) == FIRST
    assert restored_step(target, FIRST, 2) == 10
    assert History.load(target).run == History.load(source).run
    for key in (names.RUN, names.ledger_key(FIRST), names.claim_key(1), names.base_key(1)):
        assert target.get(key) == source.get(key)


def test_every_commit_and_the_same_head(source: Store, target: Store) -> None:
    train(source, 10, 20)
    train(source, 30)
    train(source, choose=FIRST)
    copy(source, target)
    assert check_commits(target) == check_commits(source)
    assert head(target) == head(source) == FIRST, "the rollback, of which there is a base alone"


def test_a_second_run_sends_nothing(source: Store, target: Store) -> None:
    train(source, 10)
    copy(source, target)
    before = {key: target.get(key) for key in target.list()}
    assert copy(source, target) == []
    (again,) = copy(source, target, FIRST)
    assert (again.sent, again.bytes > 0) == (0, True)
    assert {key: target.get(key) for key in target.list()} == before


def test_what_is_new_is_added(source: Store, target: Store) -> None:
    job = train(source, 10)
    copy(source, target)
    job.save(20)
    assert [copied.generation for copied in copy(source, target)] == [SECOND]
    assert head(target) == SECOND


def test_what_a_component_refers_to_comes_along(source: Store, target: Store) -> None:
    copy(source, target, referring(source))
    assert check_commits(target) == [SECOND, FIRST]


def test_a_source_that_was_retired_serves_and_is_no_checkpoint(source: Store, target: Store) -> None:
    """Its data is kept for the commit that refers to it."""
    referring(source)
    decided = ledger.read(source, History.load(source).run.run_id, FIRST)
    assert decided is not None
    ledger.retire(source, decided, "by a collector that looked before", clock=Clock())
    assert [copied.generation for copied in copy(source, target)] == [FIRST, SECOND]
    assert check_commits(target) == [SECOND]
    assert target.get(names.retired_key(FIRST)) == source.get(names.retired_key(FIRST))


def test_notes_come_along_but_those_about_the_bytes(source: Store, target: Store) -> None:
    job = train(source, 10, 20)
    run_id = job.coordinator().run_id
    notes.annotate(source, run_id, FIRST, clock=Clock(), metrics={"loss": 0.5}, tags=["good"])
    notes.write(source, run_id, FIRST, "damaged", clock=Clock(), text="here, not there")
    notes.write(source, run_id, SECOND, "quarantine", clock=Clock(), text="diverged")
    copy(source, target)
    found = {note.kind for note in notes.read(target, run_id, FIRST)}
    assert found == {"metrics", "tag", "verified"}, "that of the copy is its own: it was read from end to end"
    assert head(target) == FIRST
    notes.annotate(source, run_id, FIRST, clock=Clock(), tags=["later"])
    copy(source, target)
    assert names.note_key(FIRST, "tag-later") in list(target.list(names.NOTES))


def test_a_note_that_came_later_is_added_when_one_is_copied_again(source: Store, target: Store) -> None:
    job = train(source, 10)
    copy(source, target, FIRST)
    notes.write(source, job.coordinator().run_id, FIRST, "quarantine", clock=Clock(), text="diverged")
    copy(source, target, FIRST)
    assert head(target) is None


def test_what_killed_writers_left_is_not_copied(source: Store, target: Store) -> None:
    job = train(source, 10)
    stray = f"{names.database_prefix(FIRST, 0, '0' * 16)}d/stray"
    source.put_if_absent(stray, b"of a killed writer")
    job.write(job.next_generation(20), 1)
    copy(source, target)
    assert target.get(stray) is None
    assert target.children(names.GENERATIONS) == [str(FIRST)]


def test_what_is_retired_is_not_copied(source: Store, target: Store) -> None:
    job = train(source, 10, 20)
    copier = Copier(source, target)
    copier.open()
    plan = copier.plan(FIRST)
    decided = ledger.read(source, job.coordinator().run_id, FIRST)
    assert decided is not None
    ledger.retire(source, decided, "while it is copied", clock=Clock())
    with pytest.raises(Retired):
        copier.copy(plan)
    assert [copied.generation for copied in copy(source, target)] == [SECOND]
    target.delete_prefix(names.generation_prefix(FIRST))
    source.delete_prefix(names.generation_prefix(FIRST))
    with pytest.raises(Retired, match="was retired while it was copied"):
        copier.copy(plan)


def test_what_the_copy_has_retired_does_not_come_back(source: Store, target: Store) -> None:
    train(source, 10, 20)
    copy(source, target)
    decided = ledger.read(target, History.load(target).run.run_id, FIRST)
    assert decided is not None
    ledger.retire(target, decided, "in the copy", clock=Clock())
    target.delete_prefix(names.generation_prefix(FIRST))
    assert copy(source, target) == []
    with pytest.raises(Retired, match="retired in the copy"):
        copy(source, target, FIRST)


def test_a_lost_file_of_the_copy_is_put_back(source: Store, target: Store) -> None:
    train(source, 10)
    copy(source, target)
    lost = next(key for key in target.list(names.state_prefix(FIRST)) if "/d/" in key and "ranks/" in key)
    target.delete(lost)
    (copied,) = copy(source, target, FIRST)
    assert 0 < copied.sent < copied.bytes
    assert check_commits(target) == [FIRST]


# What is refused


def test_another_run_is_refused(source: Store, target: Store) -> None:
    train(source, 10)
    Job(target).open()
    before = {key: target.get(key) for key in target.list()}
    with pytest.raises(CallError, match="holds another run"):
        copy(source, target)
    assert {key: target.get(key) for key in target.list()} == before


def test_something_without_an_identity_is_refused(source: Store, target: Store) -> None:
    train(source, 10)
    target.put_if_absent(names.ledger_key(FIRST), b"{}")
    with pytest.raises(CallError, match=r"without a run\.json"):
        copy(source, target)


def test_the_run_itself_is_no_place_for_its_copy(source: Store) -> None:
    train(source, 10)
    with pytest.raises(CallError, match="lie in each other"):
        copy(source, source)


def test_a_place_inside_of_the_run_is_refused(tmp_path: Path) -> None:
    """A collection would delete it with the generation that it lies in."""
    source = file_store(tmp_path / "run")
    train(source, 10)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for place in (tmp_path / "run" / "generations" / "copy", tmp_path / "link" / "notes", tmp_path):
        with pytest.raises(CallError, match="lie in each other"):
            copy(source, file_store(place))


def test_a_copy_in_which_a_job_was_started_is_refused(source: Store, target: Store) -> None:
    train(source, 10)
    copy(source, target)
    train(target, 30)
    with pytest.raises(CallError, match="a job was started there"):
        copy(source, target)
    train(source, 30)  # the run has incarnation 2 by now, but it is another one
    with pytest.raises(CallError, match="is another one than in"):
        copy(source, target)


def test_another_decision_is_never_overwritten(source: Store, target: Store) -> None:
    train(source, 10)
    copier = Copier(source, target)
    copier.open()
    plan = copier.plan(FIRST)
    target.put_if_absent(names.ledger_key(FIRST), b"something else")
    with pytest.raises(ProtocolViolation):
        copier.copy(plan)


def test_what_is_no_commit(source: Store, target: Store) -> None:
    train(source, 10)
    with pytest.raises(NotFound):
        copy(source, target, GenerationId(1, 99, 1))


# Damage


@pytest.mark.parametrize("part", ["layouts/", "receipts/", "values/", "index/", "roster-", "/d/", "manifest.ocdbt"])
def test_a_damaged_source_makes_no_checkpoint(source: Store, target: Store, place: Path, part: str) -> None:
    train(source, 10)
    generation = names.generation_prefix(FIRST)
    keys = [key for key in source.list(generation) if part in key and ("state/" not in key or "ranks/" in key)]
    size, key = max((source.size(key) or 0, key) for key in keys)  # of a database the file with the chunks
    flip(place / "run" / key, size // 2)
    with pytest.raises((Damaged, InvalidRecord)):
        copy(source, target)
    assert list(target.list(names.LEDGER)) == []
    assert part == "/d/" or target.get(key) is None, "what a digest certifies is refused on the way"


def test_a_file_that_is_missing_is_named(source: Store, target: Store) -> None:
    train(source, 10)
    lost = next(key for key in source.list(names.state_prefix(FIRST)) if "/d/" in key and "ranks/" in key)
    source.delete(lost)
    with pytest.raises(Damaged, match=f"{lost} in .*run is missing"):
        copy(source, target)


def test_bytes_that_change_on_the_way_make_no_checkpoint(source: Store, target: Store) -> None:
    """Of data files the receipts know only the size: the digests of the chunks tell, at the target."""
    train(source, 10)

    class Flipping(FaultyStore):
        def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
            data = super().get(key, start, stop)
            return data[:100] + bytes([data[100] ^ 1]) + data[101:] if data and "/d/" in key and len(data) > 600 else data

    with pytest.raises(Damaged, match="was not made a checkpoint"):
        copy(Flipping(source, lambda *_: False), target)
    assert list(target.list(names.LEDGER)) == []


def test_a_key_outside_of_the_generation_is_refused(source: Store) -> None:
    train(source, 10)
    decided = ledger.read(source, History.load(source).run.run_id, FIRST)
    assert decided is not None
    assert isinstance(decided.record, records.Manifest)
    elsewhere = records.Descriptor(key="ledger/x", size=1, digest="blake3:" + "0" * 64)
    roster = records.Roster(generation=str(FIRST), ranks=[], layouts=[elsewhere])
    with pytest.raises(InvalidRecord, match="outside of generation"):
        list(contents(decided.record, roster, []))


# Killed, and store errors


def attempt(source: Store, target: Store, work: Callable[[Store, Store], object]) -> bool:
    """Whether it got to the end."""
    try:
        work(source, target)
    except (Died, CheckpointError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("what", ["one", "all"])
def test_killed_at_any_moment_it_leaves_whole_checkpoints_only_and_goes_on(place: Path, what: str) -> None:
    source = file_store(place / "run")
    referring(source)
    chosen = SECOND if what == "one" else None
    moment, done = 0, False
    while not done:
        moment += 1
        target = file_store(place / f"copy-{moment}")
        done = attempt(source, target, lambda s, t, m=moment: copy(s, DyingStore(t, m), chosen))
        if target.get(names.RUN) is not None and check_commits(target):
            assert head(target) is not None
        copy(source, target, chosen)
        assert check_commits(target) == [SECOND, FIRST]
        assert head(target) == SECOND
    assert moment > 20


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_error_of_the_store_at_any_operation(place: Path, side: str) -> None:
    run = file_store(place / "run")
    train(run, 10, 20)
    number, done = 0, False
    while not done:
        number += 1
        target, count = file_store(place / f"copy-{number}"), [0]

        def nth(_operation: str, _key: str, count: list[int] = count, number: int = number) -> bool:
            count[0] += 1
            return count[0] == number

        faulty = FaultyStore(run if side == "source" else target, nth)
        done = attempt(faulty if side == "source" else run, faulty if side == "target" else target, copy)
        assert done == (faulty.hits == 0)
        if target.get(names.RUN) is not None:
            check_commits(target)
        copy(run, target)
        assert check_commits(target) == [SECOND, FIRST]
    assert number > 20


def test_two_copies_at_once(source: Store, target: Store) -> None:
    train(source, 10)
    begun: list[list[Copied]] = []

    def another(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and "roster-" in key and not begun:
            begun.append(copy(source, target))
        return False

    copy(source, FaultyStore(target, another))
    assert check_commits(target) == [FIRST]


def test_a_reader_beside_it_sees_a_checkpoint_when_it_is_whole(source: Store, target: Store) -> None:
    train(source, 10)
    seen: list[int] = []

    def look(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key != names.RUN:
            seen.append(len(Run(target, Storage()).generations()) and len(check_commits(target)))
        return False

    copy(source, FaultyStore(target, look))
    assert set(seen) == {0}


# Bytes on their way


def test_batches_are_bounded() -> None:
    items = [Item(str(number), size) for number, size in enumerate([4, 4, 4, 99, 1, 1])]
    assert [[item.size for item in batch] for batch in batches(items, 10)] == [[4, 4], [4], [99], [1, 1]]


def test_a_limit_of_bandwidth(place: Path) -> None:
    source, target, clock = file_store(place / "a"), file_store(place / "b"), FakeClock()
    for number in range(4):
        source.put_if_absent(f"k/{number}", bytes(1000))
    told: list[int] = []
    sent = Transfer(source, target, Pace(clock, 100.0), told.append).send([Item(f"k/{number}", 1000) for number in range(4)])
    assert (sent, sum(told)) == (4000, 4000)
    assert clock.now >= 29.9


def test_an_object_that_is_too_long(place: Path) -> None:
    source, target = file_store(place / "a"), file_store(place / "b")
    source.put_if_absent("k", b"12345")
    with pytest.raises(Damaged, match="has more bytes, its record says 4"):
        Transfer(source, target, Pace(FakeClock())).send([Item("k", 4)])
    target.put_if_absent("k", b"1")
    with pytest.raises(Damaged, match="nothing is overwritten"):
        Transfer(source, target, Pace(FakeClock())).send([Item("k", 5)])
    with pytest.raises(Damaged, match="is missing"):
        Transfer(source, target, Pace(FakeClock())).send([Item("absent", 0)])


def test_a_silent_store(source: Store, target: Store) -> None:
    train(source, 10)
    with pytest.raises(StoreUnavailable):
        copy(source, FaultyStore(target, lambda *_: True, times=99))
