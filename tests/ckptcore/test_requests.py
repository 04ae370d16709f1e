"""How many requests the core makes of an object store: exact where nothing waits, bounded where something does.

Counted is what the core itself asks, below `ObjectStore` and above the driver. What TensorStore asks for a database is its own
business, and is counted before an S3 server (`tests/benchmarks/test_counting_proxy.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import tensorstore as ts

from ckptcore import ledger, names
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CommitUnknown
from ckptcore.history import History
from ckptcore.inspect.inventory import inventory
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.objectstore import SMALL, ObjectStore
from ckptcore.proof import Refuted
from ckptcore.saving import ASKED_A_SECOND, Saving
from ckptcore.store import Storage, open_store
from tests.ckptcore.support import FakeClock, Job, checkpointer, state

HOUR = 3600.0


@dataclass
class Counted:
    """A driver's store that counts what it is asked, by method and by the first folder of the key."""

    real: ts.KvStore
    asked: list[tuple[str, str]] = field(default_factory=list)

    def read(self, key: str, **options: Any) -> Any:
        self.asked.append(("GET", key))
        return self.real.read(key, **options)

    def write(self, key: str, value: bytes | None, **options: Any) -> Any:
        self.asked.append(("DELETE" if value is None else "PUT", key))
        return self.real.write(key, value, **options)

    def list(self, below: ts.KvStore.KeyRange) -> Any:
        self.asked.append(("LIST", below.inclusive_min.decode()))
        return self.real.list(below)

    def delete_range(self, below: ts.KvStore.KeyRange) -> Any:
        self.asked.append(("DELETE RANGE", below.inclusive_min.decode()))
        return self.real.delete_range(below)

    def taken(self) -> dict[str, int]:
        """How many of each method since the last time."""
        counted = Counter(method for method, _ in self.asked)
        self.asked.clear()
        return dict(counted)


def counted(store: Any) -> Counted:
    """Count what `store` asks from now on."""
    assert isinstance(store, ObjectStore)
    store._root = counting = Counted(store._root)  # pyright: ignore[reportAttributeAccessIssue]
    return counting


def opened(storage: Storage | None = None) -> tuple[ObjectStore, Counted]:
    store = open_store("memory://run", storage)
    counting = counted(store)
    assert isinstance(store, ObjectStore)
    return store, counting


@contextmanager
def saver(context: ts.Context, **options: Any) -> Iterator[tuple[Any, Counted]]:
    with checkpointer("memory://run", storage=Storage(context=context), **options) as opening:
        yield opening, counted(opening._store)


# One operation


def test_a_put_is_one_request_and_two_if_the_key_is_there() -> None:
    store, asked = opened()
    store.put_if_absent("first", b"x")
    assert asked.taken() == {"GET": 1, "PUT": 1}  # what the generation of a missing key is, is found out once
    assert store.put_if_absent("a", b"one") == b"one"
    assert asked.taken() == {"PUT": 1}
    assert store.put_if_absent("a", b"two") == b"one"
    assert asked.taken() == {"PUT": 1, "GET": 1}


def test_where_the_store_may_not_heed_conditions_every_put_looks_first() -> None:
    store, asked = opened(Storage(single_writer=True))
    for key in ("first", "a", "b"):
        store.put_if_absent(key, b"x")
        assert asked.taken() == {"GET": 1, "PUT": 1}
    assert store.put_if_absent("a", b"two") == b"x"
    assert asked.taken() == {"GET": 1}


@pytest.mark.parametrize("size", [0, 1, 1000, SMALL - 1, SMALL, 10 * SMALL])
def test_a_size_is_one_request_if_it_is_known_and_few_if_not(size: int) -> None:
    store, asked = opened()
    store.put_if_absent("a", bytes(size))
    asked.taken()
    assert store.size("a", guess=size) == size
    assert asked.taken() == {"GET": 1}
    assert store.size("a") == size
    assert asked.taken()["GET"] <= (1 if size < SMALL else 3)
    assert store.size("a", guess=size + 7) == size
    assert asked.taken()["GET"] <= 3


def test_a_driver_that_does_not_tell_sizes_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = opened()
    store.put_if_absent("a", bytes(100 * SMALL + 7))
    monkeypatch.setattr("ckptcore.objectstore._SIZE", re.compile("nothing (says) so"))
    asked.taken()
    assert store.size("a") == 100 * SMALL + 7
    assert 3 < asked.taken()["GET"] <= 25


# A save


def test_a_save_by_one_rank() -> None:
    with saver(ts.Context()) as (saving, asked):
        saving.save(10, state(10)).result()
        asked.taken()
        assert not saving.should_save(11)
        assert asked.taken() == {}
        saving.save(20, state(20)).result()
        data = Counter(method for method, key in asked.asked if "/d/" in key)
        kinds = Counter(f"{method} {key.split('/')[0]}" for method, key in asked.asked if "/d/" not in key)
    assert kinds == {
        "GET incarnations": 3,  # own claim and the next one; the fence
        "PUT generations": 9,  # layout, values, receipt; four indexes, roster; for Orbax
        "LIST generations": 1,  # receipts
        "GET generations": 6,  # of the database its manifest; receipt (2), layout, values; is there a merged view?
        "GET ledger": 1,
        "PUT ledger": 1,
    }
    assert data.keys() == {"GET"}  # sizes: by who proves that the file is there


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_what_another_rank_asks_for_its_part(ranks: int) -> None:
    store, asked = opened()
    job = Job(store, ranks)
    job.open()
    generation = job.next_generation(10)
    job.write(generation, 0)
    asked.taken()
    for rank in range(1, ranks):
        job.write(generation, rank)
        assert asked.taken() == {"GET": 1, "PUT": 1}  # The layout is there; the receipt is put.


def test_rank_0_lists_once_and_reads_some_records_of_each_rank() -> None:
    asked_for = dict[int, dict[str, int]]()
    for ranks in (2, 4, 8):
        store, asked = opened()
        job = Job(store, ranks)
        job.open()
        generation = job.next_generation(10)
        for rank in range(ranks):
            job.write(generation, rank)
        files = sum(1 for key in store.list(names.state_prefix(generation)) if "/d/" in key)
        asked.taken()
        assert job.coordinator().commit(generation, ranks, timeout=5.0).committed
        asked_for[ranks] = asked.taken()
        asked_for[ranks]["GET"] -= files  # the size of each
    assert {methods["LIST"] for methods in asked_for.values()} == {1}
    assert {methods["PUT"] for methods in asked_for.values()} == {asked_for[2]["PUT"]}
    for fewer, more in pairwise(asked_for):
        # A receipt is read in two requests, the manifest of a database in one.
        assert asked_for[more]["GET"] - asked_for[fewer]["GET"] == 3 * (more - fewer)


# Waiting


class Still(FakeClock):
    """Nobody else does anything, and time passes in sleep alone."""


def test_rank_0_waits_an_hour() -> None:
    store, asked = opened()
    job = Job(store, 2)
    job.open()
    generation = job.next_generation(10)
    asked.taken()
    waiting = Coordinator(store, job.coordinator().run_id, job.number, Still())
    assert isinstance(waiting._wait(generation, 2, HOUR, lambda: None), Refuted)
    methods = asked.taken()
    assert methods["LIST"] <= 760
    assert methods["GET"] <= 760 / 4 + 1


@pytest.mark.parametrize(("ranks", "most"), [(2, 600), (1024, 600), (16384, 200)])
def test_another_rank_waits_an_hour(ranks: int, most: int) -> None:
    store, asked = opened()
    job = Job(store, 2)
    job.open()
    generation = job.next_generation(10)
    asked.taken()
    waiting = awaiting(job, generation, ranks, HOUR - 180.0)
    with pytest.raises(CommitUnknown):
        waiting._await()
    assert asked.taken()["GET"] <= most


@pytest.mark.parametrize("ranks", [64, 1024, 16384])
def test_all_ranks_together_do_not_ask_more_than_so_often(ranks: int) -> None:
    store, asked = opened()
    job = Job(store, 2)
    job.open()
    clock, times = Still(), list[float]()
    waiting = awaiting(job, job.next_generation(10), ranks, 600.0, clock)
    clock.on_sleep = lambda: times.append(clock.now)
    with pytest.raises(CommitUnknown):
        waiting._await()
    pauses = [later - earlier for earlier, later in pairwise([0.0, *times])][:-1]  # the last is cut short by the deadline
    assert ranks / min(pauses) <= ASKED_A_SECOND * 1.001
    assert asked.taken()["GET"] > 0


def awaiting(job: Job, generation: GenerationId, ranks: int, timeout: float, clock: Clock | None = None) -> Saving:
    """Rank 1's wait for a decision that does not come, in a job of `ranks`."""
    shard = job.shard(generation, 1)
    shard = replace(shard, identity=replace(shard.identity, participants=ranks))
    return Saving(store=job.store, shard=shard, timeout=timeout, keep=None, metrics=None, clock=clock or Still())


def test_ranks_do_not_ask_in_step() -> None:
    class Varied(Clock):
        def __init__(self) -> None:
            self.pauses: list[float] = []

        def sleep(self, seconds: float) -> None:
            self.pauses.append(seconds)

    clocks = [Varied(), Varied()]
    for clock in clocks:
        polls = clock.polls(HOUR, first=1.0)
        for _ in range(20):
            next(polls)
    assert clocks[0].pauses != clocks[1].pauses
    assert all(pause <= 1.5 * 5.0 for clock in clocks for pause in clock.pauses)


# Retention


def test_what_a_collection_asks_does_not_grow_with_the_run() -> None:
    counts = list[Counter[str]]()
    with saver(ts.Context(), keep=Keep(last=2)) as (saving, asked):
        for step in range(10, 130, 10):
            saving.save(step, state(step), metrics={"loss": 1.0}).result()
            counts.append(Counter(f"{method} {key.split('/')[0]}" for method, key in asked.asked if "/d/" not in key))
            asked.asked.clear()
    assert all(each == counts[-1] for each in counts[-5:])
    collecting = counts[-1] - Counter({"GET incarnations": 3, "PUT generations": 9, "LIST generations": 1, "GET generations": 6})
    assert collecting == {
        "GET ledger": 5,  # is the save decided? its decision (2), and the word that gives the oldest up (2)
        "PUT ledger": 2,  # the save's own among them
        "PUT notes": 1,
        "GET notes": 4,  # the new one (2), and those on what is deleted, once more (2)
        "LIST incarnations": 2,
        "LIST ledger": 2,
        "LIST notes": 3,
        "LIST generations": 2,
        "DELETE RANGE generations": 1,
    }


def test_what_a_collection_that_finds_nothing_asks() -> None:
    with saver(ts.Context(), keep=Keep(last=20)) as (saving, asked):
        for step in (10, 20, 30):
            asked.asked.clear()
            saving.save(step, state(step)).result()
        kinds = Counter(f"{method} {key.split('/')[0]}" for method, key in asked.asked if "/d/" not in key)
    assert {kind: count for kind, count in kinds.items() if kind.startswith("LIST")} == {
        "LIST incarnations": 1,
        "LIST ledger": 1,
        "LIST notes": 1,
        "LIST generations": 2,  # receipts, what has data
    }
    assert kinds["GET ledger"] == 1 + 2  # the new decision


def test_a_job_lets_go_of_what_retention_has_taken() -> None:
    with saver(ts.Context(), keep=Keep(last=2)) as (saving, _):
        for step in range(10, 130, 10):
            saving.save(step, state(step), metrics={"loss": 1.0}).result()
        known = saving._history
        assert len(known._decided) <= 4
        assert len(known._notes) <= 4


def test_a_record_that_was_read_is_not_read_again() -> None:
    store, asked = opened()
    job = Job(store, 1)
    job.open()
    for step in (10, 20, 30):
        job.save(step)
    history = History.load(store)
    assert len(list(history.commits())) == 3
    asked.taken()
    history.refresh()
    assert len(list(history.commits())) == 3
    assert asked.taken() == {"LIST": 3}


# A start, and looking


@pytest.mark.parametrize("saves", [2, 12])
def test_what_a_start_asks_does_not_grow_with_the_saves(saves: int) -> None:
    context = ts.Context()
    with saver(context) as (saving, _):
        for step in range(1, saves + 1):
            saving.save(step, state(step)).result()
    with saver(context) as (starting, asked):
        restored = starting.restore(like=state(0))
        kinds = Counter(f"{method} {key.split('/')[0]}" for method, key in asked.asked)
    assert restored.step == saves
    kinds = Counter({kind: count for kind, count in kinds.items() if "probe" not in kind})
    assert kinds["GET run.json"] <= 2
    assert kinds["GET incarnations"] <= 10
    assert kinds["GET ledger"] <= 6
    assert kinds["LIST ledger"] + kinds["LIST incarnations"] + kinds["LIST notes"] + kinds["LIST generations"] <= 11
    assert kinds["PUT incarnations"] == 2
    assert not kinds["PUT generations"]


def test_a_listing_reads_each_decision_once() -> None:
    store, asked = opened()
    job = Job(store, 1)
    job.open()
    for step in range(1, 6):
        job.save(step)
    asked.taken()
    assert len(inventory(store)) == 5
    reads = Counter(key for method, key in asked.asked if method == "GET")
    assert {key: count for key, count in reads.items() if key.startswith("ledger/")} == {
        names.ledger_key(GenerationId(1, step, 1)): 2 for step in range(1, 6)
    }
    assert sum(method == "LIST" for method, _ in asked.asked) == 4


def test_a_decision_that_is_absent_is_one_request() -> None:
    store, asked = opened()
    job = Job(store, 1)
    job.open()
    asked.taken()
    assert ledger.read(store, job.coordinator().run_id, GenerationId(1, 5, 1)) is None
    assert asked.taken() == {"GET": 1}
