"""Snapshots: what is staged, and that nothing leaks into it afterwards."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from ckptcore.components import PerRank, RankZero
from ckptcore.errors import CallError, StagingLimit
from ckptcore.geometry import Box
from jaxckpt import staging
from jaxckpt.backend import flatten
from jaxckpt.staging import Source
from tests.jaxckpt.memory import plan_of, save, stage


def sharded(mesh: Mesh, value: Any, *spec: Any) -> jax.Array:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def whole(array: jax.Array) -> Box:
    return Box.whole(array.shape)


@pytest.mark.parametrize("spec", [(), ("data",), ("data", "model"), (None, "model"), (("data", "model"),)])
def test_donated_arrays_do_not_leak(mesh: Mesh, spec: tuple[Any, ...]) -> None:
    value = np.arange(512, dtype=np.float32).reshape(16, 32)
    array = sharded(mesh, value, *spec)
    memory = save({"params": array})
    step = jax.jit(lambda x: x * 2 - 1, donate_argnums=0)
    for _ in range(3):
        array = step(array)
    jax.block_until_ready(array)
    np.testing.assert_array_equal(memory.read("params", Box.whole(value.shape)), value)


def test_numpy_arrays_changed_in_place_do_not_leak() -> None:
    value = np.arange(100.0)
    memory = save({"extra": {"a": value, "b": value[::3], "c": PerRankFree(value).view}, "mine": PerRank(value)})
    value[:] = -1
    np.testing.assert_array_equal(memory.read("extra.a", Box((10,), (20,))), np.arange(10.0, 20.0))
    np.testing.assert_array_equal(memory.read("extra.b", Box.whole((34,))), np.arange(0.0, 100.0, 3))
    np.testing.assert_array_equal(memory.read("extra.c", Box.whole((10, 10))), np.arange(100.0).reshape(10, 10).T)
    np.testing.assert_array_equal(memory.read("mine", Box.whole((100,))), np.arange(100.0))


class PerRankFree:
    """Memory in another order than C."""

    def __init__(self, value: np.ndarray) -> None:
        self.view = value.reshape(10, 10).T


def test_cpu_memory_is_held_without_a_copy_and_without_the_shard(mesh: Mesh) -> None:
    array = sharded(mesh, np.arange(64, dtype=np.float32), "data")
    flat = flatten({"params": array})
    staged = stage(flat, plan_of(flat))
    views = [np.asarray(shard.data) for shard in array.addressable_shards]
    assert all(any(np.shares_memory(chunk, view) for view in views) for chunk in staged.chunks["params"])
    gone = weakref.ref(array)
    del array, views  # `flat` lives on, as it does while a save is written
    gc.collect()
    assert gone() is None
    with pytest.raises(CallError, match="staged before"):
        stage(flat, plan_of(flat))


def test_each_replica_is_staged_once(mesh: Mesh) -> None:
    array = sharded(mesh, np.arange(64, dtype=np.float32), "data")
    flat = flatten({"params": array})
    plan = plan_of(flat)
    assert stage(flat, plan).nbytes == plan.own_bytes == array.nbytes


def test_the_limit_names_both_sides_and_stages_nothing(mesh: Mesh) -> None:
    flat = flatten({"params": sharded(mesh, np.zeros(64, np.float32), "data"), "extra": np.zeros(10, np.int8)})
    plan = plan_of(flat)
    with pytest.raises(StagingLimit, match="takes 266 bytes, max_staging_bytes allows 265"):
        stage(flat, plan, limit=265)
    assert stage(flat, plan, limit=266).nbytes == 266


def test_nothing_is_fetched_when_the_limit_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(staging, "_fetch_whole", lambda *_: fetched.append("whole"))
    monkeypatch.setattr(staging, "_fetch_parts", lambda *_: fetched.append("parts"))
    flat = flatten({"params": jnp.ones(8), "extra": np.ones(8)})
    with pytest.raises(StagingLimit):
        stage(flat, plan_of(flat), limit=1)
    assert fetched == []


def test_replicated_host_leaves_come_whole_and_in_chunks() -> None:
    flat = flatten({"extra": np.arange(100, dtype=np.int64)})
    plan = plan_of(flat)
    assert flat.arrays[0].host_replicated
    staged = stage(flat, plan)
    np.testing.assert_array_equal(staged.whole["extra"], np.arange(100))
    assert len(staged.chunks["extra"]) == plan.grids["extra"].size > 1
    assert staged.nbytes == 800


def test_rank_zero_and_per_rank_leaves_are_not_compared() -> None:
    flat = flatten({"extra": RankZero(np.ones(2)), "rng": PerRank({"a": np.ones(2), "b": jnp.ones(2)})})
    assert [array.host_replicated for array in flat.arrays] == [False, False, False]
    assert flat.arrays[0].shards == {Box.whole((2,)): (0,)}
    assert [array.shards for array in flat.arrays[1:]] == [{}, {}]
    assert stage(flat, plan_of(flat)).whole == {}


def test_bool_bytes_are_normalized() -> None:
    value = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    flat = flatten({"extra": value})
    staged = stage(flat, plan_of(flat))
    np.testing.assert_array_equal(staged.whole["extra"].view(np.uint8), [0, 1, 1, 1])


def test_big_endian_arrays_are_stored_as_little_endian() -> None:
    memory = save({"extra": np.arange(4, dtype=">i4")})
    np.testing.assert_array_equal(memory.read("extra", Box.whole((4,))), np.arange(4, dtype="<i4"))
    assert memory.chunks["extra"][0].dtype.str == "<i4"


def test_metadata_of_a_zero_size_array_is_owned(mesh: Mesh) -> None:
    flat = flatten({"params": {"a": sharded(mesh, np.zeros((0, 4)), "data", "model"), "b": np.zeros((3, 0))}})
    plan = plan_of(flat)
    assert plan.own == {"params.a": (), "params.b": ()}
    assert stage(flat, plan).chunks == {"params.a": [], "params.b": []}


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_memory_kinds(mesh: Mesh, kind: str) -> None:
    array = jax.device_put(np.arange(16.0), NamedSharding(mesh, P("data"), memory_kind=kind))
    flat = flatten({"params": array})
    assert flat.arrays[0].memory_kind == kind
    chunks = stage(flat, plan_of(flat)).chunks["params"]
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(16.0, dtype=np.float32))


def test_facts_of_a_sharded_array(mesh: Mesh) -> None:
    flat = flatten({"params": sharded(mesh, np.zeros((4, 6), np.float32), "data", None)})
    (facts,) = flat.arrays
    assert facts.shards == {Box((0, 0), (2, 6)): (0,), Box((2, 0), (4, 6)): (0,)}
    assert facts.sharding == "('data', None) over data=2, model=2"
    assert (facts.memory_kind, facts.weak_type, facts.host_replicated) == (None, False, False)
    (record,) = flat.meshes
    assert (record.axes, record.shape) == (["data", "model"], [2, 2])


def test_the_order_of_devices_is_part_of_a_mesh() -> None:
    devices = np.array(jax.devices()).reshape(2, 2)
    meshes = [Mesh(devices, ("a", "b")), Mesh(devices.T, ("a", "b"))]
    flat = flatten({"params": [jax.device_put(np.zeros(4), NamedSharding(mesh, P("a"))) for mesh in meshes]})
    assert len({record.devices for record in flat.meshes}) == 2


class FakeAccelerator:
    """Counts transfers, as if the CPU were a device with memory of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        monkeypatch.setattr(staging, "_on_cpu", lambda _: False)
        array_type = type(jnp.ones(1))
        original = array_type.copy_to_host_async
        monkeypatch.setattr(array_type, "copy_to_host_async", lambda array: (self.events.append("start"), original(array)))
        monkeypatch.setattr(staging.dtypes, "to_stored", self._convert)

    def _convert(self, array: np.ndarray, *, where: str) -> np.ndarray:
        self.events.append(f"wait {where}")
        return array


def test_on_accelerators_all_transfers_start_before_the_first_wait(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {name: sharded(mesh, np.arange(8, dtype=np.float32), "data") for name in "ab"}
    flat = flatten({"params": arrays})
    plan = plan_of(flat)
    accelerator = FakeAccelerator(monkeypatch)
    staged = stage(flat, plan)
    assert accelerator.events[:4] == ["start"] * 4
    assert "start" not in accelerator.events[4:]
    np.testing.assert_array_equal(np.concatenate(staged.chunks["params.b"]), np.arange(8))


def test_on_accelerators_only_owned_cells_are_transferred(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    array = sharded(mesh, np.arange(64, dtype=np.float32).reshape(8, 8), "data")
    FakeAccelerator(monkeypatch)
    sizes: list[int] = []
    fetch = staging._fetch
    monkeypatch.setattr(staging, "_fetch", lambda part: (sizes.append(part.size), fetch(part))[1])
    own = [Box((0, 0), (2, 4)), Box((6, 4), (8, 8))]
    staged = staging.stage({"x": Source(array, local=False, itemsize=4)}, {"x": own}, [], None)
    assert sizes == [8, 8]
    for box, chunk in zip(own, staged.chunks["x"], strict=True):
        np.testing.assert_array_equal(chunk, np.asarray(array)[box.slices()])


def test_an_array_on_one_device_that_is_not_the_first() -> None:
    array = jax.device_put(np.arange(5.0), SingleDeviceSharding(jax.devices()[3]))
    memory = save({"params": array})
    np.testing.assert_array_equal(memory.read("params", whole(array)), np.arange(5.0, dtype=np.float32))


def kept(array: Any) -> np.ndarray | None:
    """What JAX has fetched of an array, and keeps."""
    return array._npy_value


def test_on_accelerators_no_host_copy_stays_with_the_arrays(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """int4 has to be unpacked, so that JAX copies it even on the CPU, and keeps the copy in the array that is asked."""
    values = np.arange(-8, 8).astype(jnp.int4)
    arrays = [sharded(mesh, values, "data"), sharded(mesh, values), jnp.asarray(values)]
    flat = flatten({"params": arrays})
    plan = plan_of(flat)
    FakeAccelerator(monkeypatch)
    staged = stage(flat, plan)
    for name in ("params.0", "params.1", "params.2"):
        np.testing.assert_array_equal(np.concatenate(staged.chunks[name]), values)
    asked = [*arrays, *(shard.data for array in arrays for shard in array.addressable_shards)]
    assert list(map(kept, asked)) == [None] * len(asked)


def test_an_array_over_the_devices_of_one_process_keeps_no_host_copy(mesh: Mesh) -> None:
    array = sharded(mesh, np.arange(64, dtype=np.float32).reshape(8, 8), "data", "model")
    staged = staging.stage({"x": Source(array, local=True, itemsize=4)}, {"x": [whole(array)]}, [], None)
    np.testing.assert_array_equal(staged.chunks["x"][0], np.arange(64).reshape(8, 8))
    assert kept(array) is None
