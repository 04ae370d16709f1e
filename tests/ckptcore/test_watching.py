"""Every commit is verified as it appears, beside the job that makes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptcore import ledger, names
from ckptcore.clock import Clock
from ckptcore.errors import DeadlineExceeded
from ckptcore.history import History
from ckptcore.inspect.watching import watch
from ckptcore.names import GenerationId
from ckptcore.verify import Verification
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FakeClock, Job, file_store, flip


@pytest.fixture
def job(place: Path) -> Job:
    opened = Job(file_store(place))
    opened.open()
    opened.save(10)
    opened.save(20)
    return opened


def steps(found: Iterator[Verification], count: int) -> list[tuple[int, bool]]:
    return [(each.generation.step, each.ok) for each in itertools.islice(found, count)]


def busy(*turns: Callable[[], object]) -> FakeClock:
    """A clock at whose pauses things happen."""
    clock, left = FakeClock(), [*turns]
    clock.on_sleep = lambda: left.pop(0)() if left else None
    return clock


def test_the_newest_and_those_that_follow(job: Job, place: Path) -> None:
    clock = busy(lambda: job.save(30), lambda: job.save(40))
    assert steps(watch(file_store(place), clock=clock, timeout=60), 3) == [(20, True), (30, True), (40, True)]
    told = {generation.step: [note.depth for note in noted] for generation, noted in History.load(job.store).notes.items()}
    assert told == {20: ["deep"], 30: ["deep"], 40: ["deep"]}


def test_what_was_verified_before_is_not_read_again(job: Job, place: Path) -> None:
    assert steps(watch(file_store(place), clock=FakeClock()), 1) == [(20, True)]
    with pytest.raises(DeadlineExceeded, match="no new commit after 5 s"):
        next(watch(file_store(place), clock=FakeClock(), timeout=5))
    assert job.number == 1


def test_a_damaged_one_is_told_and_noted(job: Job, place: Path) -> None:
    files = (place / names.state_prefix(GenerationId(1, 20, 1)) / "ranks").glob("00000-*/d/*")
    flip(max(files, key=lambda file: file.stat().st_size), 20)  # a smaller one may be a tree that was replaced
    (found,) = itertools.islice(watch(file_store(place), clock=FakeClock()), 1)
    assert not found.ok
    assert [note.kind for note in History.load(job.store).notes[found.generation]] == ["damaged"]
    with pytest.raises(DeadlineExceeded):
        next(watch(file_store(place), clock=FakeClock(), timeout=5))


def test_without_notes_nothing_is_written(job: Job, place: Path) -> None:
    assert steps(watch(file_store(place), clock=FakeClock(), note=False), 1) == [(20, True)]
    assert History.load(job.store).notes == {}


def test_a_store_that_is_silent_for_a_while_is_waited_out(job: Job, place: Path) -> None:
    for operation, part in (("list", names.LEDGER), ("get", "/receipts/"), ("size", "/d/")):
        store = FaultyStore(file_store(place), lambda op, key, wanted=(operation, part): op == wanted[0] and wanted[1] in key)
        store.left = 0
        watching = watch(store, clock=busy(lambda: None, lambda: job.save(30 + job.number)), note=False, timeout=600)
        next(watching)
        store.left = 2
        job.save(100 + len(job.attempts))
        assert steps(watching, 1)[0][1]
        assert store.hits == 2


def test_what_retention_takes_meanwhile_is_passed_over(job: Job, place: Path) -> None:
    def taken() -> None:
        ledger.retire(job.store, job.save(30), "policy", clock=Clock())
        job.save(40)

    assert steps(watch(file_store(place), clock=busy(taken), timeout=60), 2) == [(20, True), (40, True)]
