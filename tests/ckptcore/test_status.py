"""How a run is doing, from its records alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ckptcore import ledger, names, phases
from ckptcore.attempts import AttemptIncident, Attempts
from ckptcore.errors import NotFound, SaveFailed
from ckptcore.inspect import costs
from ckptcore.inspect import status as status_module
from ckptcore.inspect.chronicle import Delivery, chronicle
from ckptcore.inspect.failures import failure
from ckptcore.inspect.incidents import predicted
from ckptcore.inspect.status import status
from ckptcore.interval import Costs
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.proof import Refuted
from ckptcore.run import open_run
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.supervised import END, OWNER, At, never_begun, supervised
from tests.ckptcore.support import FakeClock, Job, checkpointer, file_store, state
from tests.ckptcore.training import Later, train


def test_ages_go_by_when_the_state_was_captured(place: Path) -> None:
    train(place, [10, 20])
    run = open_run(place)
    run.verify(step=10, note=True)
    found = status(file_store(place), Later(1000))
    assert found.committed is not None
    assert found.verified is not None
    assert (found.committed.generation.step, found.verified.generation.step) == (20, 10)
    assert found.committed.age is not None
    assert 1000 <= found.committed.age < 1100
    assert found.verified.age is not None
    assert found.verified.age > found.committed.age
    assert found.committed.captured == datetime.fromisoformat(open_run(place).checkpoint(step=20).manifest.captured)
    by_run = run.status().committed
    assert by_run is not None
    assert by_run.generation == found.committed.generation
    assert (found.steps_at_risk, found.undecided, found.failures) == (None, (), {})


def test_a_checkpoint_from_the_future_has_a_negative_age(place: Path) -> None:
    train(place, [10], size=1)
    found = status(file_store(place), Later(-1000)).committed
    assert found is not None
    assert found.age is not None
    assert -1000 <= found.age < -900


def test_what_a_save_costs_by_phase(place: Path) -> None:
    train(place, [10, 20])
    save = status(file_store(place)).save
    assert save is not None
    assert (save.generation, save.participants) == (GenerationId(1, 20, 1), 2)
    assert save.bytes >= 768 * 4
    told = [save.stage, save.write, save.previous_wait, save.previous_commit, save.bytes_per_second, save.slowest_seconds]
    assert all(value is not None and value >= 0 for value in told)
    assert save.slowest in (0, 1)
    first = {each.rank: each.phases for each in chronicle(file_store(place)).deliveries[GenerationId(1, 10, 1)]}
    assert {rank: set(told) for rank, told in first.items()} == {rank: {"stage", "write"} for rank in (0, 1)}


def test_a_failed_save_says_nothing_in_the_next_receipt(place: Path) -> None:
    """What `previous_…` tells is of the save before, or it is not there."""

    def no_layout(operation: str, key: str) -> bool:
        return operation == "put_if_absent" and "layouts/" in key

    with checkpointer(place) as ckpt:
        store = ckpt._store
        for step in (10, 20):
            ckpt.save(step, state(step)).result()
        ckpt._store = FaultyStore(store, no_layout)
        with pytest.raises(SaveFailed):
            ckpt.save(30, state(30)).result()
        ckpt._store = store
        ckpt.save(40, state(40)).result()
    told = chronicle(file_store(place)).deliveries
    phases_of = {generation.step: set(each[0].phases) for generation, each in told.items()}
    assert phases_of == {
        10: {"stage", "write"},
        20: {"stage", "write", "previous_wait", "previous_commit"},
        40: {"stage", "write"},
    }


def test_failures_backlog_and_what_is_undecided(place: Path) -> None:
    job = Job(file_store(place))
    job.open()
    for step in (10, 20, 30):
        job.save(step)
    late = job.next_generation(35)
    job.write(late, 0)
    job.coordinator().abort(late, Refuted("no receipt from rank 1 of 2 within 30 s", (1,)))
    torn = job.next_generation(36)
    job.write(torn, 0)
    job.coordinator().abort(torn, Refuted("state/x is absent"))
    under_way = job.next_generation(40)
    job.write(under_way, 1)
    found = status(job.store)
    assert dict(found.failures) == {"missing receipt": 1, "not whole": 1}
    assert [(each.generation, each.missing) for each in found.undecided] == [(under_way, (0,))]
    assert found.steps_at_risk == 10
    assert found.backlog.generations == (late, torn)
    assert found.backlog.bytes == 0
    assert dict(found.states) == {"committed": 3, "aborted": 2, "undecided": 1}


def test_what_is_retired_and_not_deleted_counts_with_its_bytes(place: Path) -> None:
    job = Job(file_store(place))
    job.open()
    for step in (10, 20, 30):
        job.save(step)
    assert status(job.store).backlog.generations == ()
    first = ledger.read(job.store, job.coordinator().run_id, GenerationId(1, 10, 1))
    assert first is not None
    ledger.retire(job.store, first, "by hand", clock=FakeClock())
    found = status(job.store).backlog
    assert found.generations == (first.generation,)
    assert found.bytes > 3000
    job.store.delete_prefix(names.generation_prefix(first.generation))
    assert status(job.store).backlog.generations == ()


def test_a_rollback_counts_from_where_it_goes_on(place: Path) -> None:
    with checkpointer(place, keep=Keep(last=3)) as ckpt:
        ckpt.save(10, state(10)).result()
        ckpt.save(20, state(20)).result()
        ckpt.restore(like=state(0), step=10)
    found = status(file_store(place))
    assert found.committed is not None
    assert found.committed.generation.step == 10


def test_a_run_without_saves_and_no_run(place: Path) -> None:
    Job(file_store(place / "run"), 1).open()
    found = status(file_store(place / "run"))
    assert (found.committed, found.verified, found.save, found.steps_at_risk) == (None, None, None, None)
    with pytest.raises(NotFound):
        status(file_store(place / "nothing"))


def test_receipts_that_are_gone_leave_the_rest(place: Path) -> None:
    train(place, [10], size=1)
    (place / names.receipt_key(GenerationId(1, 10, 1), 0)).unlink()
    found = status(file_store(place))
    assert found.save is None
    assert found.committed is not None


@pytest.mark.parametrize(
    ("reason", "missing", "kind"),
    [
        ("no receipt from ranks 3, 4 of 8 within 600 s", (3, 4), "missing receipt"),
        ("no receipt was delivered", (), "missing receipt"),
        ("a rank could not write its part. rank 1: OSError: broken", (), "failed rank"),
        ("a rank could not write its part. rank 1: StoreFull: quota", (), "store full"),
        ("there is no room left to commit it: full", (), "store full"),
        ("rank 0 could not write its part: x", (), "failed rank"),
        ("left behind by a superseded incarnation, after its successor had settled", (), "superseded"),
        ("generations/x is absent", (), "not whole"),
    ],
)
def test_failures_by_kind(reason: str, missing: tuple[int, ...], kind: str) -> None:
    assert failure(reason, missing) == kind


# What saves have cost


def delivery(rank: int, **told: float) -> Delivery:
    return Delivery(rank, told, {}, 0)


def test_costs_are_the_medians_of_what_receipts_tell() -> None:
    told = {
        GenerationId(1, 10, 1): [delivery(0, stage=1, write=10), delivery(1, stage=3, write=40)],
        GenerationId(1, 20, 1): [
            delivery(0, stage=2, write=20, previous_wait=31, previous_commit=4),
            delivery(1, stage=1, write=9),
        ],
        GenerationId(2, 30, 1): [delivery(0, stage=4, write=20), delivery(1, stage=1, write=9)],
    }
    found = costs.measured(told)
    assert found == costs.Measured(blocking=3, persist=45, saves=3, whole=True)
    assert costs.measured({GenerationId(2, 30, 1): told[GenerationId(2, 30, 1)]}) == costs.Measured(4, 20, 1, whole=False)
    assert costs.measured({}) is costs.measured({GenerationId(1, 1, 1): [delivery(0)]}) is None


def test_the_slowest_rank() -> None:
    assert phases.slowest({0: {"stage": 1, "write": 2}, 1: {"stage": 3, "write": 1}, 2: {}}) == 1
    assert phases.slowest({}) is phases.slowest({0: {}}) is None
    assert phases.before({"stage": 1, "write": 2, "wait": 3, "commit": 4}) == {"previous_wait": 3, "previous_commit": 4}


class AfterAll(At):
    """A clock that shows the end of what `supervised` made."""

    seconds = 8000.0


def test_a_supervised_run_has_an_account(place: Path) -> None:
    """What the newest attempt trains counts until the newest capture: nobody knows whether it lives."""
    run = supervised(place)
    found = status(run.store, AfterAll())
    assert found.at == END
    told = found.supervision
    assert told is not None
    assert (told.newest.number, [each.kind for each in told.incidents]) == (5, ["signal", "hang", "exit"])
    assert [each.lost_steps for each in told.incidents] == [50, 40, 0]
    assert told.goodput.wall == 7200
    assert told.goodput.detect == 0.5 + 600 + 10
    assert told.goodput.mtbf == 2400
    assert open_run(place).status().supervision is not None


def test_without_a_checkpoint_no_training_is_counted(place: Path) -> None:
    run = supervised(place)
    store = run.store
    for generation in ledger.entries(store):
        store.delete(names.ledger_key(generation[0]))
    told = status(store, AfterAll()).supervision
    assert told is not None
    assert told.goodput.wall == 5470, "until the last attempt trained"


def test_the_model_is_asked_with_what_was_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(place, [10, 20])
    clock = Later(-3600)
    run, at = Attempts(file_store(place), clock=clock), datetime.fromisoformat(clock.utc())
    run.plan(1, supervisor=OWNER, slots=[0, 1], nodes=["n", "n"], cause="start")
    over = at + timedelta(seconds=600)
    run.end(1, outcome="failed", incident=AttemptIncident(kind="exit"), detected=over, stopped=over)
    monkeypatch.setattr(status_module, "kept", lambda _: 30.0)
    found = status(file_store(place))
    assert found.save is not None
    assert found.supervision is not None
    parts = [found.save.stage, found.save.write, found.save.previous_wait, found.save.previous_commit]
    stage, *rest = (part or 0.0 for part in parts)
    told = found.supervision
    assert told.predicted == predicted(told.incidents, told.goodput, Costs(blocking=stage, persist=sum(rest)), 30.0)
    assert told.predicted is not None
    assert 0 < told.predicted < 1


def test_a_run_that_nobody_supervises_costs_one_listing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(place, [10], size=1)
    store = file_store(place)
    listed: list[str] = []
    lists = store.list
    monkeypatch.setattr(store, "list", lambda prefix="": (listed.append(prefix), lists(prefix))[1])
    assert status(store).supervision is None
    assert listed.count("supervision/") == 1
    assert chronicle(store).attempts == ()


def test_a_run_that_no_job_has_begun(place: Path) -> None:
    run = never_begun(place)
    found = status(run.store, Later(0))
    assert (found.begun, found.committed, found.starts, dict(found.states)) == (False, None, (), {})
    assert found.supervision is not None
    assert [each.kind for each in found.supervision.incidents] == ["exit", "exit"]
    assert chronicle(run.store).run is None
    Job(run.store, 3).open()
    assert status(run.store).begun


def test_of_many_starts_the_newest(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "STARTS", 2)
    store = file_store(place)
    for size in (4, 3, 2):
        job = Job(store, size)
        job.open()
        job.save(10 * job.number)
    assert [(each.number, each.before, each.participants, each.guarantee) for each in status(store).starts] == [
        (2, 4, 3, "coverage"),
        (3, 3, 2, "coverage"),
    ]
