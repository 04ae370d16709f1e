"""Restoring into targets: values, dtypes, shardings and containers come back as they were."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ckptcore.backend import Found
from ckptcore.components import PerRank
from ckptcore.errors import CallError, StructureMismatch
from ckptcore.geometry import Box
from jaxckpt.backend import JaxBackend, target
from jaxckpt.rng import host_rng_state
from tests.jaxckpt.memory import round_trip, save

DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64", "bfloat16"),
    *("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def same(left: Any, right: Any) -> None:
    """Fail unless two trees have the same structure, and leaves of one type, dtype, place and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert type(a) is type(b)
        if isinstance(a, jax.Array):
            same_array(a, b)
        elif isinstance(a, np.ndarray | np.generic):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
        else:
            assert a == b


def same_array(a: jax.Array, b: jax.Array) -> None:
    assert (a.dtype, a.shape, a.sharding, a.committed) == (b.dtype, b.shape, b.sharding, b.committed)
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        assert jax.random.key_impl(a) == jax.random.key_impl(b)
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    assert a.weak_type == b.weak_type
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def bits(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.random.default_rng(7).integers(0, 256, (*shape, kind.itemsize), np.uint8)
    width = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}.get(dtype, 8)
    return (values & ((1 << width) - 1)).view(kind).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (8, 4)])
def test_every_dtype(mesh: Mesh, dtype: str, shape: tuple[int, ...]) -> None:
    value = bits(dtype, shape)
    spec = P("data") if shape == (8, 4) else P()
    components = {"params": {"jax": jax.device_put(value, NamedSharding(mesh, spec)), "numpy": value}}
    restored = round_trip(components)
    same(restored, components)
    assert restored["params"]["numpy"].dtype == value.dtype


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_wide_numpy_arrays_do_not_need_x64(dtype: str) -> None:
    components = {"extra": {"array": bits(dtype, (5,)), "scalar": np.dtype(dtype).type(3)}}
    same(round_trip(components), components)


def test_a_target_that_jax_would_narrow_is_refused() -> None:
    with pytest.raises(CallError, match=r"params\['n'\]: JAX has no int64 arrays unless jax_enable_x64"):
        target({"params": {"n": jax.ShapeDtypeStruct((2,), np.dtype("int64"))}})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys(mesh: Mesh, impl: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=impl), 8)
    components = {"rng": {"one": jax.random.key(1, impl=impl), "many": jax.device_put(keys, NamedSharding(mesh, P("data")))}}
    memory = save(components)
    assert memory.leaf("rng.one").prng_impl == impl
    same(memory.restore(target(components)), components)
    abstract = jax.tree.map(lambda key: jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=key.sharding), components)
    restored = memory.restore(target(abstract))["rng"]
    assert restored["many"].sharding == components["rng"]["many"].sharding
    np.testing.assert_array_equal(jax.random.normal(restored["one"], (3,)), jax.random.normal(components["rng"]["one"], (3,)))


def test_raw_keys_are_plain_arrays() -> None:
    components = {"rng": jax.random.key_data(jax.random.key(1))}
    same(round_trip(components), components)


def test_weak_types_are_restored_as_recorded(mesh: Mesh) -> None:
    replicated = NamedSharding(mesh, P())
    weak = {
        "count": jax.device_put(3, replicated),
        "scale": jax.device_put(0.5, replicated),
        "row": jnp.full((4,), 2.0),
        "own": jax.jit(lambda x: x + 1)(1),
    }
    assert all(leaf.weak_type for leaf in weak.values())
    same(round_trip({"extra": weak}), {"extra": weak})
    # What the initial state was does not matter: bit-identical continuation needs what was saved.
    strong = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), weak)
    restored = round_trip({"extra": weak}, {"extra": strong})["extra"]
    assert (restored["scale"] * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert jax.jit(lambda x: x * 2)(restored["row"]).weak_type


def test_a_strong_array_stays_strong() -> None:
    like = {"extra": jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)}
    restored = round_trip({"extra": jnp.float32(2)}, like)["extra"]
    assert not restored.weak_type


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_memory_kinds(mesh: Mesh, kind: str) -> None:
    components = {"params": jax.device_put(np.arange(8.0), NamedSharding(mesh, P("data"), memory_kind=kind))}
    restored = round_trip(components)
    same(restored, components)
    assert restored["params"].sharding.memory_kind == kind


def test_an_array_without_a_place_in_the_target_keeps_its_memory_kind(mesh: Mesh) -> None:
    array = jax.device_put(np.arange(8.0), NamedSharding(mesh, P("data"), memory_kind="pinned_host"))
    restored = round_trip({"params": array}, {"params": jax.ShapeDtypeStruct((8,), jnp.float32)})["params"]
    assert restored.sharding.memory_kind == "pinned_host"
    np.testing.assert_array_equal(restored, np.arange(8.0))


def test_uncommitted_arrays_stay_uncommitted_and_mix_with_a_mesh(mesh: Mesh) -> None:
    components = {"params": jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("data"))), "extra": jnp.ones(())}
    restored = round_trip(components)
    same(restored, components)
    assert not restored["extra"].committed
    jax.jit(lambda x, y: x + y)(restored["params"], restored["extra"])


def test_numpy_comes_back_as_numpy_in_fresh_writable_memory() -> None:
    components = {"extra": {"array": np.arange(6).reshape(2, 3), "scalar": np.float32(1.5), "flag": np.True_}}
    memory = save(components)
    first, second = memory.restore(target(components)), memory.restore(target(components))
    same(first, components)
    first["extra"]["array"][:] = 0
    same(second, components)


def test_restored_arrays_are_independent_of_each_other(mesh: Mesh) -> None:
    like = {"params": jax.device_put(np.arange(4096, dtype=np.float32), NamedSharding(mesh, P()))}
    memory = save(like)
    first, second = memory.restore(target(like))["params"], memory.restore(target(like))["params"]
    step = jax.jit(lambda x: x * 2, donate_argnums=0)
    jax.block_until_ready(step(step(first)))
    np.testing.assert_array_equal(second, np.arange(4096))


def test_python_values() -> None:
    values = {"a": 1, "b": True, "c": 2.5, "d": "text", "e": b"\x00bytes", "f": 2**80, "g": float("inf"), "h": -0.0}
    same(round_trip({"extra": values}), {"extra": values})


def test_bytes_too_long_for_a_value_are_an_array() -> None:
    components = {"extra": {"blob": b"ab" * 40_000}}
    assert save(components, chunk_bytes=1 << 20).leaf("extra.blob.$bytes").shape == (80_000,)
    same(round_trip(components, {"extra": {"blob": b"c" * 70_000}}), components)


@pytest.mark.parametrize(
    ("stored", "like", "expected"),
    [
        (jnp.int32(7), 0, 7),
        (jnp.float32(0.5), 0.0, 0.5),
        (jnp.bfloat16(0.5), 0.0, 0.5),
        (jnp.zeros((), bool), True, False),
        (np.int64(2**40), 0, 2**40),
    ],
)
def test_a_python_number_in_the_target_takes_a_0d_array(stored: Any, like: Any, expected: Any) -> None:
    restored = round_trip({"extra": stored}, {"extra": like})["extra"]
    assert type(restored) is type(expected)
    assert restored == expected


@pytest.mark.parametrize("like", [jnp.int32(0), np.int32(0), np.zeros((), np.int32), jax.ShapeDtypeStruct((), jnp.int32)])
def test_a_0d_array_in_the_target_takes_a_python_number(like: Any) -> None:
    restored = round_trip({"extra": 7}, {"extra": like})["extra"]
    assert restored.dtype == np.int32
    assert restored == 7


def test_a_python_number_is_rounded_without_a_warning_where_it_may_be() -> None:
    for number, dtype, expected in ((0.1, jnp.float32, np.float32(0.1)), (1e300, jnp.bfloat16, np.inf)):
        restored = round_trip({"extra": number}, {"extra": jax.ShapeDtypeStruct((), dtype)})["extra"]
        assert restored.dtype == dtype
        assert restored == expected


def test_numpy_arrays_come_back_in_the_target_s_byte_order() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    for like in (array, array.astype("<f4")):
        restored = round_trip({"extra": array}, {"extra": like})["extra"]
        assert restored.dtype.str == like.dtype.str
        assert restored.flags.writeable
        np.testing.assert_array_equal(restored, array)
    restored = round_trip({"extra": 7}, {"extra": np.zeros((), ">i4")})["extra"]
    assert (restored.dtype.str, int(restored)) == (">i4", 7)


def test_train_state_before_and_after_its_first_step(mesh: Mesh) -> None:
    params = {"w": jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, P("data", "model")))}
    state = TrainState.create(apply_fn=len, params=params, tx=optax.chain(optax.clip(1.0), optax.adamw(1e-3)))
    later = jax.jit(lambda s: s.apply_gradients(grads=s.params))(state)
    assert type(state.step) is int
    assert later.step.weak_type
    same(round_trip({"params": state}), {"params": state})
    same(round_trip({"params": later}), {"params": later})
    restored = round_trip({"params": later}, {"params": state})["params"]
    assert (type(restored.step), restored.step, restored.apply_fn) == (int, 1, len)


class Net(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.dropout(self.layers[0](x)))


def test_nnx_modules_are_filled_in_place_and_go_on_alike() -> None:
    saved, other = Net(0), Net(1)
    x = jnp.ones((3, 4))
    saved(x)
    memory = save({"model": saved})
    restored = memory.restore(target({"model": other}))["model"]
    assert restored is other
    np.testing.assert_array_equal(saved(x), other(x))


def test_an_abstract_nnx_module_becomes_a_real_one() -> None:
    saved = Net(0)
    abstract = nnx.eval_shape(lambda: Net(1))
    restored = save({"model": saved}).restore(target({"model": abstract}))["model"]
    np.testing.assert_array_equal(saved(jnp.ones((3, 4))), restored(jnp.ones((3, 4))))


def test_nnx_optimizer() -> None:
    model, other = Net(0), Net(1)
    tx = optax.adam(1e-2)
    optimizer, fresh = nnx.Optimizer(model, tx, wrt=nnx.Param), nnx.Optimizer(other, tx, wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda m: m(jnp.ones((3, 4))).sum())(model))
    round_trip({"model": model, "optimizer": optimizer}, {"model": other, "optimizer": fresh})
    same(nnx.state(fresh), nnx.state(optimizer))


def test_empty_nodes_and_int_keys_and_nested_tuples() -> None:
    tree = {
        0: {"none": None, "dict": {}, "list": [], "tuple": (), "empty": optax.EmptyState()},
        10: (1, ([2.0, None],)),
        2: [jnp.ones(2)],
    }
    same(round_trip({"extra": tree}), {"extra": tree})


class Loader:
    """State by `get_state` and `set_state`."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    "state",
    [
        {"position": 3, "epoch": (1, [2, None]), "nested": {1: {}, 2: b"x"}},
        {"buffer": np.arange(5), "more": [{"x": np.array(2.0)}, {"y": (1, 2)}], "flag": True},
        {"large": b"0123456789" * 10_000, "small": b"1"},
        b"y" * 100_000,
        7,
        [],
    ],
)
def test_objects_with_state_get_it_back_as_it_was(state: Any) -> None:
    fresh = Loader(None)
    restored = round_trip({"data": Loader(state)}, {"data": fresh})
    assert restored["data"] is fresh
    same(fresh.state, state)


def test_objects_with_state_inside_a_tree() -> None:
    like = {"data": {"train": Loader(0), "seed": 0}}
    restored = round_trip({"data": {"train": Loader({"a": [1]}), "seed": 5}}, like)
    assert restored["data"]["train"].state == {"a": [1]}
    assert restored["data"]["seed"] == 5


def test_state_is_not_set_when_another_leaf_cannot_be_placed() -> None:
    loader = Loader("before")
    wanted = target({"data": loader, "extra": jax.ShapeDtypeStruct((), jnp.int8)})
    with pytest.raises(StructureMismatch):
        wanted.place({"data": Found(below={(): Found(value="after")})})
    assert loader.state == "before"


def test_host_random_state() -> None:
    memory = save({"rng": host_rng_state()})
    expected = [random.random(), np.random.normal(), np.random.rand()]  # noqa: NPY002
    restored = memory.restore(target({"rng": host_rng_state()}))
    assert [random.random(), np.random.normal(), np.random.rand()] == expected  # noqa: NPY002
    assert isinstance(restored["rng"], PerRank)
    assert memory.layout.components["rng"].scope == "rank"


@pytest.mark.parametrize("state", [None, {"python": 1}, {"python": {"version": 3, "internal": [], "gauss": None}, "numpy": {}}])
def test_a_foreign_random_state_is_refused_and_changes_nothing(state: Any) -> None:
    before = host_rng_state().value.get_state()
    with pytest.raises(StructureMismatch, match="no state of `host_rng_state`"):
        host_rng_state().value.set_state(state)
    assert host_rng_state().value.get_state() == before


def test_a_leaf_that_was_not_found_is_kept() -> None:
    like = {"params": {"a": jnp.ones(2), "b": np.ones(2), "c": 3}, "data": Loader("kept")}
    restored = target(like).place({"params.c": Found(value=4)})
    assert restored["params"]["c"] == 4
    assert restored["params"]["a"] is like["params"]["a"]
    assert restored["params"]["b"] is like["params"]["b"]
    assert restored["data"].state == "kept"


def test_an_abstract_leaf_cannot_be_kept() -> None:
    with pytest.raises(StructureMismatch, match=r"params\['a'\]: only an abstract array"):
        target({"params": {"a": jax.ShapeDtypeStruct((2,), jnp.float32)}}).place({})


def test_an_abstract_mesh_is_no_place() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("a",))
    with pytest.raises(CallError, match="abstract mesh"):
        target({"params": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=NamedSharding(mesh, P("a")))})


def test_only_the_boxes_of_this_process_are_wanted(mesh: Mesh) -> None:
    like = jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    wanted = target({"params": like})
    assert set(wanted.wanted[0].boxes) == {Box((0, 0), (2, 4)), Box((2, 0), (4, 4))}
    assert JaxBackend().topology(wanted.meshes).meshes[0].axes == ["data", "model"]


def test_explicit_meshes() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    keys = jax.device_put(jax.random.split(jax.random.key(0), 4), NamedSharding(mesh, P("a")))
    components = {"params": {"w": jax.device_put(np.ones((4, 4)), NamedSharding(mesh, P("a", "b"))), "k": keys}}
    same(round_trip(components), components)


@dataclass(frozen=True)
class Placement:
    """A mesh over some of the devices in some order, and a spec for a matrix."""

    order: tuple[int, ...]
    shape: tuple[int, int]
    spec: tuple[Any, ...]

    def sharding(self) -> NamedSharding:
        devices = np.array(jax.devices())[list(self.order)].reshape(self.shape)
        return NamedSharding(Mesh(devices, ("a", "b")), P(*self.spec))


SPECS = [(), ("a",), (None, "a"), ("a", "b"), ("b", "a"), (("a", "b"),), (None, ("b", "a")), ("b", None)]


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    shape = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1)]))
    order = draw(st.permutations(range(4)))[: shape[0] * shape[1]]
    spec = draw(
        st.sampled_from([(), ("a",), (None, "a"), ("a", "b"), ("b", "a"), (("a", "b"),), (None, ("b", "a")), ("b", None)])
    )
    return Placement(tuple(order), shape, spec)


@settings(max_examples=40)
@given(placements(), placements(), st.sampled_from([8, 64, 1 << 20]), st.sampled_from(["float32", "bfloat16", "int4"]))
def test_restoring_onto_another_mesh_gives_the_same_values(
    before: Placement, after: Placement, chunk_bytes: int, dtype: str
) -> None:
    value = bits(dtype, (8, 12)) if dtype != "float32" else np.arange(96, dtype=np.float32).reshape(8, 12)
    memory = save({"params": jax.device_put(value, before.sharding())}, chunk_bytes=chunk_bytes)
    like = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=after.sharding())
    restored = memory.restore(target({"params": like}))["params"]
    assert restored.sharding == after.sharding()
    assert np.asarray(restored).tobytes() == value.tobytes()


def test_all_arrays_go_to_the_devices_in_two_calls(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for those with a place, one for those without."""
    place = NamedSharding(mesh, P("data"))
    state = {"a": jax.device_put(np.arange(8.0), place), "b": jax.device_put(np.arange(4.0), place), "c": jnp.ones(3), "n": 1}
    sizes: list[int] = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda values, *rest: (sizes.append(len(values)), put(values, *rest))[1])
    found = round_trip({"params": state})["params"]
    assert sorted(sizes) == [1, 2 * 4]
    same(found, state)
