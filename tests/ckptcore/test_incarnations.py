"""Opening a run: claim, settle, base."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.digests import digest
from ckptcore.errors import CallError, CheckpointError, Damaged, InvalidRecord, NotFound, Superseded, UnsupportedFormat
from ckptcore.events import Event
from ckptcore.filestore import FileStore
from ckptcore.history import History
from ckptcore.incarnations import Opening, check_current, stored, undecided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.verify import check_whole
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FACTS, FakeClock, Job, check_commits, checkpointer, contents, file_store, flip, state, topology


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def job(store: FileStore, *steps: int, choose: GenerationId | None = None) -> Job:
    """Start a job, save at `steps`, and let it die."""
    started = Job(store)
    started.open(choose)
    for step in steps:
        assert started.save(step).committed
    return started


def opening(store: Any, on_event: Any = None) -> Opening:
    return Opening(store, topology(2), FACTS, FakeClock(), on_event)


def base(store: FileStore, choose: GenerationId | None = None) -> records.Base:
    return Job(store).open(choose).base


def spoil(store: FileStore, generation: GenerationId) -> None:
    """Take away a file that the commit needs."""
    (key, *_) = [key for key in store.list(names.state_prefix(generation)) if "/ranks/" in key and "/d/" in key]
    store.delete(key)


def replace(store: FileStore, key: str, data: bytes) -> None:
    path = Path(store.root) / key
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_run_gets_its_identity_once(store: FileStore) -> None:
    first = opening(store).identify()
    assert opening(store).identify() == first
    assert Job(store).open().run == first


def test_another_run_than_the_expected_one_is_refused(store: FileStore) -> None:
    with pytest.raises(NotFound, match=r"no run yet, and run 3f2a.* is expected there"):
        opening(store).identify(expected="3f2a")
    assert list(store.list()) == []
    run = opening(store).identify()
    assert opening(store).identify(expected=run.run_id) == run
    with pytest.raises(CallError, match=f"holds run {run.run_id}, and run 3f2a is expected"):
        opening(store).identify(expected="3f2a")


def test_every_start_claims_the_next_number(store: FileStore) -> None:
    assert [Job(store).open().number for _ in range(3)] == [1, 2, 3]


def test_a_folder_without_its_claim_is_still_free(store: FileStore) -> None:
    """A fence looks at the next number only, so that there must be no gap."""
    job(store, 10)
    (Path(store.root) / "incarnations/000002").mkdir()
    (Path(store.root) / "incarnations/000007").mkdir()
    assert Job(store).open().number == 2


def test_racing_starts_get_numbers_of_their_own(store: FileStore) -> None:
    run = opening(store).identify()
    start = threading.Barrier(6)
    claimed: list[int] = []

    def work() -> None:
        start.wait()
        claimed.append(opening(store).claim(run).incarnation)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == [1, 2, 3, 4, 5, 6]


def test_a_claim_without_an_answer_leaves_a_number_unused(store: FileStore) -> None:
    faulty = FaultyStore(store, lambda operation, key: operation == "put_if_absent" and key.endswith("claim.json"), after=True)
    with pytest.raises(CheckpointError):
        Job(faulty).open()
    started = job(store, 10)
    assert started.number == 2
    assert History.load(store).bases.keys() == {1, 2}


def test_older_incarnations_are_superseded_from_the_claim_on(store: FileStore) -> None:
    run = opening(store).identify()
    opening(store).claim(run)
    check_current(store, 1)
    opening(store).claim(run)
    with pytest.raises(Superseded, match=r"incarnation 2 of .* has been claimed"):
        check_current(store, 1)


def test_the_reasons_of_a_base(store: FileStore) -> None:
    started = job(store)
    assert started.incarnation is not None
    assert (started.incarnation.base.reason, started.incarnation.base.generation) == ("new", None)
    started.save(10)
    started.save(20)
    assert (base(store).reason, base(store).generation) == ("newest", "000001-000000000020-1")
    chosen = base(store, GenerationId(1, 10, 1))
    assert (chosen.reason, chosen.generation, chosen.guarantee) == ("chosen", "000001-000000000010-1", "exact")


def test_what_is_complete_is_rolled_forward_and_the_rest_aborted(store: FileStore) -> None:
    started = job(store, 10)
    for step, ranks in ((20, (1, 0)), (30, (0,)), (40, ())):
        generation = started.next_generation(step)
        for rank in ranks:
            started.write(generation, rank)
        if not ranks:
            store.put_if_absent(f"{names.generation_prefix(generation)}layouts/stray.json", b"{}")
    found = base(store)
    assert (found.reason, found.generation) == ("rolled-forward", "000001-000000000020-1")
    assert [(item.generation[7:], item.decision) for item in found.settled] == [
        ("000000000020-1", "commit"),
        ("000000000030-1", "abort"),
        ("000000000040-1", "abort"),
    ]
    assert "no receipt from rank 1 of 2" in found.settled[1].reason
    assert undecided(store) == []
    assert len(check_commits(store)) == 2


def test_an_older_complete_save_is_rolled_forward_without_becoming_the_head(store: FileStore) -> None:
    started = job(store)
    generation = started.next_generation(10)
    started.write(generation, 0)
    started.write(generation, 1)
    started.save(20)
    found = base(store)
    assert (found.reason, found.generation) == ("newest", "000001-000000000020-1")
    assert [item.decision for item in found.settled] == ["commit"]


def test_a_damaged_head_is_passed_over_loudly_and_noted(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    job(store, 10, 20)
    spoil(store, GenerationId(1, 20, 1))
    events: list[Event] = []
    opener = opening(store, events.append)
    found = opener.open(
        opener.identify(), check=lambda decided: check_whole(Checkpoint(store, decided)), guarantee=lambda _: "exact"
    ).base
    assert (found.reason, found.generation) == ("fallen-back", "000001-000000000010-1")
    assert [item.generation for item in found.skipped] == ["000001-000000000020-1"]
    assert "is missing" in found.skipped[0].reason
    assert [event.generation for event in events if event.kind == "fallen-back"] == [GenerationId(1, 20, 1)]
    assert "fallen-back" in caplog.text
    (note,) = notes.read(store, History.load(store).run.run_id, GenerationId(1, 20, 1))
    assert note.kind == "damaged"
    assert base(store).generation == "000001-000000000010-1"


def test_a_checkpoint_named_by_hand_is_taken_or_an_error(store: FileStore) -> None:
    job(store, 10, 20)
    spoil(store, GenerationId(1, 10, 1))
    with pytest.raises(Damaged, match="is missing"):
        base(store, GenerationId(1, 10, 1))
    with pytest.raises(NotFound, match="no decision"):
        base(store, GenerationId(1, 15, 1))
    notes.write(store, History.load(store).run.run_id, GenerationId(1, 20, 1), "quarantine", clock=Clock(), text="bad")
    with pytest.raises(NotFound, match="quarantine: bad"):
        base(store, GenerationId(1, 20, 1))


def test_a_run_whose_checkpoints_are_all_lost_never_silently_begins_anew(store: FileStore) -> None:
    job(store, 10, 20)
    spoil(store, GenerationId(1, 10, 1))
    spoil(store, GenerationId(1, 20, 1))
    with pytest.raises(Damaged, match="none of the run's checkpoints can be resumed from"):
        base(store)
    with pytest.raises(Damaged):
        base(store)


def test_a_run_with_nothing_but_aborted_and_weights_only_saves_begins_anew(store: FileStore) -> None:
    started = job(store)
    started.save(10, guarantee="weights")
    started.write(started.next_generation(20), 0)
    found = base(store)
    assert (found.reason, found.generation, len(found.skipped)) == ("new", None, 2)


def test_a_base_that_is_retired_meanwhile_is_claimed_anew(store: FileStore) -> None:
    job(store, 10, 20)
    history = History.load(store)
    newest = ledger.read(store, history.run.run_id, GenerationId(1, 20, 1))
    assert newest is not None

    def retire(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.base_key(2):
            ledger.retire(store, newest, "meanwhile", clock=Clock())
        return False

    incarnation = Job(FaultyStore(store, retire)).open()
    assert (incarnation.number, incarnation.base.generation) == (3, "000001-000000000010-1")
    assert History.load(store).bases.keys() == {1, 2, 3}


def test_the_newest_base_that_is_retired_meanwhile_is_the_next_base_too(store: FileStore) -> None:
    """A put of the retired record may be late: it was spoken of a commit that a rollback has made the base since (K-7)."""
    started = job(store, 10, 20, 30)
    chosen = ledger.read(store, started.coordinator().run_id, GenerationId(1, 20, 1))
    assert chosen is not None
    Job(store).open(chosen.generation)

    def retire(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.base_key(3):
            ledger.retire(store, chosen, "late", clock=Clock())
        return False

    incarnation = Job(FaultyStore(store, retire)).open()
    assert (incarnation.number, incarnation.base.generation, incarnation.base.reason) == (3, str(chosen.generation), "newest")


@pytest.mark.parametrize("lost", [names.base_key(2), names.claim_key(2), names.INCARNATIONS])
def test_a_lost_base_stops_a_start_until_a_checkpoint_is_named(place: Path, lost: str) -> None:
    """Not even the claim of another job that is running is touched."""

    def start(*steps: int, step: int | None = None) -> int:
        with checkpointer(place) as ckpt:
            found = ckpt.restore(like=state(0), step=step) if step else ckpt.restore_or_init(lambda: state(0), like=state(0))
            for number in steps:
                ckpt.save(number, state(number)).result()
        return found.step

    assert [start(10, 20), start(30, step=10)] == [0, 10]
    file_store(place).delete_prefix(lost) if lost.endswith("/") else file_store(place).delete(lost)
    before = contents(place)
    with pytest.raises(Damaged, match=r"incarnations/000002/(base|claim)\.json is missing.*restore\(step="):
        start()
    assert {key for key in contents(place).keys() - before.keys() if not key.startswith("probe/")} == set()
    assert start(40, step=30) == 30
    assert start() == 40


def test_a_number_that_has_saves_is_never_used_again(store: FileStore) -> None:
    """And claims stay contiguous, for fences look at the next number only."""
    job(store, 10)
    job(store, 20)
    store.put_if_absent(f"{names.generation_prefix(GenerationId(4, 30, 1))}receipts/00000.json", b"undecided")
    store.delete_prefix(names.INCARNATIONS)
    assert opening(store).claim(opening(store).identify()).incarnation == 5
    assert all(store.get(names.claim_key(number)) for number in (1, 2, 3, 4))


def test_a_foreign_save_of_a_number_beyond_reason_is_not_followed(store: FileStore) -> None:
    job(store, 10)
    (Path(store.root) / "generations/999999-000000000010-1").mkdir()
    with pytest.raises(Damaged, match="saves of incarnation 999999, but no claim after that of incarnation 1"):
        Job(store).open()


def test_a_damaged_older_base_does_not_stop_a_start(store: FileStore) -> None:
    job(store, 10)
    job(store, 20)
    replace(store, names.base_key(1), b"{")
    assert base(store).generation == "000002-000000000020-1"


def test_a_base_that_is_retired_later_is_the_base_of_the_next_start_too(store: FileStore) -> None:
    """A rollback, and the collector of the job that it superseded: the data is kept, so the run must go on from it."""
    started = job(store, 10, 20, 30)
    Job(store).open(GenerationId(1, 10, 1))
    run_id = started.coordinator().run_id
    for step in (10, 20, 30):
        decided = ledger.read(store, run_id, GenerationId(1, step, 1))
        assert decided is not None
        ledger.retire(store, decided, "meanwhile", clock=Clock())
    for _ in range(2):
        found = base(store)
        assert (found.reason, found.generation) == ("newest", "000001-000000000010-1")


def test_a_run_without_its_identity_is_not_begun_anew(store: FileStore, place: Path) -> None:
    job(store, 10)
    (place / "run" / names.RUN).unlink()
    with pytest.raises(Damaged, match=r"run\.json .* is missing, though the run has other records"):
        base(store)
    assert not (place / "run" / names.RUN).exists()


def test_somebody_elses_base_is_never_taken_for_ours(store: FileStore) -> None:
    opening(store).identify()
    store.put_if_absent(names.base_key(1), b"{}")
    with pytest.raises(InvalidRecord, match=r"incarnations/000001/base\.json"):
        base(store)


RECORDS = {
    "run": names.RUN,
    "base": names.base_key(1),
    "head": names.ledger_key(GenerationId(1, 20, 1)),
    "receipt": names.receipt_key(GenerationId(1, 30, 1), 1),
}


@pytest.mark.parametrize("change", [{"version": "2.0"}, {"requires": ["quantum-ledger"]}])
@pytest.mark.parametrize("record", [*RECORDS, "layout", "values"])
def test_a_record_of_a_newer_format_stops_the_start_and_nothing_is_thrown_away(
    store: FileStore, place: Path, record: str, change: dict[str, Any]
) -> None:
    started = job(store, 10, 20)
    generation = started.next_generation(30)
    for rank in (0, 1) if record != "head" else ():
        started.write(generation, rank)
    if record in RECORDS:
        path = Path(store.root) / RECORDS[record]
        replace(store, RECORDS[record], msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
    else:
        _restate(store, generation, record, change)
    before = contents(place)
    with pytest.raises(UnsupportedFormat, match="Use a newer release"):
        Job(store).open()
    added = contents(place).keys() - before.keys()
    assert not [key for key in added if "ledger" in key and b'"abort"' in contents(place)[key]]
    assert before.items() <= contents(place).items()


def _restate(store: FileStore, generation: GenerationId, record: str, change: dict[str, Any]) -> None:
    """Change an object that receipts certify, and the receipts with it: as a newer writer would have written them."""
    for rank in (0, 1):
        key = names.receipt_key(generation, rank)
        receipt = msgspec.json.decode(store.get(key) or b"")
        if receipt[record] is None:
            continue
        data = store.get(receipt[record]["key"])
        assert data is not None
        raw = msgspec.json.encode(msgspec.json.decode(data) | change)
        moved = names.layout_key(generation, digest(raw)) if record == "layout" else receipt[record]["key"]
        replace(store, moved, raw)
        receipt[record] = {"key": moved, "size": len(raw), "digest": digest(raw)}
        replace(store, key, msgspec.json.encode(receipt))


HOSTILE = {
    "empty": b"",
    "zeros": b"\0" * 64,
    "not UTF-8": b'{"format":"ckpt/\xff"}',
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "huge number": b'{"format":"ckpt/run","version":"1.0","run_id":' + b"9" * 5000 + b"}",
    "float": b'{"format":"ckpt/run","version":"1.0","run_id":1e999}',
    "duplicate key": b'{"format":"ckpt/run","format":"ckpt/run","version":"1.0"}',
    "wrong types": b'{"format":["ckpt/run"],"version":{},"requires":7}',
    "requires a string": b'{"format":"ckpt/decision","version":"1.0","requires":"all","decision":"commit"}',
    "list": b"[1,2,3]",
    "lone surrogate": b'{"format":"ckpt/run","version":"1.0","run_id":"\\ud800"}',
    "long": b'{"format":"' + b"x" * 100_000 + b'"}',
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("record", [*RECORDS, "note", "retired", "layout", "claim"])
def test_hostile_records_are_refused_or_passed_over_cleanly(store: FileStore, record: str, data: bytes) -> None:
    """Whatever lies there: an error of ours, or a start from a checkpoint that verifies."""
    started = job(store, 10, 20)
    generation = started.next_generation(30)
    for rank in (0, 1):
        started.write(generation, rank)
    head = GenerationId(1, 20, 1)
    places = RECORDS | {
        "note": names.note_key(head, "pin-x"),
        "retired": names.retired_key(head),
        "claim": names.claim_key(1),
        "layout": next(store.list(f"{names.generation_prefix(generation)}layouts/")),
    }
    replace(store, places[record], data)
    try:
        found = base(store)
    except CheckpointError:
        return
    assert found.generation is not None
    assert GenerationId.parse(found.generation) in check_commits(store)


@pytest.mark.parametrize(
    "key", ["../../../etc/passwd", "/etc/passwd", "generations/../run.json", "a//b", "", "a\0b", "x" * 2000, 7]
)
def test_a_key_that_leads_out_of_the_run_is_refused(store: FileStore, key: Any) -> None:
    started = job(store, 10)
    generation = started.next_generation(20)
    for rank in (0, 1):
        started.write(generation, rank)
    path = names.receipt_key(generation, 1)
    receipt = msgspec.json.decode(store.get(path) or b"")
    for field, value in (("layout", receipt["layout"] | {"key": key}), ("files", [{"path": key, "size": 1}])):
        replace(store, path, msgspec.json.encode(receipt | {field: value}))
        found = started.coordinator().examine(generation)
        assert "rank 1" in getattr(found, "reason", "")
    assert base(store).generation == "000001-000000000010-1"


def test_an_aborts_long_reason_fits_into_the_next_base(store: FileStore) -> None:
    started = job(store, 10)
    generation = started.next_generation(20)
    abort = records.Abort(
        run_id=started.coordinator().run_id, generation=str(generation), decided=Clock().utc(), decided_by=1, reason="x" * 20_000
    )
    store.put_if_absent(names.ledger_key(generation), records.encode(abort))
    assert base(store).generation == "000001-000000000010-1"
    assert base(store).generation == "000001-000000000010-1"


def test_foreign_folders_among_the_generations_are_passed_over(store: FileStore) -> None:
    job(store, 10)
    for name in ("lost+found", "000000-000000000010-1", "000001-000000000099-1.tmp"):
        (Path(store.root) / "generations" / name).mkdir()
    assert stored(store) == [GenerationId(1, 10, 1)]
    assert base(store).settled == []


@pytest.mark.parametrize("position", [0, 1, 40, 100, 300, -100, -1])
def test_a_flipped_bit_in_the_head_record_falls_back(store: FileStore, position: int) -> None:
    """The manifest is not certified by another record: a bit that leaves it readable leads to what does not add up."""
    job(store, 10, 20)
    flip(Path(store.root) / names.ledger_key(GenerationId(1, 20, 1)), position)
    found = base(store)
    assert found.generation == "000001-000000000010-1"
    assert found.reason == "fallen-back"


def test_two_claims_at_a_time_cannot_both_settle(store: FileStore) -> None:
    """The first to claim is superseded before it has settled: it stops, and the second decides."""
    started = job(store, 10)
    generation = started.next_generation(20)
    for rank in (0, 1):
        started.write(generation, rank)
    run = opening(store).identify()
    first, second = opening(store).claim(run), opening(store).claim(run)
    with pytest.raises(Superseded):
        opening(store).settle(run, first)
    (settled,) = opening(store).settle(run, second)
    assert settled.decision == "commit"


def test_an_opener_that_another_job_has_overtaken_records_no_base(store: FileStore) -> None:
    """R-31: what the other job saved is of a newer incarnation, and no base of this one."""
    job(store, 10)
    run = opening(store).identify()

    def overtake(_: object) -> None:
        job(store, 20)

    with pytest.raises(Superseded, match="incarnation 3"):
        opening(store).open(run, check=overtake, guarantee=lambda _: None)
    assert History.load(store).bases.keys() == {1, 2, 3}
    assert store.get(names.base_key(2)) is None
    assert base(store).generation == "000003-000000000020-1"


def test_a_base_counts_only_if_nobody_has_claimed_when_it_is_stored(store: FileStore) -> None:
    """Another job may have looked for a base before this one's was there: this rollback is not told as done (spec: P-16)."""
    job = Job(store)
    job.open()
    job.save(10)
    first = GenerationId(1, 10, 1)
    job.save(20)

    def claim_meanwhile(operation: str, key: str) -> bool:
        if operation == "put_if_absent" and key == names.base_key(2):
            Job(store).open()
        return False

    with pytest.raises(Superseded):
        Job(FaultyStore(store, claim_meanwhile)).open(first)
