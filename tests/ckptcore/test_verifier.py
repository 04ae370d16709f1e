"""The background verifier: every commit is read back, beside the job, and nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckptcore import ledger, names
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.events import Event
from ckptcore.history import History
from ckptcore.monitor import verifier
from ckptcore.monitor.observers import Observers
from ckptcore.monitor.verifier import Verifier
from ckptcore.names import GenerationId
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import Job, checkpointer, commits, file_store, flip, on_ranks, state
from tests.threads import new_threads

FAST = 1e15
DEADLINE = 20.0


class Heard:
    """Events, and waiting for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, *kinds: str) -> Event:
        """The next event of these kinds, taken out."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(event.kind in kinds for event in self.events), DEADLINE)
            found = next(event for event in self.events if event.kind in kinds)
            self.events.remove(found)
            return found


@pytest.fixture
def job(place: Path) -> Job:
    started = Job(file_store(place / "run"))
    started.open()
    started.save(10)
    return started


@contextmanager
def verifying(
    store: Any, heard: Heard, saving: Callable[[], GenerationId | None] = lambda: None, rate: float = FAST
) -> Iterator[Verifier]:
    made = Verifier(store, rate=rate, saving=saving, on_event=heard)
    try:
        yield made
    finally:
        made.close()
        assert not made._thread.is_alive()


def committed(step: int) -> Event:
    return Event("committed", 0, GenerationId(1, step, 1))


def notes_of(job: Job, step: int) -> list[tuple[str, str | None]]:
    return [(note.kind, note.depth) for note in History.load(job.store).notes.get(GenerationId(1, step, 1), [])]


def test_a_commit_is_read_back_and_noted(job: Job) -> None:
    heard = Heard()
    with verifying(job.store, heard) as running:
        running(Event("staged", 0, GenerationId(1, 10, 1)))
        running(committed(10))
        told = heard.wait("verified", "damaged", "verification-failed")
    assert (told.kind, told.generation, told.message) == ("verified", GenerationId(1, 10, 1), "")
    assert told.detail["bytes"] > 3000
    assert told.detail["captured"] == commits(job.store)[0].manifest.captured
    assert notes_of(job, 10) == [("verified", "deep")]


def test_damage_is_noted_and_loud(job: Job, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    for key in job.store.list("generations/000001-000000000010-1/state/ranks/"):
        if "/d/" in key:
            flip(place / "run" / key, 20)
    heard = Heard()
    with verifying(job.store, heard) as running:
        running(committed(10))
        told = heard.wait("verified", "damaged", "verification-failed")
    assert told.kind == "damaged"
    assert "params.w" in told.message
    assert notes_of(job, 10) == [("damaged", "deep")]
    assert any(record.levelname == "WARNING" and record.kind == "damaged" for record in caplog.records)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_store_that_is_silent_is_told_and_the_next_commit_is_verified(job: Job) -> None:
    heard = Heard()
    silent = FaultyStore(job.store, lambda _, key: key == names.ledger_key(GenerationId(1, 10, 1)))
    with verifying(silent, heard) as running:
        running(committed(10))
        assert "no answer" in heard.wait("verification-failed").message
        job.save(20)
        running(committed(20))
        assert heard.wait("verified").generation == GenerationId(1, 20, 1)


def test_what_retention_takes_is_no_failure(job: Job) -> None:
    job.save(20)
    decided = ledger.read(job.store, job.coordinator().run_id, GenerationId(1, 10, 1))
    assert decided is not None
    ledger.retire(job.store, decided, "by hand", clock=Clock())
    job.store.delete_prefix(names.generation_prefix(decided.generation))
    heard, flight = Heard(), Flight()
    flight.now = None
    with verifying(job.store, heard, flight) as running:
        running(committed(10))
        flight.seen(1)
        running(committed(20))
        assert heard.wait("verified").generation == GenerationId(1, 20, 1)
    assert heard.events == []


class Flight:
    """A save in flight, seen by the verifier."""

    def __init__(self) -> None:
        self.now: GenerationId | None = GenerationId(1, 11, 1)
        self.looks = 0
        self.changed = threading.Condition()

    def __call__(self) -> GenerationId | None:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
            return self.now

    def seen(self, looks: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.looks >= looks, DEADLINE)


def test_it_gives_way_to_a_save_in_flight(job: Job) -> None:
    heard, flight, read = Heard(), Flight(), list[str]()
    watched = FaultyStore(job.store, lambda operation, key: bool(read.append(f"{operation} {key}")))
    with verifying(watched, heard, flight) as running:
        running(committed(10))
        flight.seen(4)
        assert not [each for each in read if "receipts" in each]
        flight.now = None
        assert heard.wait("verified").generation == GenerationId(1, 10, 1)


def test_saves_without_a_pause_delay_it_but_do_not_stop_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "_LOOK", 0.001)
    looks = 0

    def saving() -> GenerationId:
        nonlocal looks
        looks += 1
        return GenerationId(1, 11 + looks // 5, 1)

    heard = Heard()
    with verifying(job.store, heard, saving) as running:
        running(committed(10))
        heard.wait("verified")
    assert looks > 5


@pytest.mark.parametrize("rate", [FAST, 1.0])
def test_it_ends_with_the_job_whatever_it_does(job: Job, rate: float) -> None:
    """Waiting for a commit; waiting for a save; or pausing for its rate, here for most of an hour."""
    heard, flight = Heard(), Flight()
    with verifying(job.store, heard, flight, rate) as running:
        if rate == FAST:
            running(committed(10))
            flight.seen(2)
        else:
            flight.now = None
            running(committed(10))
            flight.seen(1)
    assert heard.events == []
    assert notes_of(job, 10) == []
    with verifying(job.store, heard):
        pass


def test_a_read_that_hangs_holds_nobody(job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(verifier, "LAST_READ", 0.05)
    reached, release = threading.Event(), threading.Event()

    class Hanging:
        def __getattr__(self, name: str) -> Any:
            return getattr(job.store, name)

        def get(self, *args: Any) -> Any:
            reached.set()
            release.wait(DEADLINE)
            return job.store.get(*args)

    running = Verifier(Hanging(), rate=FAST, saving=lambda: None)  # pyright: ignore[reportArgumentType]
    running(committed(10))
    assert reached.wait(DEADLINE)
    running.close()
    assert "does not answer the background verification" in caplog.text
    release.set()
    running._thread.join(DEADLINE)
    assert not running._thread.is_alive()


def test_only_the_newest_waits(job: Job) -> None:
    job.save(20)
    job.save(30)
    heard, flight = Heard(), Flight()
    with verifying(job.store, heard, flight) as running:
        running(committed(10))
        flight.seen(2)
        running(committed(20))
        running(committed(30))
        flight.now = None
        assert [heard.wait("verified").generation.step for _ in range(2)] == [10, 30]  # pyright: ignore[reportOptionalMemberAccess]
    assert notes_of(job, 20) == []


# In a job


def test_a_job_that_verifies_itself(place: Path) -> None:
    heard = Heard()

    def work(link: Any) -> None:
        with checkpointer(place, link, verify_rate=FAST, on_event=heard) as ckpt:
            ckpt.save(10, state(10, link.rank, 2)).result()
            if link.rank == 0:
                assert heard.wait("verified").generation == GenerationId(1, 10, 1)

    on_ranks(2, work)
    assert not [thread for thread in threading.enumerate() if thread.name == "ckpt-verify"]


def test_the_other_ranks_only_listen(job: Job) -> None:
    heard = Heard()
    started = new_threads()
    observers = Observers(job.store, 1, on_event=heard, metrics_port=0, verify_rate=FAST, saving=lambda: None)
    observers.at(3)
    observers(committed(10))
    assert started() == set()
    assert [event.kind for event in heard.events] == ["committed"]
    observers.close()


@pytest.mark.parametrize("wrong", [0, -1, True, float("nan")])
def test_a_rate_is_bytes_a_second(place: Path, wrong: Any) -> None:
    with pytest.raises(CallError, match="verify_rate"):
        checkpointer(place, verify_rate=wrong)
