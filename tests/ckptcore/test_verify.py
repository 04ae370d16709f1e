"""Verification: every file of a checkpoint, damaged in every way, is found and named."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.digests import digest
from ckptcore.errors import Damaged, DamageError, Retired, StoreUnavailable, UnsupportedFormat
from ckptcore.filestore import FileStore
from ckptcore.history import read_run
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import open_store
from ckptcore.verify import check_whole, record, verify
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import Job, file_store, flip, restored_step, state

GENERATION = GenerationId(1, 10, 1)


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


@pytest.fixture
def decided(store: FileStore) -> Decided:
    job = Job(store)
    job.open()
    return job.save(10)


def reopened(store: FileStore) -> Checkpoint:
    found = ledger.read(store, read_run(store).run_id, GENERATION)
    assert found is not None
    return Checkpoint(store, found)


def data_files(store: FileStore) -> list[Path]:
    """Every file that the commit needs: all of them, apart from what only Orbax reads."""
    found = Path(store.root) / "generations"
    return [file for file in sorted(found.rglob("*")) if file.is_file() and file.name != "_METADATA"]


def test_a_whole_checkpoint_verifies(store: FileStore, decided: Decided) -> None:
    shallow, deep = verify(Checkpoint(store, decided)), verify(Checkpoint(store, decided), deep=True)
    assert (shallow.ok, shallow.depth, shallow.bytes_read) == (True, "shallow", 0)
    assert (deep.ok, deep.depth) == (True, "deep")
    assert deep.bytes_read == 8 * 96 * 4 + 3 * 8 + 4 * 4 + 2 * 2 * 4
    check_whole(Checkpoint(store, decided))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "first bit": lambda path: flip(path, 0),
    "middle bit": lambda path: flip(path, path.stat().st_size // 2),
    "last bit": lambda path: flip(path, -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_any_file_is_found_or_harmless(store: FileStore, decided: Decided, place: Path, damage: str) -> None:
    """Deep verification names a problem, or everything that can be read is right; nothing else ever happens."""
    assert decided.committed
    whole = place / "whole"
    shutil.copytree(store.root, whole)
    harmless = []
    for file in data_files(store):
        DAMAGES[damage](file)
        found = verify(reopened(store), deep=True)
        if found.ok:
            harmless.append(file)
            restored_step(store, GENERATION, 2)
        else:
            assert all(names.GENERATIONS in problem or "array" in problem for problem in found.problems)
        shutil.copyfile(whole / file.relative_to(store.root), file)
    # Of a rank's own database nothing but its chunks is read any more, once it is merged into the root of all.
    assert all("/ranks/" in str(file) for file in harmless)
    assert not harmless or "bit" in damage
    assert verify(reopened(store), deep=True).ok


@pytest.mark.slow
def test_any_bit_of_the_manifest_matters(store: FileStore, decided: Decided) -> None:
    """No other record certifies the manifest, so what it says is compared with the receipts it came from."""
    path = Path(store.root) / names.ledger_key(GENERATION)
    for position in range(path.stat().st_size):
        flip(path, position)
        try:
            checkpoint = reopened(store)
            # Harmless: a minor version, and the name of an optional field that turns into an unknown one.
            read = msgspec.structs.replace(checkpoint.decided.record, version=decided.record.version)
            assert read == decided.record or not verify(checkpoint).ok, f"position {position}"
        except DamageError:
            pass
        flip(path, position)
    assert verify(reopened(store)).ok


def test_a_lost_file_is_found_without_reading_everything(store: FileStore, decided: Decided) -> None:
    for file in data_files(store):
        backup = file.read_bytes()
        file.unlink()
        if "/d/" in str(file) and "/ranks/" not in str(file):
            assert not verify(Checkpoint(store, decided), deep=True).ok  # the merged root's own nodes
        else:
            with pytest.raises(DamageError):
                check_whole(Checkpoint(store, decided))
        file.write_bytes(backup)


def test_a_receipt_of_another_run_is_found(store: FileStore, decided: Decided, place: Path) -> None:
    other = Job(file_store(place / "other"))
    other.open()
    other.save(10)
    shutil.copyfile(place / "other" / names.receipt_key(GENERATION, 1), Path(store.root) / names.receipt_key(GENERATION, 1))
    (problem, *_) = verify(Checkpoint(store, decided)).problems
    assert names.receipt_key(GENERATION, 1) in problem


def test_a_whole_generation_of_another_run_is_not_taken_for_ours(store: FileStore, decided: Decided, place: Path) -> None:
    other = Job(file_store(place / "other"))
    other.open()
    other.save(10)
    shutil.rmtree(Path(store.root) / "generations")
    shutil.copytree(place / "other" / "generations", Path(store.root) / "generations")
    assert not verify(Checkpoint(store, decided)).ok


def test_a_store_that_does_not_answer_is_no_damage(store: FileStore, decided: Decided) -> None:
    with pytest.raises(StoreUnavailable):
        verify(Checkpoint(FaultyStore(store, lambda operation, _: operation == "size"), decided))


def test_an_object_store_is_asked_little_and_many_things_at_a_time() -> None:
    """About every rank: its receipt, and the size of each file. All ranks are asked about before the first has answered."""
    together = threading.Barrier(3)
    asked: list[str] = []

    def seen(operation: str, key: str) -> bool:
        asked.append(f"{operation} {key}")
        if operation == "get" and "/receipts" in key and len([line for line in asked if key in line]) == 1:
            together.wait(30)
        return False

    store = FaultyStore(open_store("memory://run"), lambda *_: False)
    job = Job(store, 3)
    job.open()
    decided = job.save(10)
    store.matches = seen
    assert verify(Checkpoint(store, decided)).ok
    assert {line.split()[0] for line in asked} == {"get", "size"}
    assert len([line for line in asked if "/state/ranks/" in line]) == len(
        [key for key in store.inner.list(names.state_prefix(decided.generation)) if "/ranks/" in key]
    )


def test_a_record_of_a_newer_format_is_no_damage(store: FileStore, decided: Decided) -> None:
    path = Path(store.root) / names.ledger_key(GENERATION)
    raw = msgspec.json.decode(path.read_bytes())
    roster = Path(store.root) / raw["roster"]["key"]
    newer = msgspec.json.encode(msgspec.json.decode(roster.read_bytes()) | {"version": "3.1"})
    roster.write_bytes(newer)
    raw["roster"] |= {"size": len(newer), "digest": digest(newer)}
    path.write_bytes(msgspec.json.encode(raw))
    assert decided.committed
    with pytest.raises(UnsupportedFormat):
        verify(reopened(store))


def test_what_a_verification_found_is_noted(store: FileStore, decided: Decided) -> None:
    run_id = decided.record.run_id
    checkpoint = Checkpoint(store, decided)
    good = record(checkpoint, verify(checkpoint, deep=True), clock=Clock())
    assert (good.kind, good.depth) == ("verified", "deep")
    data_files(store)[-1].unlink()
    bad = record(checkpoint, verify(Checkpoint(store, decided), deep=True), clock=Clock())
    assert bad.kind == "damaged"
    assert bad.text
    assert {note.kind for note in notes.read(store, run_id, GENERATION)} == {"verified", "damaged"}


def test_a_component_by_reference_is_verified_where_it_lies(store: FileStore, decided: Decided) -> None:
    job = Job(store)
    job.open()
    job.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "params"}
    second = job.save(20, unchanged=("params",))
    found = verify(Checkpoint(store, second), deep=True)
    assert found.ok
    assert found.bytes_read == 8 * 96 * 4 + 3 * 8 + 4 * 4 + 2 * 2 * 4
    root = Path(store.root) / names.state_prefix(decided.generation)
    next(file for file in sorted(root.rglob("*")) if "/ranks/" in str(file) and "/d/" in str(file)).unlink()
    with pytest.raises(Damaged, match="000001-000000000010-1"):
        check_whole(Checkpoint(store, second))


def test_the_manifest_is_small(decided: Decided) -> None:
    assert len(records.encode(decided.record)) < 4096


@pytest.mark.parametrize("deep", [False, True])
def test_what_retention_has_taken_is_not_damaged(store: FileStore, decided: Decided, *, deep: bool) -> None:
    """O-14: the retired record is read before anything is reported. A retired one whose data is still there is whole."""
    ledger.retire(store, decided, "policy", clock=Clock())
    assert verify(Checkpoint(store, decided), deep=deep).ok
    data_files(store)[-1].unlink()
    with pytest.raises(Retired, match=f"{GENERATION} was retired"):
        verify(reopened(store), deep=deep)
