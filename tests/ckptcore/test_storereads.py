"""Sizes that are known are checked cheaply, and no file decides how much memory its reader takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcore import ledger, names, notes
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CheckpointError, InvalidRecord
from ckptcore.history import History, read_base, read_run
from ckptcore.incarnations import Opening
from ckptcore.names import GenerationId
from ckptcore.proof import Refuted
from ckptcore.reader import Checkpoint
from ckptcore.store import Store, open_store
from ckptcore.storereads import exists, has_size, record_bytes
from ckptcore.verify import verify
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import FACTS, Job, file_store, topology

GENERATION = GenerationId(1, 10, 1)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(tmp_path if request.param == "file" else "memory://a")


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_a_known_size_is_confirmed_and_any_other_is_not(store: Store, size: int) -> None:
    store.put_if_absent("a", bytes(size))
    assert [guess for guess in range(1003) if has_size(store, "a", guess)] == [size]
    assert exists(store, "a")


def test_what_is_absent_has_no_size(store: Store) -> None:
    assert not any(has_size(store, "a", size) for size in (0, 1, 7))
    assert not exists(store, "a")
    assert record_bytes(store, "a") is None


def test_a_known_size_is_asked_for_once() -> None:
    counted = FaultyStore(open_store("memory://a"), lambda *_: True, times=0)
    asked: list[str] = []
    counted.matches = lambda operation, _: bool(asked.append(operation))
    counted.left = 1
    counted.inner.put_if_absent("a", bytes(100_000))
    assert has_size(counted, "a", 100_000)
    assert asked == ["size"]


def test_records_are_read_up_to_a_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptcore.storereads.MAX_UNCERTIFIED_BYTES", 10)
    store.put_if_absent("fits", bytes(10))
    store.put_if_absent("long", bytes(11))
    assert record_bytes(store, "fits") == bytes(10)
    with pytest.raises(InvalidRecord, match="long: more than the 10 bytes"):
        record_bytes(store, "long")


# A sparse file costs its author nothing, and a reader that takes it whole its life.

Victim = Callable[[Store, str], object]


def _decode_base(store: Store, run_id: str) -> object:
    return read_base(store, run_id, 1)


def _identify(store: Store, _: str) -> object:
    return Opening(store, topology(1), FACTS).identify()


def _put(store: Store, _: str) -> object:
    return store.put_if_absent(names.RUN, b"ours")


REFUSED: dict[str, tuple[str, Victim]] = {
    "run": (names.RUN, lambda store, _: read_run(store)),
    "run, opened": (names.RUN, _identify),
    "run, put again": (names.RUN, _put),
    "base": (names.base_key(1), _decode_base),
    "decision": (names.ledger_key(GENERATION), lambda store, run_id: ledger.read(store, run_id, GENERATION)),
    "decision, put again": (
        names.ledger_key(GENERATION),
        lambda store, run_id: Coordinator(store, run_id, 1).abort(GENERATION, Refuted("by hand")),
    ),
}


def plant(store: Store, key: str) -> None:
    """Put 1 TiB of zeros in the place of `key`."""
    path = Path(str(store.url).removeprefix("file://")) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.fixture
def run(tmp_path: Path) -> Store:
    job = Job(file_store(tmp_path / "run"), 1)
    job.open()
    job.save(10)
    return job.store


@pytest.mark.parametrize("what", REFUSED)
def test_a_record_without_end_is_invalid(run: Store, what: str) -> None:
    key, read = REFUSED[what]
    run_id = read_run(run).run_id
    plant(run, key)
    with pytest.raises(InvalidRecord, match="more than"):
        read(run, run_id)


def test_a_retired_record_without_end_lets_nobody_delete(run: Store) -> None:
    decided = ledger.read(run, read_run(run).run_id, GENERATION)
    assert decided is not None
    plant(run, names.retired_key(GENERATION))
    assert not ledger.may_be_deleted(run, decided)
    assert ledger.is_retired(run, GENERATION)


def test_a_note_without_end_is_passed_over(run: Store) -> None:
    plant(run, f"notes/{GENERATION}/metrics-0123456789ab.json")
    assert notes.read(run, read_run(run).run_id, GENERATION) == []


def test_a_claim_without_end_is_a_claim(run: Store) -> None:
    plant(run, names.claim_key(1))
    job = Job(run, 1)
    assert job.open().number == 2


@pytest.mark.parametrize("kind", ["roster", "index", "layout", "values", "receipts"])
def test_a_certified_record_without_end_is_damage(run: Store, kind: str) -> None:
    (key, *_) = [key for key in run.list(names.generation_prefix(GENERATION)) if f"/{kind}" in key]
    plant(run, key)
    decided = History.load(run).decided(GENERATION)
    assert decided is not None
    try:
        found = verify(Checkpoint(run, decided)).problems
    except CheckpointError as error:
        found = (str(error),)
    assert key in " ".join(found)
