"""What a report is made of: starts, and who delivered what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptcore import names
from ckptcore.filestore import FileStore
from ckptcore.inspect.chronicle import chronicle
from ckptcore.inspect.inventory import time_of
from ckptcore.names import GenerationId
from tests.ckptcore.support import Job, file_store, flip, memory_directory


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_directory() as folder:
        yield folder


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


def test_starts_tell_where_they_went_on_from(store: FileStore) -> None:
    first = Job(store)
    first.open()
    first.save(10)
    complete = first.next_generation(20)
    for rank in (0, 1):
        first.write(complete, rank)
    Job(store).open()
    late = Job(store)
    late.open(GenerationId(1, 10, 1))
    store.delete(names.base_key(3))
    starts = chronicle(store).starts
    assert [(start.number, start.reason, start.base) for start in starts] == [
        (1, "new", None),
        (2, "rolled-forward", complete),
        (3, "", None),
    ]
    assert starts[1].rolled_forward == (complete,)
    assert starts[2].based is None
    assert {start.participants for start in starts} == {2}


def test_starts_tell_what_they_promise_on_another_number_of_ranks(store: FileStore) -> None:
    for size in (4, 3, 3):
        job = Job(store, size)
        job.open()
        job.save(10 * job.number)
    found = [(start.before, start.participants, start.guarantee, start.resized) for start in chronicle(store).starts]
    assert found == [(None, 4, None, False), (4, 3, "coverage", True), (3, 3, "exact", False)]


def test_what_each_rank_delivered(store: FileStore) -> None:
    job = Job(store)
    job.open()
    decided = job.save(10)
    job.save(20)
    found = chronicle(store, newest=1).deliveries
    assert list(found) == [GenerationId(1, 20, 1)]
    found = chronicle(store).deliveries[decided.generation]
    assert [delivery.rank for delivery in found] == [0, 1]
    assert all(delivery.phases["write"] >= 0 and delivery.files > 0 for delivery in found)
    assert sum(delivery.bytes["params"] for delivery in found) == 768 * 4 + 3 * 8


def test_a_damaged_receipt_costs_its_generation_only(store: FileStore, place: Path) -> None:
    job = Job(store)
    job.open()
    damaged, whole = job.save(10).generation, job.save(20).generation
    flip(place / "run" / names.receipt_key(damaged, 1))
    told = chronicle(store)
    assert list(told.deliveries) == [whole]
    assert [entry.generation for entry in told.entries] == [damaged, whole]


def test_a_time_that_no_calendar_has() -> None:
    assert time_of("2026-13-45T25:61:61Z") is None
    assert time_of("2026-01-31T12:00:00.5Z") == datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
