"""One checkpoint, opened for reading: everything that is read is checked on the way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from ckptcore import ledger, names, records
from ckptcore.clock import Clock
from ckptcore.components import PerRank
from ckptcore.digests import digest
from ckptcore.errors import Damaged, DamageError, InvalidRecord, NotFound, Retired
from ckptcore.filestore import FileStore
from ckptcore.geometry import Box
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from tests.ckptcore.failing import FaultyStore
from tests.ckptcore.support import SHAPE, Job, file_store, flip, manifest, state, weights


@pytest.fixture
def store(place: Path) -> FileStore:
    return file_store(place / "run")


@pytest.fixture
def job(store: FileStore) -> Job:
    started = Job(store)
    started.open()
    return started


@pytest.fixture
def decided(job: Job) -> Decided:
    return job.save(10)


def test_leaves_by_component_and_rank(store: FileStore, decided: Decided) -> None:
    checkpoint = Checkpoint(store, decided)
    assert set(checkpoint.leaves("params")) == {"params.w", "params.b"}
    assert checkpoint.leaves("rng", 1)["rng.key"].stored_name == "rank_state.1.rng.key"
    assert checkpoint.value(checkpoint.leaves("optimizer")["optimizer.count"]) == 10
    assert checkpoint.value(checkpoint.leaves("optimizer")["optimizer.mu.1"]) == {}
    assert checkpoint.ranks("rng") == [0, 1]
    assert checkpoint.ranks("params") == [None]


def test_any_box_is_read_and_only_its_chunks(store: FileStore, decided: Decided) -> None:
    leaf = Checkpoint(store, decided).leaves("params")["params.w"]
    boxes = [Box((2, 1), (7, 93)), Box((0, 0), (1, 1)), Box((0, 0), SHAPE)]
    found = Checkpoint(store, decided).read([(leaf, boxes)])[0]
    for box, array in zip(boxes, found, strict=True):
        np.testing.assert_array_equal(array, weights(10)[box.slices()])


def test_what_is_not_there_is_named(store: FileStore, decided: Decided) -> None:
    checkpoint = Checkpoint(store, decided)
    with pytest.raises(NotFound, match="no component 'ema'; it has"):
        checkpoint.leaves("ema")
    for rank in (None, 2, -1):
        with pytest.raises(NotFound, match="stored per rank"):
            checkpoint.leaves("rng", rank)
    with pytest.raises(NotFound, match="is a value, not an array"):
        checkpoint.array(checkpoint.leaves("optimizer")["optimizer.count"])


def test_a_damaged_chunk_names_its_array(store: FileStore, decided: Decided) -> None:
    for file in (Path(store.root) / names.state_prefix(decided.generation) / "ranks").rglob("*"):
        if file.is_file() and "/d/" in str(file):
            flip(file, 10)
    checkpoint = Checkpoint(store, decided)
    leaf = checkpoint.leaves("params")["params.w"]
    with pytest.raises(Damaged, match=r"array 'params\.w'"):
        checkpoint.read([(leaf, [Box.whole(SHAPE)])])


def test_a_damaged_value_names_its_file(store: FileStore, decided: Decided) -> None:
    flip(Path(store.root) / names.values_key(decided.generation, 0), 100)
    checkpoint = Checkpoint(store, decided)
    with pytest.raises(Damaged, match=r"values/00000\.json"):
        checkpoint.value(checkpoint.leaves("data")["data"])


def test_a_checkpoint_that_is_retired_while_it_is_read(store: FileStore, decided: Decided) -> None:
    checkpoint = Checkpoint(store, decided)
    leaf = checkpoint.leaves("params")["params.w"]
    ledger.retire(store, decided, "old", clock=Clock())
    store.delete_prefix(names.generation_prefix(decided.generation))
    with pytest.raises(Retired, match="take a newer one"):
        checkpoint.read([(leaf, [Box.whole(SHAPE)])])
    with pytest.raises(Retired):
        Checkpoint(store, decided).leaves("params")


def test_every_record_is_read_once(store: FileStore, decided: Decided) -> None:
    reads: list[str] = []
    counting = FaultyStore(store, lambda operation, key: operation == "get" and bool(reads.append(key)))
    checkpoint = Checkpoint(counting, decided)
    for _ in range(3):
        checkpoint.value(checkpoint.leaves("optimizer")["optimizer.count"])
        checkpoint.array(checkpoint.leaves("params")["params.w"])
    assert len(reads) == len(set(reads))


def test_leaves_are_looked_up_once(store: FileStore, decided: Decided) -> None:
    """A tied leaf asks for the whole table: for thousands of them that must not take the square."""
    checkpoint = Checkpoint(store, decided)
    assert checkpoint.leaves("params") is checkpoint.leaves("params")
    assert checkpoint.leaves("rng", 1) is checkpoint.leaves("rng", 1)
    assert checkpoint.leaves("rng", 1) is not checkpoint.leaves("rng", 0)


def test_an_aborted_generation_holds_nothing(job: Job, store: FileStore) -> None:
    generation = job.next_generation(20)
    job.write(generation, 0)
    aborted = job.coordinator().commit(generation, 2, timeout=1.0)
    with pytest.raises(NotFound, match="was aborted"):
        Checkpoint(store, aborted).leaves("params")


def without_params(step: int, rank: int, size: int) -> dict[str, object]:
    return {name: part for name, part in state(step, rank, size).items() if name != "params"}


def test_an_unchanged_component_is_written_once_and_read_where_it_lies(job: Job, store: FileStore, decided: Decided) -> None:
    job.state_of = without_params
    second = job.save(20, unchanged=("params",))
    third = job.save(30, unchanged=("params",))
    for later in (second, third):
        entry = manifest(later).components["params"]
        assert entry.source == str(decided.generation)
        assert entry.digest == manifest(decided).components["params"].digest
        assert not [key for key in store.list(names.generation_prefix(later.generation)) if "index/params" in key]
        checkpoint = Checkpoint(store, later)
        leaf = checkpoint.leaves("params")["params.w"]
        np.testing.assert_array_equal(checkpoint.read([(leaf, [Box.whole(SHAPE)])])[0][0], weights(10))
        assert checkpoint.value(checkpoint.leaves("optimizer")["optimizer.count"]) == later.generation.step
        assert [home.generation for home in checkpoint.homes()] == [later.generation, decided.generation]


def test_a_rank_scoped_component_can_be_unchanged_too(job: Job, store: FileStore, decided: Decided) -> None:
    job.state_of = lambda step, rank, size: {k: v for k, v in state(step, rank, size).items() if k != "rng"}
    checkpoint = Checkpoint(store, job.save(20, unchanged=("rng",)))
    for rank in (0, 1):
        leaf = checkpoint.leaves("rng", rank)["rng.key"]
        np.testing.assert_array_equal(checkpoint.read([(leaf, [Box.whole((2,))])])[0][0], [10, rank])
    assert decided.committed


def rewritten(store: FileStore, decided: Decided, **changes: object) -> Checkpoint:
    """The checkpoint with another manifest, as a hostile copy of it might have."""
    path = Path(store.root) / names.ledger_key(decided.generation)
    data = msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | changes)
    path.write_bytes(data)
    found = ledger.read(store, decided.record.run_id, decided.generation)
    assert found is not None
    return Checkpoint(store, found)


def test_a_manifest_cannot_point_outside_of_its_generation(store: FileStore, decided: Decided) -> None:
    data = b'{"format":"ckpt/roster","version":"1.0","generation":"000001-000000000010-1","ranks":[],"layouts":[]}'
    store.put_if_absent("elsewhere/roster.json", data)
    for key in ("elsewhere/roster.json", "run.json", "generations/000009-000000000010-1/roster.json"):
        roster = {"key": key, "size": len(data), "digest": digest(data)}
        with pytest.raises(InvalidRecord, match="lies outside of generation"):
            rewritten(store, decided, roster=roster).leaves("params")


def test_a_reference_that_leads_astray_is_damage(job: Job, store: FileStore, decided: Decided) -> None:
    second = job.save(20)
    raw = msgspec.json.decode(records.encode(second.record))
    for source in ("000001-000000000010-1", "000001-000000000020-1", "000007-000000000070-1"):
        components = raw["components"] | {"params": raw["components"]["params"] | {"source": source}}
        with pytest.raises(DamageError, match="params"):
            rewritten(store, second, components=components).leaves("params")
    assert decided.committed


def test_structures_of_each_rank_may_differ(job: Job, store: FileStore) -> None:
    job.state_of = lambda step, rank, size: state(step, rank, size) | {"rng": PerRank({f"own{rank}": np.full(rank + 1, step)})}
    checkpoint = Checkpoint(store, job.save(20))
    for rank in (0, 1):
        (leaf,) = checkpoint.leaves("rng", rank).values()
        assert leaf.name == f"rng.own{rank}"
        np.testing.assert_array_equal(checkpoint.read([(leaf, [Box.whole((rank + 1,))])])[0][0], [20] * (rank + 1))
    assert GenerationId(1, 20, 1) == checkpoint.generation
