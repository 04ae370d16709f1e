"""The loop over attempts: what is recorded, who is left out, when it stops. Attempts are played; the run's store is real."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import Attempt, Attempts, Supervisor
from ckptcore.errors import Damaged, StoreError, StoreFull, StoreUnavailable
from ckptcore.incarnations import undecided
from ckptcore.names import GenerationId
from ckptcore.store import Storage, Store
from ckptsupervise import accounts
from ckptsupervise.accounts import PATIENCE
from ckptsupervise.deadlines import Deadlines
from ckptsupervise.home import Home
from ckptsupervise.orders import Order
from ckptsupervise.policy import Policy
from ckptsupervise.supervisor import Result, Supervise
from ckptsupervise.telling import Told
from ckptsupervise.watching import Asked, Limits
from tests.ckptcore.failing import FaultyStore, WrappedStore
from tests.ckptcore.support import Job, file_store
from tests.ckptsupervise.fake import FakeEngine, FakeRunning, NodeClock, Script

OTHER = Supervisor(nonce="00ff00ff00ff00ff", host="elsewhere", pid=11)


class World:
    """A run, a node, and a job whose attempts are scripts."""

    def __init__(self, place: Path) -> None:
        self.store: Any = file_store(place / "run")
        self.clock, self.asked, self.top = NodeClock(), Asked(), place / "state"
        self.told: list[Told] = []
        self.saved = 0
        self.engine = FakeEngine(self.clock, [])

    def supervise(self, *scripts: Script, policy: Policy | None = None, **engine: Any) -> Result:
        listener = engine.pop("listener", self.told.append)
        self.engine = FakeEngine(self.clock, scripts, **engine)
        return Supervise(
            store=self.store,
            storage=Storage(),
            command=["train"],
            policy=policy or Policy(nproc=2, min_nproc=2),
            limits=Limits(deadlines=Deadlines(train=10)),
            engine=self.engine,
            listener=listener,
            asked=self.asked,
            clock=self.clock,
            top=self.top,
        ).run()

    @property
    def attempts(self) -> list[Attempt]:
        return Attempts(self.store).load()

    def outcomes(self) -> list[str | None]:
        return [each.end.outcome if each.end else None for each in self.attempts]

    def sizes(self) -> list[list[int]]:
        return [list(run.order.slots) for run in self.engine.attempts]

    def saving(self, at: float) -> Script:
        """Training that commits a step at `at` seconds."""

        def script(run: FakeRunning, seconds: float) -> None:
            if not hasattr(run, "job"):
                run.job = Job(self.store)  # pyright: ignore[reportAttributeAccessIssue]
                run.job.open()  # pyright: ignore[reportAttributeAccessIssue]
                run.saved = False  # pyright: ignore[reportAttributeAccessIssue]
            job: Job = run.job  # pyright: ignore[reportAttributeAccessIssue]
            if seconds >= at and not run.saved:  # pyright: ignore[reportAttributeAccessIssue]
                self.saved += 10
                job.save(self.saved)
                run.saved = True  # pyright: ignore[reportAttributeAccessIssue]
            run.beat(step=self.saved + 1, incarnation=job.number)

        return script

    def failing(self, rank: int, at: float, *, saving: float | None = None) -> Script:
        """Training in which a rank dies; with a step committed before, or not."""
        inner = self.saving(at=1e9 if saving is None else saving)

        def script(run: FakeRunning, seconds: float) -> None:
            inner(run, seconds)
            if seconds >= at:
                run.die(rank, -signal.SIGKILL)

        return script

    def bad_slot(self, slot: int) -> Script:
        """Whichever rank runs on a slot dies; without it the job commits, and trains on."""

        def script(run: FakeRunning, seconds: float) -> None:
            if slot in run.order.slots:
                plain(run, seconds)
                if seconds >= 2:
                    run.die(list(run.order.slots).index(slot), -signal.SIGBUS)
            else:
                run.__dict__.setdefault("inner", self.saving(at=1))(run, seconds)

        return script


def plain(run: FakeRunning, seconds: float) -> None:
    run.beat(step=int(seconds) + 1)


def finishing(run: FakeRunning, seconds: float) -> None:
    plain(run, seconds)
    if seconds >= 3:
        for rank in range(2):
            run.die(rank, 0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of the process that guards
    return World(tmp_path)


def test_a_job_that_finishes(world: World) -> None:
    assert world.supervise(finishing).reason == "finished"
    (attempt,) = world.attempts
    assert (attempt.plan.cause, attempt.plan.slots, attempt.plan.committed) == ("start", [0, 1], None)
    assert attempt.end is not None
    assert (attempt.end.outcome, attempt.end.incident, attempt.end.last_step) == ("finished", None, 4)
    assert attempt.resumed is not None
    assert [told.event for told in world.told] == ["launched", "recovered", "ended", "finished"]
    assert list(world.top.rglob("*.json")) == []


def test_a_rank_dies_and_the_job_goes_on(world: World) -> None:
    assert world.supervise(world.failing(1, 5, saving=2), finishing).reason == "finished"
    first, second = world.attempts
    assert first.end is not None
    assert first.end.incident is not None
    assert (first.end.outcome, first.end.incident.kind, first.end.incident.rank) == ("failed", "signal", 1)
    assert first.end.committed == str(GenerationId(1, 10, 1))
    assert (second.plan.cause, second.plan.committed) == ("restart", str(GenerationId(1, 10, 1)))
    assert not [told for told in world.told if told.event == "waiting"], "the first restart after progress comes at once"


def test_a_hang_is_recorded_with_its_stack(world: World) -> None:
    def hanging(run: FakeRunning, seconds: float) -> None:
        if seconds < 1:
            run.beat(step=1)

    assert world.supervise(hanging, finishing).reason == "finished"
    end = world.attempts[0].end
    assert end is not None
    assert end.incident is not None
    assert end.incident.kind == "hang"
    assert "process 1000" in end.stack


def test_a_save_that_lacked_only_its_decision_is_committed_before_the_next_attempt(world: World) -> None:
    def dying(run: FakeRunning, seconds: float) -> None:
        run.beat(step=12)
        if seconds >= 2 and 0 in run.alive:
            job = Job(world.store)
            job.open()
            generation = job.next_generation(12)
            for rank in range(2):
                job.write(generation, rank)
            run.die(0, -signal.SIGKILL)

    assert world.supervise(dying, finishing).reason == "finished"
    first, second = world.attempts
    assert first.end is not None
    assert second.plan.committed == first.end.committed == str(GenerationId(1, 12, 1))
    assert undecided(world.store) == []


def test_a_slot_that_always_fails_is_left_out_and_comes_back(world: World) -> None:
    policy = Policy(nproc=2, min_nproc=1, tries=2, grow_after=20.0)
    bad = world.bad_slot(1)
    result = world.supervise(bad, bad, bad, finishing, policy=policy)
    assert result.reason == "finished"
    assert world.sizes() == [[0, 1], [0, 1], [0], [0, 1]]
    assert [each.plan.cause for each in world.attempts] == ["start", "restart", "shrunk", "grown"]
    assert world.outcomes() == ["failed", "failed", "resized", "finished"]


def test_a_job_without_progress_is_given_up_and_explained(world: World) -> None:
    policy = Policy(nproc=2, min_nproc=2, max_restarts=2)
    result = world.supervise(world.failing(1, 5, saving=2), world.failing(0, 3), policy=policy)
    assert result.reason == "no-progress"
    assert len(world.engine.attempts) == 3, "the first, and two restarts that came to nothing"
    text = "\n".join(result.details)
    assert "the newest checkpoint is 000001-000000000010-1, of step 10" in text
    assert "no save was begun since" in text
    assert "attempt 3: signal, rank 0 on slot 0 in phase train at step 11: SIGKILL" in text
    waits = [told.seconds for told in world.told if told.event == "waiting"]
    assert len(waits) == 1
    assert world.told[-1].event == "given-up"


def test_saves_that_fail_are_part_of_the_explanation(world: World) -> None:
    def no_receipt(run: FakeRunning, seconds: float) -> None:
        run.beat(step=9)
        if seconds >= 2 and 1 in run.alive:
            job = Job(world.store)
            job.open()
            job.write(job.next_generation(9), 0)
            run.die(1, 1)

    result = world.supervise(no_receipt, policy=Policy(nproc=2, min_nproc=2, max_restarts=1))
    text = "\n".join(result.details)
    assert "nothing was ever committed" in text
    assert "missing receipt" in text
    assert "no receipt from rank 1" in text


def test_a_job_that_opens_no_run(world: World) -> None:
    def broken(run: FakeRunning, seconds: float) -> None:
        run.beat(phase="init")
        if seconds >= 1:
            run.last_words[0] = (
                "Traceback (most recent call last):\n  File 'train.py'\nModuleNotFoundError: no module named 'flaxx'\n"
            )
            run.die(0, 1)

    result = world.supervise(broken, policy=Policy(nproc=2, min_nproc=2, max_restarts=0))
    assert result.reason == "no-progress"
    assert "no job has opened the run" in result.details[0]
    assert "ModuleNotFoundError: no module named 'flaxx'" in result.details[-1]


def test_told_to_stop(world: World) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        plain(run, seconds)
        if seconds >= 2 and not world.asked.signals:
            world.asked.take(signal.SIGTERM)

    result = world.supervise(script)
    assert (result.reason, result.signal) == ("preempted", signal.SIGTERM)
    assert world.outcomes() == ["preempted"]


def test_told_to_stop_before_the_next_attempt(world: World) -> None:
    def dying(run: FakeRunning, seconds: float) -> None:
        plain(run, seconds)
        if seconds >= 2:
            run.die(0, 1)
            if len(world.engine.attempts) == 3:
                world.asked.take(signal.SIGINT)

    result = world.supervise(dying, policy=Policy(nproc=2, min_nproc=2, max_restarts=9))
    assert (result.reason, result.signal) == ("preempted", signal.SIGINT)
    assert len(world.engine.attempts) == 3


def test_another_supervisor_that_was_quicker(world: World) -> None:
    class Racing(WrappedStore):
        """Somebody else puts the plan just before we do."""

        def put_if_absent(self, key: str, data: bytes) -> bytes:
            if key.endswith("plan.json"):
                Attempts(self.inner).plan(1, supervisor=OTHER, slots=[0], nodes=["elsewhere"], cause="start")
            return super().put_if_absent(key, data)

    world.store = Racing(world.store)
    result = world.supervise(finishing)
    assert result.reason == "superseded"
    assert "process 11 on elsewhere" in result.message
    assert world.engine.attempts == []


def test_another_supervisor_that_took_the_run_meanwhile(world: World) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        plain(run, seconds)
        if seconds >= 2:
            Attempts(world.store).plan(2, supervisor=OTHER, slots=[0], nodes=["elsewhere"], cause="start")
            run.die(0, 1)

    assert world.supervise(script, finishing).reason == "superseded"
    assert len(world.engine.attempts) == 1
    assert world.outcomes() == ["superseded", None]


def test_a_job_that_claims_the_run_by_itself(world: World) -> None:
    inner = world.saving(at=1)

    def script(run: FakeRunning, seconds: float) -> None:
        inner(run, seconds)
        if seconds >= 3 and 0 in run.alive:
            Job(world.store).open()
            run.die(0, 1)

    result = world.supervise(script, finishing)
    assert result.reason == "superseded"
    assert "incarnation 2" in result.message
    assert len(world.engine.attempts) == 1
    assert world.outcomes() == ["superseded"]


def test_what_a_dead_supervisor_has_left_is_accounted_for(world: World) -> None:
    """It had planned an attempt, whose ranks had told how far they were."""
    attempts = Attempts(world.store)
    attempts.plan(1, supervisor=OTHER, slots=[0, 1], nodes=["here", "here"], cause="start")
    before = Home.make(world.store.url, OTHER.nonce, top=world.top)
    order = Order(command=[], attempt=1, slots=[0, 1], places=2, folder=before.attempt(1))
    FakeRunning(order, world.clock, plain).beat(step=41, blocked=2.0)
    os.close(before._lock)
    assert world.supervise(finishing).reason == "finished"
    first, second = world.attempts
    assert first.end is not None
    assert (first.end.outcome, first.end.last_step, first.end.blocked) == ("lost", 41, 2_000_000)
    assert second.plan.cause == "resumed-supervisor"


@pytest.mark.parametrize("data", [b"", b'{"format":"ckpt/attempt-end","version":"2.0"}'])
def test_an_end_that_cannot_be_read_is_passed_over(world: World, data: bytes) -> None:
    Attempts(world.store).plan(1, supervisor=OTHER, slots=[0, 1], nodes=["n", "n"], cause="start")
    world.store.put_if_absent("supervision/00000001/end.json", data)
    assert world.supervise(finishing).reason == "finished"
    assert world.outcomes() == [None, "finished"]


def test_what_a_living_supervisor_does_is_left_to_it(world: World) -> None:
    Attempts(world.store).plan(1, supervisor=OTHER, slots=[0, 1], nodes=["here", "here"], cause="start")
    living = Home.make(world.store.url, OTHER.nonce, top=world.top)
    try:
        assert world.supervise(finishing).reason == "finished"
    finally:
        living.close()
    assert world.outcomes() == [None, "finished"]


def test_a_store_that_is_away_for_a_while_is_waited_for(world: World) -> None:
    world.store = FaultyStore(world.store, lambda operation, _: operation == "list", times=3)
    assert world.supervise(finishing).reason == "finished"
    assert len([told for told in world.told if told.event == "waiting"]) == 1, "the same reason is told once"


def test_that_training_has_caught_up_is_recorded_once_the_store_is_there(world: World) -> None:
    world.store = FaultyStore(world.store, lambda operation, key: operation == "put_if_absent" and key.endswith("resumed.json"))
    assert world.supervise(finishing).reason == "finished"
    assert world.store.hits == 1
    assert world.attempts[0].resumed is not None


def test_a_store_that_stays_away_is_not_waited_for_for_ever(world: World) -> None:
    world.store = FaultyStore(world.store, lambda operation, _: operation == "list", times=10**6)
    started = world.clock.now
    with pytest.raises(StoreUnavailable):
        world.supervise(finishing)
    assert PATIENCE <= world.clock.now - started <= PATIENCE + 60
    assert world.told[-1].event == "given-up"
    assert "injected: no answer" in world.told[-1].message


@pytest.mark.parametrize("error", [StoreFull, StoreError, StoreUnavailable])
@pytest.mark.parametrize("record", ["plan.json", "end.json"])
def test_what_a_store_refuses_to_record_is_recorded_once_it_is_mended(world: World, record: str, error: type[StoreError]) -> None:
    broken = FaultyStore(world.store, lambda _, key: key.endswith(record), lambda: error("no room"), times=3)
    world.store = broken
    assert world.supervise(finishing).reason == "finished"
    assert (broken.left, world.outcomes()) == (0, ["finished"])
    waiting = [told.message for told in world.told if told.event == "waiting"]
    assert waiting == ["waiting for the store: no room"]


def test_a_store_that_is_full_from_the_start_is_waited_for(world: World) -> None:
    world.store = FaultyStore(world.store, lambda *_: True, lambda: StoreFull("no room"), times=3)
    assert world.supervise(finishing).reason == "finished"


@pytest.mark.parametrize("error", [StoreError("no such bucket"), Damaged("not what it was")])
def test_what_cannot_be_waited_for_ends_with_an_event(world: World, error: Exception) -> None:
    world.store = FaultyStore(world.store, lambda *_: True, lambda: error)
    with pytest.raises(type(error)):
        world.supervise(finishing)
    assert [(told.event, told.message) for told in world.told] == [("given-up", f"supervision ends: {error}")]
    assert world.clock.now < 1000 + PATIENCE / 10


def test_each_reason_is_told_once(world: World) -> None:
    errors = iter(["slow down", "slow down", "no route", "no route", "slow down"])
    world.store = FaultyStore(world.store, lambda *_: True, lambda: StoreUnavailable(next(errors)), times=5)
    assert world.supervise(finishing).reason == "finished"
    waiting = [told.message for told in world.told if told.event == "waiting"]
    assert waiting == [f"waiting for the store: {why}" for why in ("slow down", "no route", "slow down")]


@pytest.mark.parametrize("record", ["", "resumed.json", "end.json"])
def test_a_store_that_never_answers_is_told_of_and_does_not_keep_from_stopping(
    world: World, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr(accounts, "SOON", 0.5)
    monkeypatch.setattr(accounts, "HURRY", 1.0)
    answers = threading.Event()
    world.store = BlockingStore(world.store, record, answers)

    def told(each: Told) -> None:
        world.told.append(each)
        if each.event in ("waiting", "recovered"):
            world.asked.take(signal.SIGTERM)

    try:
        assert world.supervise(plain, listener=told).reason == "preempted"
    finally:
        answers.set()
    slow = [each.message for each in world.told if each.event == "waiting"]
    assert record == "resumed.json" or set(slow) == {"the store does not answer yet"}


class BlockingStore(WrappedStore):
    """Answers nothing about keys that end so."""

    def __init__(self, inner: Store, end: str, answers: threading.Event) -> None:
        super().__init__(inner)
        self.end, self.answers = end, answers

    def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:  # noqa: ARG002
        if key.endswith(self.end):
            assert self.answers.wait(60)
        return call()


def test_a_full_store_does_not_keep_from_stopping(world: World) -> None:
    world.store = FaultyStore(world.store, lambda _, key: key.endswith("end.json"), lambda: StoreFull("no room"), times=10**6)

    def script(run: FakeRunning, seconds: float) -> None:
        plain(run, seconds)
        if seconds >= 3 and not world.asked.signals:
            world.asked.take(signal.SIGTERM)

    assert world.supervise(script).reason == "preempted"
    assert world.told[-1].event == "preempted"
    assert world.clock.now < 1000 + PATIENCE / 10


def saving_to(run_of_ranks: Store, *, steps: int = 3) -> Script:
    """Training that opens a run, which need not be the one that is supervised, and finishes."""
    job = Job(run_of_ranks)

    def script(run: FakeRunning, seconds: float) -> None:
        if job.incarnation is None:
            job.open()
        assert job.incarnation is not None
        run.beat(step=int(seconds) + 1, incarnation=job.number, run=job.incarnation.run.run_id)
        if seconds >= steps:
            for rank in range(2):
                run.die(rank, 0)

    return script


@pytest.mark.parametrize("here", ["nothing", "another run", "a copy"])
def test_ranks_that_save_to_another_run_are_told_of(world: World, tmp_path: Path, here: str) -> None:
    elsewhere = file_store(tmp_path / "elsewhere")
    if here == "another run":
        Job(world.store).open()
    script = saving_to(elsewhere)
    if here == "a copy":
        Job(elsewhere).open()
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "run")
    assert world.supervise(script).reason == "finished"
    assert sorted(told.event for told in world.told) == sorted(["launched", "recovered", "warning", "ended", "finished"])
    warning = f"ranks save to another run than --run {world.store.url}: their Checkpointer has another URL"
    assert [told.message for told in world.told if told.event == "warning"] == [
        f"{warning}; what they commit does not count here"
    ]
    assert world.told[-1].details == [warning]


def test_ranks_that_save_to_this_run_are_not(world: World) -> None:
    assert world.supervise(saving_to(world.store)).reason == "finished"
    assert [told.event for told in world.told] == ["launched", "recovered", "ended", "finished"]
    assert world.told[-1].details == []


def test_claims_of_another_run_are_nobody_else_s(world: World, tmp_path: Path) -> None:
    for _ in range(3):
        Job(world.store).open()

    def fail(run: FakeRunning, seconds: float) -> None:
        train(run, seconds)
        if seconds >= 2:
            run.die(1, -signal.SIGKILL)

    train = saving_to(file_store(tmp_path / "elsewhere"), steps=10)
    assert world.supervise(fail, finishing).reason == "finished"
    assert world.outcomes() == ["failed", "finished"]
