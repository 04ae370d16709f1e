"""The coordinator: waits for receipts, looks at every file, decides, and stops when it is superseded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptcore import coordinator, ledger, names, records
from ckptcore.arrays import DatabaseWriter, StoredArray
from ckptcore.components import PerRank
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CheckpointError, StoreUnavailable, Superseded
from ckptcore.events import Event
from ckptcore.filestore import FileStore
from ckptcore.geometry import Grid
from ckptcore.names import GenerationId
from ckptcore.proof import Proven, Refuted
from ckptcore.reader import Checkpoint
from ckptcore.store import open_store
from ckptcore.verify import verify
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, Job, contents, file_store, flip, manifest, state

GENERATION = GenerationId(1, 10, 1)


@pytest.fixture
def job(place: Path) -> Job:
    started = Job(file_store(place))
    started.open()
    return started


def deliver(job: Job, *ranks: int) -> GenerationId:
    generation = job.next_generation(10)
    for rank in ranks:
        job.write(generation, rank)
    return generation


def abort_of(decided: ledger.Decided) -> records.Abort:
    assert isinstance(decided.record, records.Abort)
    return decided.record


def test_a_late_rank_is_named_at_the_deadline(job: Job) -> None:
    generation = deliver(job, 0)
    decided = job.coordinator().commit(generation, 2, timeout=30.0)
    assert abort_of(decided).missing == [1]
    assert "no receipt from rank 1 of 2 within 30 s" in abort_of(decided).reason
    assert 30.0 <= job.clock.monotonic() < 31.0


def test_a_receipt_that_comes_while_waiting_is_taken(job: Job) -> None:
    generation = deliver(job, 0)
    clock = FakeClock()
    clock.on_sleep = lambda: job.write(generation, 1) if clock.now > 3 and not _delivered(job, generation) else None
    coordinator = Coordinator(job.store, job.coordinator().run_id, 1, clock)
    assert coordinator.commit(generation, 2, timeout=30.0).committed
    assert clock.now < 5


def _delivered(job: Job, generation: GenerationId) -> bool:
    return job.store.size(names.receipt_key(generation, 1)) is not None


def test_a_failed_receipt_aborts_at_once(job: Job) -> None:
    generation = deliver(job)
    receipt = records.Receipt(
        run_id=job.coordinator().run_id,
        generation=str(generation),
        incarnation=1,
        claim="0123456789abcdef",
        step=10,
        rank=1,
        participants=2,
        status="failed",
        reason='no room left; "status":"complete"',
    )
    job.store.put_if_absent(names.receipt_key(generation, 1), records.encode(receipt))
    decided = job.coordinator().commit(generation, 2, timeout=600.0)
    assert "rank 1: no room left" in abort_of(decided).reason
    assert job.clock.monotonic() < 1.0


def test_text_that_looks_like_a_failed_receipt_fails_nothing(job: Job) -> None:
    generation = job.next_generation(10)
    job.write(generation, 0, metadata='"status":"failed"')
    job.write(generation, 1)
    assert job.coordinator().commit(generation, 2, timeout=1.0).committed


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["d/", "manifest.ocdbt", "values/00001.json"])
def test_a_file_that_is_not_as_delivered_refutes(job: Job, what: str, damage: str) -> None:
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"rng": PerRank({"seed": rank})}
    generation = deliver(job, 0, 1)
    root = Path(str(job.store.url).removeprefix("file://"))
    (path, *_) = [file for file in sorted((root / "generations").rglob("*")) if what in str(file) and file.is_file()]
    DAMAGES[damage](path)
    decided = job.coordinator().commit(generation, 2, timeout=1.0)
    assert path.name in abort_of(decided).reason


def test_a_flipped_bit_in_a_small_file_refutes(job: Job) -> None:
    generation = deliver(job, 0, 1)
    root = Path(str(job.store.url).removeprefix("file://"))
    path = root / names.values_key(generation, 0)
    flip(path, 50)
    assert names.values_key(generation, 0) in abort_of(job.coordinator().conclude(generation)).reason


def test_a_superseded_coordinator_decides_nothing(job: Job) -> None:
    complete, incomplete = deliver(job, 0, 1), deliver(job, 0)
    job.store.put_if_absent(names.claim_key(2), b"a successor")
    for generation in (complete, incomplete):
        with pytest.raises(Superseded, match="incarnation 2 has been claimed"):
            job.coordinator().commit(generation, 2, timeout=1.0)
        assert ledger.read(job.store, job.coordinator().run_id, generation) is None


def test_a_coordinator_that_waits_in_vain_notices_its_successor(job: Job) -> None:
    generation = deliver(job, 0)
    clock = FakeClock()
    clock.on_sleep = lambda: job.store.put_if_absent(names.claim_key(2), b"a successor") if clock.now > 3 else None
    with pytest.raises(Superseded):
        Coordinator(job.store, job.coordinator().run_id, 1, clock).commit(generation, 2, timeout=600.0)
    assert clock.now < 10


def test_the_fence_comes_last(job: Job) -> None:
    """A claim that appears while the coordinator proves is still seen before it decides."""
    generation = deliver(job, 0, 1)

    def claim_then_pass(operation: str, _: str) -> bool:
        if operation == "kvstore":
            job.store.put_if_absent(names.claim_key(2), b"a successor")
        return False

    job.stores = {0: FaultyStore(job.store, claim_then_pass)}
    with pytest.raises(Superseded):
        job.coordinator().commit(generation, 2, timeout=1.0)


def test_what_was_decided_is_returned_even_to_a_superseded_one(job: Job) -> None:
    generation = deliver(job, 0, 1)
    decided = job.coordinator().conclude(generation)
    job.store.put_if_absent(names.claim_key(2), b"a successor")
    assert job.coordinator().conclude(generation) == decided


def test_two_coordinators_at_the_same_time_derive_the_same_bytes(job: Job) -> None:
    generation = deliver(job, 0, 1)
    start = threading.Barrier(4)
    found: list[object] = []

    def work() -> None:
        store = FileStore(str(Path(str(job.store.url).removeprefix("file://"))))
        coordinator = Coordinator(store, job.coordinator().run_id, 1)
        start.wait()
        try:
            found.append(coordinator.conclude(generation))
        except CheckpointError as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    decided = job.coordinator().conclude(generation)
    assert found == [decided] * 4
    assert verify(Checkpoint(job.store, decided), deep=True).ok


def test_a_database_that_holds_what_no_layout_asks_for_is_refuted(job: Job) -> None:
    generation = deliver(job, 0, 1)
    writer = DatabaseWriter(job.store, names.state_prefix(generation))
    writer.add(StoredArray("params.stray", "float32", (2,), Grid.regular((2,), (2,))), {0: np.zeros(2, np.float32)})
    writer.finish()
    assert "no layout asks for" in abort_of(job.coordinator().conclude(generation)).reason


def test_examining_writes_nothing(job: Job, place: Path) -> None:
    generation = deliver(job, 0, 1)
    before = contents(place)
    assert isinstance(job.coordinator().examine(generation), Proven)
    assert isinstance(job.coordinator().examine(GenerationId(1, 77, 1)), Refuted)
    assert contents(place) == before


def test_a_manifest_that_no_reader_would_take_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_UNCERTIFIED_BYTES", 20_000)
    assert "give less metadata" in abort_of(job.save(10, metadata="x" * 20_000)).reason
    assert job.save(20, metadata="x" * 10_000).committed


def test_an_object_store_is_asked_little_about_a_file() -> None:
    asked: list[str] = []
    counting = FaultyStore(open_store("memory://run"), lambda operation, key: "/d/" in key and bool(asked.append(operation)))
    job = Job(counting)
    job.open()
    generation = deliver(job, 0, 1)
    asked.clear()
    assert isinstance(job.coordinator().examine(generation), Proven)
    files = [key for key in counting.inner.list(names.state_prefix(generation)) if "/d/" in key]
    assert files
    assert asked == ["size"] * len(files)


def test_no_answer_about_a_file_decides_nothing(job: Job) -> None:
    generation = deliver(job, 0, 1)
    job.stores = {0: FaultyStore(job.store, lambda operation, key: operation == "size" and "/ranks/" in key)}
    with pytest.raises(StoreUnavailable):
        job.coordinator().commit(generation, 2, timeout=1.0)
    assert ledger.read(job.store, job.coordinator().run_id, generation) is None
    assert job.coordinator().conclude(generation).committed


def test_a_save_without_arrays_or_without_values(job: Job) -> None:
    for step, params in ((10, {"count": 3}), (20, {"w": np.zeros((0, 3), np.float32)}), (30, {"w": np.array(7.0)})):
        job.state_of = lambda *_, params=params: {"params": params}
        decided = job.save(step, guarantee="weights", derived={})
        assert decided.committed
        assert verify(Checkpoint(job.store, decided), deep=True).ok


def test_the_parent_and_the_metadata_are_recorded(job: Job) -> None:
    first = job.save(10)
    second = manifest(job.save(20, metadata={"loss": 0.25}))
    assert (second.parent, second.parent_manifest) == (str(first.generation), first.digest)
    assert second.metadata == {"loss": {"$float": "0.25"}}
    assert second.versions


def test_a_decision_that_somebody_else_was_faster_with_is_told(job: Job) -> None:
    """Who counts saves by events counts this one."""
    generation, told = deliver(job, 0, 1), list[Event]()
    assert job.coordinator().conclude(generation).committed
    late = replace(job.coordinator(), on_event=told.append)
    assert late.commit(generation, 2, timeout=1.0).committed
    (event,) = (event for event in told if event.kind == "committed")
    assert (event.generation, event.detail["guarantee"]) == (generation, "exact")
