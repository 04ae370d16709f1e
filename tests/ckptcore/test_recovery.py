"""What a dead job left is finished by anybody, as its own coordinator would have, beside a live one too (spec: P-58)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ckptcore import ledger, names, records
from ckptcore.coordinator import Coordinator
from ckptcore.errors import NotFound, StoreUnavailable
from ckptcore.history import History
from ckptcore.incarnations import undecided
from ckptcore.names import GenerationId
from ckptcore.operate.recovery import Undecided, recover
from ckptcore.store import Storage, Store, open_store
from tests.ckptcore.failing import Died, DyingStore, FaultyStore, WrappedStore
from tests.ckptcore.support import FakeClock, Job, check_commits, contents, file_store, restored_step

STEP = 20


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, place: Path) -> Store:
    if request.param == "file":
        return file_store(place / "run")
    return open_store("memory://run", Storage())


def left_behind(store: Store, *ranks: int) -> tuple[Job, GenerationId]:
    """A job with one commit, and a save that `ranks` have delivered and nobody has decided."""
    job = Job(store)
    job.open()
    job.save(10)
    generation = job.next_generation(STEP)
    for rank in ranks or (0, 1):
        job.write(generation, rank)
    return job, generation


def outcomes(found: list[Undecided]) -> dict[int, str]:
    return {each.generation.step: each.outcome for each in found}


def decision(store: Store, generation: GenerationId) -> bytes | None:
    return store.get(names.ledger_key(generation))


def test_a_dry_run_proves_and_changes_nothing(place: Path) -> None:
    store = file_store(place / "run")
    _, generation = left_behind(store)
    before = contents(place)
    (found,) = recover(store, apply=False)
    assert (found.generation, found.outcome, found.missing) == (generation, "complete", ())
    assert contents(place) == before


def test_it_is_committed_as_its_own_coordinator_would_have(store: Store, place: Path) -> None:
    job, generation = left_behind(store)
    twin = file_store(place / "twin")
    for key in store.list():
        twin.put_if_absent(key, store.get(key) or b"")
    assert Coordinator(twin, job.coordinator().run_id, 1).conclude(generation).committed
    (found,) = recover(store, apply=True)
    assert (found.outcome, undecided(store)) == ("committed", [])
    assert decision(store, generation) == decision(twin, generation)
    head = History.load(store).head()
    assert head is not None
    assert head.generation == generation
    assert restored_step(store, generation, 2) == STEP
    assert recover(store, apply=True) == []


def test_what_is_incomplete_stays_as_it_is(place: Path) -> None:
    store = file_store(place / "run")
    job, generation = left_behind(store, 1)
    before = contents(place)
    (found,) = recover(store, apply=True)
    assert (found.outcome, found.missing, found.clause) == ("incomplete", (0,), "P-35")
    assert "no receipt from rank 0 of 2" in found.reason
    assert "P-35.1" in found.details[0].clause
    assert contents(place) == before
    job.write(generation, 0)  # it was on its way
    assert job.coordinator().conclude(generation).committed


def test_a_lost_file_is_named(place: Path) -> None:
    store = file_store(place / "run")
    _, generation = left_behind(store)
    lost = next(key for key in store.list(names.generation_prefix(generation)) if "/d/" in key)
    store.delete(lost)
    (found,) = recover(store, apply=True)
    assert found.outcome == "incomplete"
    assert f"{lost} is absent" in found.reason
    assert [detail.key for detail in found.details] == [lost]
    assert decision(store, generation) is None


def test_an_older_incarnation_is_left_to_the_next_start(place: Path) -> None:
    store = file_store(place / "run")
    old, generation = left_behind(store)
    Job(store).open()  # has settled
    late = old.next_generation(99)
    for rank in (0, 1):
        old.write(late, rank)
    before = contents(place)
    (found,) = recover(store, apply=True)
    assert (found.generation, found.outcome, found.clause) == (late, "superseded", "P-10")
    assert "proven whole: the next start commits it" in found.reason
    assert contents(place) == before
    assert decision(store, generation) is not None


def test_a_start_that_claims_meanwhile_stops_it(place: Path) -> None:
    """Right before the fence: the claim is there, so that the start's settle decides, and nobody else."""
    store = file_store(place / "run")
    _, generation = left_behind(store)

    def claim(operation: str, key: str) -> bool:
        if (operation, key) == ("get", names.claim_key(2)):
            record = records.decode(store.get(names.claim_key(1)) or b"", records.Claim, key="claim")
            store.put_if_absent(key, records.encode(msgspec.structs.replace(record, incarnation=2)))
        return False

    (found,) = recover(FaultyStore(store, claim), apply=True)
    assert (found.outcome, found.clause) == ("superseded", "P-38")
    assert decision(store, generation) is None
    assert Job(store).open().base_generation == generation


@pytest.mark.parametrize("lost", [names.claim_key(1), names.base_key(1)])
def test_without_its_incarnation_nothing_is_decided(place: Path, lost: str) -> None:
    store = file_store(place / "run")
    _, generation = left_behind(store)
    store.delete(lost)
    (found,) = recover(store, apply=True)
    assert found.outcome == "undetermined"
    assert f"{lost} of" in found.reason
    assert decision(store, generation) is None


def test_a_run_in_single_writer_mode_has_one_coordinator(place: Path) -> None:
    store = file_store(place / "run")
    left_behind(store)
    base = place / "run" / names.base_key(1)
    base.chmod(0o644)
    base.write_bytes(base.read_bytes().replace(b'"single_writer":false', b'"single_writer":true'))
    (found,) = recover(store, apply=True)
    assert found.outcome == "undetermined"
    assert "single-writer mode" in found.reason


def test_what_a_newer_release_wrote_is_undetermined(place: Path) -> None:
    store = file_store(place / "run")
    _, generation = left_behind(store)
    receipt = place / "run" / names.receipt_key(generation, 1)
    receipt.chmod(0o644)
    receipt.write_bytes(receipt.read_bytes().replace(b'"version":"1.0"', b'"version":"2.0"'))
    (found,) = recover(store, apply=True)
    assert (found.outcome, found.clause) == ("undetermined", "P-13")


def test_one_that_cannot_be_looked_at_hides_no_other(place: Path) -> None:
    store = file_store(place / "run")
    job, generation = left_behind(store)
    later = job.next_generation(30)
    for rank in (0, 1):
        job.write(later, rank)
    silent = FaultyStore(store, lambda _, key: key.startswith(names.generation_prefix(generation)), times=99)
    assert outcomes(recover(silent, apply=True)) == {STEP: "undetermined", 30: "committed"}
    assert "no answer" in recover(FaultyStore(store, silent.matches, times=99), apply=False)[0].reason


def test_no_run(place: Path) -> None:
    with pytest.raises(NotFound):
        recover(file_store(place), apply=True)


def test_an_unknown_answer_to_the_decision_is_said(place: Path) -> None:
    store = file_store(place / "run")
    _, generation = left_behind(store)
    deciding = FaultyStore(store, lambda o, key: (o, key) == ("put_if_absent", names.ledger_key(generation)), times=10**6)
    (found,) = recover(deciding, apply=True, clock=FakeClock())
    assert found.outcome == "undetermined"
    assert "it may have committed" in found.reason


class Between(WrappedStore):
    """Does something once, right before its operation number `at`."""

    def __init__(self, inner: Store, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.at, self.meanwhile, self.count = at, meanwhile, 0

    def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:  # noqa: ARG002
        self.count += 1
        if self.count == self.at:
            self.meanwhile()
        return call()


def operations(place: Path, work: Callable[[Store], object]) -> int:
    """How many operations `work` needs on a run with a save that is left behind."""
    store = file_store(place / "counted")
    left_behind(store)
    counting = Between(store, 0, lambda: None)
    work(counting)
    return counting.count


def conclude(store: Store) -> ledger.Decided:
    run = History.load(store).run
    return Coordinator(store, run.run_id, 1, FakeClock()).conclude(GenerationId(1, STEP, 1))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the job", "the other"])
def test_beside_a_live_coordinator_the_result_is_the_same(place: Path, first: str) -> None:
    """Whoever comes in between, at every operation of the one that is at work."""

    def other(store: Store) -> object:
        return recover(store, apply=True, clock=FakeClock())

    one, two = (conclude, other) if first == "the job" else (other, conclude)
    for at in range(1, operations(place, one) + 1):
        store = file_store(place / f"run-{at}")
        _, generation = left_behind(store)
        one(Between(store, at, lambda store=store: two(store)))
        decided = conclude(store)
        assert decided.committed
        assert check_commits(store) == [generation, GenerationId(1, 10, 1)]
        assert recover(store, apply=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("then", ["the job goes on", "a start settles", "it is called again"])
def test_to_be_killed_is_harmless(place: Path, then: str) -> None:
    at = 0
    while True:
        at += 1
        store = file_store(place / f"run-{at}")
        _, generation = left_behind(store)
        try:
            recover(DyingStore(store, at), apply=True, clock=FakeClock())
        except Died:
            pass
        else:
            break
        if then == "the job goes on":
            assert conclude(store).committed
        elif then == "a start settles":
            assert Job(store).open().base_generation == generation
        else:
            assert set(outcomes(recover(store, apply=True))) <= {STEP}
        assert undecided(store) == []
        assert check_commits(store) == [generation, GenerationId(1, 10, 1)]
    assert at > 5


def test_a_job_that_aborts_meanwhile_has_its_way(place: Path) -> None:
    store = file_store(place / "run")
    job, generation = left_behind(store)

    def abort(operation: str, key: str) -> bool:
        if (operation, key) == ("put_if_absent", names.ledger_key(generation)):
            record = records.Abort(
                run_id=job.coordinator().run_id,
                generation=str(generation),
                decided="2026-01-01T00:00:00Z",
                decided_by=1,
                reason="too late",
                missing=[1],
            )
            store.put_if_absent(key, records.encode(record))
        return False

    (found,) = recover(FaultyStore(store, abort), apply=True)
    assert found.outcome == "aborted"
    assert found.reason == "decided meanwhile: too late"


def test_a_store_that_is_silent_altogether(place: Path) -> None:
    store = file_store(place / "run")
    left_behind(store)
    with pytest.raises(StoreUnavailable):
        recover(FaultyStore(store, lambda *_: True, times=99), apply=True)
