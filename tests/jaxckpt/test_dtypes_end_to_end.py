"""Every dtype, bit for bit, from the device through the store and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ckptcore import dtypes
from tests.jaxckpt.plain import describe, restored_without_jax
from tests.jaxckpt.runs import assert_same, is_weak, resume, round_trip, save
from tests.spec.checker import check_run

WIDE = ("int64", "uint64", "float64", "complex128")
"""What JAX narrows unless x64 is enabled; numpy arrays keep it."""
NOT_ON_DEVICES = ("float6_e2m3fn", "float6_e3m2fn")
"""What JAX's CPU backend has no arrays of."""
NARROW_BITS = {"int1": 1, "uint1": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4}
NARROW_BITS |= {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}


def any_bits(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern that fits, NaNs included."""
    dtype = dtypes.numpy_dtype(name)
    raw = np.random.default_rng(len(name)).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    if name == "bool":
        raw &= 1
    elif name in NARROW_BITS:
        raw &= (1 << NARROW_BITS[name]) - 1
    return raw.view(dtype).reshape(shape)


HOST = {name: any_bits(name, (8, 6)) for name in sorted(dtypes.LOGICAL)}


def on_devices(mesh: Mesh) -> dict[str, jax.Array]:
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    names = [name for name in HOST if name not in WIDE and name not in NOT_ON_DEVICES]
    return {name: jax.device_put(HOST[name], sharding) for name in names}


def test_the_lists_above_are_right(mesh: Mesh) -> None:
    assert {name: array.dtype.name for name, array in on_devices(mesh).items()} == {name: name for name in on_devices(mesh)}
    assert all(jax.device_put(np.zeros(2, name)).dtype.name != name for name in WIDE)
    for name in NOT_ON_DEVICES:
        with pytest.raises(jax.errors.JaxRuntimeError, match="Unknown NumPy dtype"):
            jax.device_put(HOST[name])


def test_every_dtype_sharded_over_devices(mesh: Mesh, tmp_path: Path) -> None:
    state = on_devices(mesh)
    assert_same(round_trip(tmp_path / "run", state, chunk_bytes=16), state)
    other = NamedSharding(mesh, PartitionSpec(None, "data"))
    moved = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=other) for name, array in state.items()}
    restored = resume(tmp_path / "run", {"params": moved}, chunk_bytes=16).components["params"]
    assert_same(restored, {name: jax.device_put(HOST[name], other) for name in state})
    assert check_run(tmp_path / "run") == []


def test_every_dtype_in_host_memory(tmp_path: Path) -> None:
    state: dict[str, Any] = {f"{name}/array": array for name, array in HOST.items()}
    state |= {f"{name}/scalar": array[0, 0] for name, array in HOST.items() if isinstance(array[0, 0], np.generic)}
    state |= {f"{name}/empty": array[:0] for name, array in HOST.items()}
    state |= {f"{name}/0-d": array[1, 1].reshape(()) for name, array in HOST.items()}
    assert_same(round_trip(tmp_path / "run", state, chunk_bytes=16), state)


def test_every_dtype_without_jax(mesh: Mesh, tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"devices": on_devices(mesh), "host": HOST}})
    expected = {"params": {"devices": {name: HOST[name] for name in on_devices(mesh)}, "host": HOST}}
    assert restored_without_jax(tmp_path / "run") == describe(expected)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (3, 0, 2), (1, 1), (5,), (2, 3, 1, 2)])
def test_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    state = {"device": jnp.asarray(host), "bf16": jnp.asarray(host, jnp.bfloat16), "host": host, "bool": host > 1}
    assert_same(round_trip(tmp_path / "run", state), state)


@pytest.mark.parametrize(
    "host", [np.arange(6, dtype=">i4"), np.arange(12.0)[::-2], np.asfortranarray(np.arange(6.0).reshape(2, 3))]
)
def test_host_arrays_of_any_memory_layout(host: np.ndarray, tmp_path: Path) -> None:
    restored = round_trip(tmp_path / "run", {"x": host})["x"]
    np.testing.assert_array_equal(restored, host)
    assert restored.flags.writeable
    assert restored.dtype == host.dtype


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys(impl: str, mesh: Mesh, tmp_path: Path) -> None:
    key = jax.random.key(3, impl=impl)
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    over_both = NamedSharding(mesh, PartitionSpec(None, ("model", "data")))
    state = {
        "one": key,
        "many": jax.random.split(key, 8),
        "sharded": jax.device_put(jax.random.split(key, 8), over_data),
        "grid": jax.device_put(jax.random.split(key, (3, 4)), over_both),
        "none": jax.random.split(key, 0),
        "raw": jax.random.key_data(key),
    }
    restored = round_trip(tmp_path / "run", state)
    assert_same(restored, state)
    moved = jax.ShapeDtypeStruct((8,), key.dtype, sharding=NamedSharding(mesh, PartitionSpec("model")))
    resharded = resume(tmp_path / "run", {"params": {**state, "sharded": moved}}).components["params"]["sharded"]
    assert_same(resharded, jax.device_put(state["sharded"], NamedSharding(mesh, PartitionSpec("model"))))


def test_weak_types(mesh: Mesh, tmp_path: Path) -> None:
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = {
        "int": jax.jit(lambda: 3)(),
        "float": jax.jit(lambda: 0.1)(),
        "array": jax.jit(lambda: jax.lax.broadcast(2.0, (4, 4)))(),
        "everywhere": jax.jit(lambda: 1.5, out_shardings=everywhere)(),
        "strong": jnp.float32(2),
    }
    assert [is_weak(leaf) for leaf in state.values()] == [True, True, True, True, False]
    restored = round_trip(tmp_path / "run", state)
    assert_same(restored, state)
    assert (restored["float"] + jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_counter_that_was_an_int_at_first(tmp_path: Path) -> None:
    # Flax's TrainState.step: an int at init, a weak int32 once a jitted step has returned it.
    counted = jax.jit(lambda step: step + 1)(0)
    assert is_weak(counted)
    save(tmp_path / "run", {"params": {"step": counted}})
    restored = resume(tmp_path / "run", {"params": {"step": 0}}).components["params"]["step"]
    assert (type(restored), restored) == (int, 1)


def test_an_int_into_an_array(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"step": 7, "rate": 0.5}})
    like = {"step": jnp.int32(0), "rate": jax.ShapeDtypeStruct((), jnp.float32)}
    restored = resume(tmp_path / "run", {"params": like}).components["params"]
    assert_same(restored, {"step": jnp.int32(7), "rate": jnp.float32(0.5)})


def memory_kinds() -> list[str]:
    return sorted(memory.kind for memory in jax.devices()[0].addressable_memories())


def test_memory_kinds(mesh: Mesh, tmp_path: Path) -> None:
    kinds = memory_kinds()
    assert len(kinds) > 1
    host = np.arange(16, dtype=np.float32).reshape(4, 4)
    state = {
        f"{kind}/sharded": jax.device_put(host, NamedSharding(mesh, PartitionSpec("data"), memory_kind=kind)) for kind in kinds
    }
    state |= {f"{kind}/single": jax.device_put(host, SingleDeviceSharding(jax.devices()[1], memory_kind=kind)) for kind in kinds}
    restored = round_trip(tmp_path / "run", state)
    assert_same(restored, state)
    assert {name: leaf.sharding.memory_kind for name, leaf in restored.items()} == {name: name.split("/")[0] for name in state}
    swapped = {name: state[name.replace(kinds[0], "?").replace(kinds[-1], kinds[0]).replace("?", kinds[-1])] for name in state}
    assert_same(resume(tmp_path / "run", {"params": swapped}).components["params"], swapped)
