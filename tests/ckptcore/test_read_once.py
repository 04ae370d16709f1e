"""A process fetches no chunk twice in one restore, however often it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import restore
from ckptcore.backend import Wanted
from ckptcore.geometry import Box
from ckptcore.match import Rules
from ckptcore.reader import Checkpoint
from tests.ckptcore import support
from tests.ckptcore.support import (
    ANYTHING,
    HostBackend,
    HostTarget,
    Hub,
    Job,
    Sharded,
    ThreadChannel,
    file_store,
    same,
)
from tests.reading import bytes_read, stored_bytes

WIDTH = 512


def weights(step: int) -> np.ndarray:
    return np.arange(WIDTH * WIDTH, dtype=np.float64).reshape(WIDTH, WIDTH) + step


def state(step: int, rank: int, size: int) -> dict[str, Any]:
    return {
        "params": {"w": Sharded.of(weights(step), rank, size), "b": weights(step) + 1},
        "optimizer": {"mu": [weights(step) + 2], "count": step, "lr": 0.5},
        "data": {"position": step},
        "rng": {"key": np.arange(2, dtype=np.uint32)},
    }


@pytest.fixture
def checkpoint(place: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    monkeypatch.setattr(support, "CHUNK_BYTES", 64 << 10)
    job = Job(file_store(place / "run"), state_of=state)
    job.open()
    return Checkpoint(job.store, job.save(10))


def within(place: Path, read: int, parts: float = 1.0) -> bool:
    """Whether `parts` of what is stored were read, and hardly more: records, the tree, the metadata."""
    stored = stored_bytes(place / "run")
    return 0.9 * parts * stored < read < (parts + 0.1) * stored


def test_every_chunk_once(place: Path, checkpoint: Checkpoint) -> None:
    target = HostBackend(ThreadChannel(Hub(1), 0)).target(state(0, 0, 1))
    with bytes_read() as read:
        found = restore.find(checkpoint, target, rules=Rules(), ranks={})
    assert same(target.place(found), state(10, 0, 1))
    assert within(place, read.bytes)


def test_as_host_arrays(place: Path, checkpoint: Checkpoint) -> None:
    with bytes_read() as read:
        restore.host(checkpoint, list(checkpoint.names), rules=Rules(), ranks={})
    assert within(place, read.bytes)


def test_an_object_that_takes_whatever_there_is(place: Path, checkpoint: Checkpoint) -> None:
    like = {"params": ANYTHING, "optimizer": ANYTHING, "data": ANYTHING, "rng": ANYTHING}
    target = HostBackend(ThreadChannel(Hub(1), 0)).target(like)
    with bytes_read() as read:
        found = restore.find(checkpoint, target, rules=Rules(), ranks={})
    assert same(target.place(found)["optimizer"], state(10, 0, 1)["optimizer"])
    assert within(place, read.bytes)


def test_many_boxes_of_a_chunk_and_one_array_under_two_names(place: Path, checkpoint: Checkpoint) -> None:
    """As devices hold parts of an array, and as one that is tied is wanted under each of its names."""
    columns = tuple(Box((0, start), (WIDTH, start + 64)) for start in range(0, WIDTH, 64))
    rows = tuple(Box((start, 0), (start + 32, WIDTH)) for start in range(0, WIDTH, 32))
    boxes = {"one": columns, "two": rows, "three": (*rows, *columns, Box.whole((WIDTH, WIDTH)))}
    wanted = [
        Wanted(component="params", path=(("key", name),), kind="array", dtype="float64", shape=(WIDTH, WIDTH), boxes=some)
        for name, some in boxes.items()
    ]
    target = HostTarget(wanted=wanted, components={}, like={}, slots={})
    rules = Rules(rename={f"params.{name}": "params.w" for name in boxes}, extra="ignore")
    with bytes_read() as read:
        found = restore.find(checkpoint, target, rules=rules, ranks={})
    for name, some in boxes.items():
        arrays = found[f"params.{name}"].boxes
        assert arrays is not None
        assert all(same(arrays[box], np.ascontiguousarray(weights(10)[box.slices()])) for box in some)
    assert within(place, read.bytes, 1 / 3)


def test_a_small_box_takes_the_chunks_it_meets_alone(place: Path, checkpoint: Checkpoint) -> None:
    target = HostBackend(ThreadChannel(Hub(512), 3)).target({"params": {"w": Sharded(None, (WIDTH, WIDTH), "float64", 3, 512)}})
    with bytes_read() as read:
        restore.find(checkpoint, target, rules=Rules(extra="ignore"), ranks={})
    assert read.bytes < 0.1 * stored_bytes(place / "run")


def test_reading_twice_would_be_noticed(place: Path, checkpoint: Checkpoint) -> None:
    target = HostBackend(ThreadChannel(Hub(1), 0)).target(state(0, 0, 1))
    with bytes_read() as read:
        for _ in range(2):
            restore.find(checkpoint, target, rules=Rules(), ranks={})
    assert not within(place, read.bytes)
    assert within(place, read.bytes, 2)
