"""Two checkpoints beside each other: fields, leaves, and elements that were cut in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.inspect import outline, streaming
from ckptcore.inspect.difference import LeafChange, bytes_to_read, compare, compare_fields, measure, table
from ckptcore.reader import Checkpoint
from tests.ckptcore.support import Job, Sharded, file_store, manifest, state


def saved(place: Path, changes: Mapping[str, Any], size: int = 1, step: int = 10, **order: Any) -> Checkpoint:
    job = Job(file_store(place), size)
    job.open()
    job.state_of = lambda step, rank, size: {**state(step, rank, size), **changes}
    decided = job.save(step, **order)
    return Checkpoint(job.store, decided)


def changes(left: Checkpoint, right: Checkpoint, *, read: bool = True) -> dict[str, LeafChange]:
    tables = table(left), table(right)
    found = compare(*tables)
    if read:
        measured = [measure(each, (left, tables[0]), (right, tables[1])) for each in found]
        found = [each for each in measured if each is not None]
    return {each.leaf: each for each in found}


def test_a_copy_is_equal(place: Path) -> None:
    left, right = (saved(place / name, {}) for name in ("a", "b"))
    assert changes(left, right) == {}
    assert compare_fields(left.manifest, right.manifest) == []


def test_every_kind_of_change(place: Path) -> None:
    left = saved(
        place / "a", {"extra": {"gone": 1, "kind": np.zeros(2), "dtype": np.zeros(2), "shape": np.zeros(2), "value": 1.5}}
    )
    right = saved(
        place / "b", {"extra": {"new": 1, "kind": 7, "dtype": np.zeros(2, np.int8), "shape": np.zeros((2, 1)), "value": 2.5}}
    )
    found = changes(left, right)
    assert {name.removeprefix("extra."): change.change for name, change in found.items()} == {
        "gone": "only-left",
        "new": "only-right",
        "kind": "kind",
        "dtype": "dtype",
        "shape": "shape",
        "value": "value",
    }
    assert (found["extra.dtype"].left, found["extra.dtype"].right) == ("float64[2]", "int8[2]")
    assert (found["extra.value"].left, found["extra.value"].right) == ("1.5", "2.5")


def test_how_far_arrays_are_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BATCH_BYTES", 100)
    one = np.arange(800, dtype=np.float32)
    other = one.copy()
    other[[3, 700]] = [5, 1400]
    left = saved(place / "a", {"extra": {"w": one}})
    right = saved(place / "b", {"extra": {"w": other}})
    change = changes(left, right)["extra.w"]
    assert (change.change, change.differing, change.count, change.largest, change.relative) == ("elements", 2, 800, 700.0, 0.5)
    unread = changes(left, right, read=False)["extra.w"]
    assert (unread.change, unread.largest) == ("elements", None)
    assert bytes_to_read([unread], table(left)) == 3200


def test_the_same_elements_cut_in_two_ways(place: Path) -> None:
    """A leaf digest is over the grid too: on another number of ranks it says nothing."""
    left, right = saved(place / "a", {}, size=1), saved(place / "b", {}, size=2)
    assert changes(left, right, read=False)["params.w"].change == "unknown"
    assert "params.w" not in changes(left, right)
    assert changes(left, right)["rng.key"].change == "only-right"
    fields = {field.name: (field.left, field.right) for field in compare_fields(left.manifest, right.manifest)}
    assert fields == {"topology.participants": (1, 2), "topology.devices": (1, 2)}


def test_other_elements_cut_in_another_way(place: Path) -> None:
    def shifted(step: int, rank: int, size: int) -> dict[str, Any]:
        whole = np.arange(768, dtype=np.float32).reshape(8, 96) + 100 * step
        whole[7, 95] += 1
        return {**state(step, rank, size), "params": {"w": Sharded.of(whole, rank, size), "b": np.full(3, step, np.float64)}}

    left = saved(place / "a", {})
    job = Job(file_store(place / "b"), 2, state_of=shifted)
    job.open()
    change = changes(left, Checkpoint(job.store, job.save(10)))["params.w"]
    assert (change.change, change.differing, change.largest) == ("elements", 1, 1.0)


def test_metadata_and_guarantee(place: Path) -> None:
    left = saved(place / "a", {}, metadata={"config": {"lr": 0.1, "name": "x"}})
    right = saved(place / "b", {}, metadata={"config": {"lr": 0.2, "name": "x"}}, guarantee="weights")
    fields = {field.name: (field.left, field.right) for field in compare_fields(left.manifest, right.manifest)}
    assert fields["metadata.config.lr"] == ({"$float": "0.1"}, {"$float": "0.2"})
    assert fields["guarantee.level"] == ("exact", "weights")
    assert "metadata.config.name" not in fields


def test_the_outline_of_a_component(place: Path) -> None:
    checkpoint = saved(place / "a", {"extra": {"a": [np.zeros(4), {"b": np.zeros(2)}], "c": 1}})
    root = outline.outline("extra", checkpoint.leaves("extra").values())
    assert [prefix + node.label for prefix, node in root.lines(None)] == [
        "├─ ['a']",
        "│  ├─ [0]",
        "│  └─ [1]",
        "│     └─ ['b']",
        "└─ ['c']",
    ]
    assert (root.leaves, root.bytes) == (3, 48)
    assert [node.label for _, node in root.lines(1)] == ["['a']", "['c']"]
    assert [(node.leaves, node.bytes) for _, node in root.lines(1)] == [(2, 48), (1, 0)]


def test_a_large_array_is_read_in_batches(place: Path) -> None:
    checkpoint = saved(place / "a", {"extra": {"w": np.arange(800, dtype=np.float32)}})
    leaf = checkpoint.leaves("extra")["extra.w"]
    array, _ = checkpoint.array(leaf)
    assert [len(boxes) for boxes in streaming.batches(array, 10_000)] == [array.grid.size]
    assert [len(boxes) for boxes in streaming.batches(array, 1)] == [1] * array.grid.size
    assert array.grid.size > 2
    read: list[int] = []
    parts = [part for _, part in streaming.elements(checkpoint, leaf, progress=read.append)]
    assert np.array_equal(np.concatenate(parts), np.arange(800))
    assert sum(read) == manifest(checkpoint.decided).components["extra"].bytes
