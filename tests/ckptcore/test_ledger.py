"""One decision a generation: whoever comes second reads what was decided."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ckptcore import ledger, names, records
from ckptcore.digests import digest
from ckptcore.errors import CommitUnknown, ForeignRecord, InvalidRecord, NotFound, ProtocolViolation, StoreFull, UnsupportedFormat
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.store import Store
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, Job, file_store, manifest

GENERATION = GenerationId(1, 10, 1)
KEY = names.ledger_key(GENERATION)


@pytest.fixture
def committed(place: Path) -> Decided:
    """A manifest, from a run elsewhere."""
    job = Job(file_store(place / "elsewhere"))
    job.open()
    return job.save(10)


@pytest.fixture
def store(place: Path) -> Store:
    return file_store(place / "run")


def abort(committed: Decided) -> records.Abort:
    return records.Abort(
        run_id=committed.record.run_id,
        generation=str(GENERATION),
        decided=FakeClock().utc(),
        decided_by=1,
        reason="a rank is late",
        missing=[1],
    )


def decide(store: Store, record: records.Decision, timeout: float = 1.0) -> Decided:
    return ledger.decide(store, record, clock=FakeClock(), timeout=timeout)


def test_the_first_decision_stands(store: Store, committed: Decided) -> None:
    assert decide(store, committed.record) == committed
    assert decide(store, committed.record) == committed
    found = decide(store, abort(committed))
    assert found == committed
    assert store.get(KEY) == records.encode(committed.record)


def test_a_commit_after_an_abort_is_told_of_the_abort(store: Store, committed: Decided) -> None:
    first = decide(store, abort(committed))
    assert not first.committed
    assert decide(store, committed.record) == first
    with pytest.raises(NotFound, match="a rank is late"):
        ledger.manifest_of(first)


def test_two_aborts_need_not_agree(store: Store, committed: Decided) -> None:
    first = decide(store, abort(committed))
    assert decide(store, msgspec.structs.replace(abort(committed), reason="another view of it")) == first


def test_two_manifests_of_one_generation_are_a_violation_and_nothing_is_overwritten(store: Store, committed: Decided) -> None:
    decide(store, committed.record)
    other = msgspec.structs.replace(manifest(committed), metadata="other")
    with pytest.raises(ProtocolViolation, match="Nothing was overwritten"):
        decide(store, other)
    assert store.get(KEY) == records.encode(committed.record)


@pytest.mark.parametrize("after", [False, True])
def test_a_put_without_an_answer_is_repeated(store: Store, committed: Decided, *, after: bool) -> None:
    faulty = FaultyStore(store, lambda operation, _: operation == "put_if_absent", times=4, after=after)
    assert decide(faulty, committed.record) == committed
    assert faulty.hits == 4


def test_no_answer_by_the_deadline_is_an_unknown_outcome(store: Store, committed: Decided) -> None:
    faulty = FaultyStore(store, lambda operation, _: operation == "put_if_absent", times=10**6, after=True)
    with pytest.raises(CommitUnknown, match="may have committed") as caught:
        decide(faulty, committed.record)
    assert caught.value.__cause__ is not None
    assert ledger.read(store, committed.record.run_id, GENERATION) == committed


def test_a_full_store_decides_nothing(store: Store, committed: Decided) -> None:
    with pytest.raises(StoreFull):
        decide(FaultyStore(store, lambda *_: True, lambda: StoreFull("no room")), committed.record)
    assert ledger.read(store, committed.record.run_id, GENERATION) is None


def test_no_room_says_nothing_of_an_earlier_try(store: Store, committed: Decided) -> None:
    """The first try may be applied late: whoever took the second for the outcome would call a commit a failure."""
    data = records.encode(committed.record)
    full = FaultyStore(store, lambda operation, _: operation == "put_if_absent", lambda: StoreFull("no room"), times=10**6)
    silent = FaultyStore(full, lambda operation, _: operation == "put_if_absent")
    with pytest.raises(CommitUnknown, match="it may have committed"):
        ledger.insist(silent, KEY, data, clock=FakeClock(), timeout=60)
    assert full.hits > 1


def test_a_decision_of_another_run_or_generation_is_foreign(store: Store, committed: Decided) -> None:
    store.put_if_absent(KEY, records.encode(committed.record))
    with pytest.raises(ForeignRecord, match="run_id"):
        ledger.read(store, "00000000-0000-4000-8000-000000000000", GENERATION)
    moved = GenerationId(1, 20, 1)
    store.put_if_absent(names.ledger_key(moved), records.encode(committed.record))
    with pytest.raises(ForeignRecord, match="generation"):
        ledger.read(store, committed.record.run_id, moved)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (b"\0" * 100, InvalidRecord),
        (b"{", InvalidRecord),
        (b"[" * 100_000, InvalidRecord),
        (b'{"format":"ckpt/decision","version":"1.0","decision":"perhaps"}', InvalidRecord),
        (b'{"format":"ckpt/decision","version":"2.0","decision":"commit"}', UnsupportedFormat),
        (b'{"format":"ckpt/decision","version":"1.0","requires":["teleport"],"decision":"commit"}', UnsupportedFormat),
    ],
)
def test_what_is_no_decision_is_refused_by_key(store: Store, data: bytes, error: type[Exception]) -> None:
    store.put_if_absent(KEY, data)
    with pytest.raises(error, match=r"ledger/000001-000000000010-1\.json"):
        ledger.read(store, "00000000-0000-4000-8000-000000000000", GENERATION)


def test_foreign_files_in_the_ledger_are_passed_over(store: Store, committed: Decided) -> None:
    decide(store, committed.record)
    for name in ("README", "000000-000000000010-1.json", "000001-10-1.json", "000001-000000000020-1.json.bak", "x/000001.json"):
        store.put_if_absent(f"{names.LEDGER}{name}", b"?")
    assert list(ledger.entries(store)) == [(GENERATION, False)]


def test_a_retired_commit_stays_retired(store: Store, committed: Decided) -> None:
    decide(store, committed.record)
    assert not ledger.is_retired(store, GENERATION)
    ledger.retire(store, committed, "old", clock=FakeClock())
    ledger.retire(store, committed, "older", clock=FakeClock())
    assert ledger.is_retired(store, GENERATION)
    record = records.decode(store.get(names.retired_key(GENERATION)) or b"", records.RetiredRecord, key="retired")
    assert (record.policy, record.manifest) == ("old", digest(records.encode(committed.record)))
    assert sorted(ledger.entries(store)) == [(GENERATION, False), (GENERATION, True)]
