"""Every kind of container comes back: as itself through `like`, as plain containers of host arrays without."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx, struct
from flax.core import FrozenDict
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptcore.errors import UnsupportedLeaf
from tests.jaxckpt.plain import describe, restored_without_jax
from tests.jaxckpt.runs import assert_same, bits, checkpointer, resume, round_trip, save
from tests.spec.checker import check_run

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Registered:
    weight: Any
    bias: Any


@struct.dataclass
class FlaxStruct:
    weight: Any
    name: str = struct.field(pytree_node=False, default="static")


def array(*shape: int, start: int = 0) -> jax.Array:
    return jnp.arange(start, start + int(np.prod(shape)), dtype=jnp.float32).reshape(shape)


def host(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)


PARAMS = {"dense": {"kernel": array(4, 3), "bias": array(3, start=12)}, "scale": array()}

VALUES = [True, False, 0, -7, 2**80, 0.1, -0.0, float("inf"), "ü\n", b"\x00\xff", None]

ODD_NAMES = ["a/c", "a/zarr.json", "..", ".", "a%2F", "", "\x00", "ü", "x" * 300, "zarr.json", "c/0", "$bytes", " ", "\n"]

CONTAINERS: dict[str, tuple[Any, Any]] = {
    "text-keys": ({"b": array(2), "a": {"c": array(3)}}, {"b": host([0, 1]), "a": {"c": host([0, 1, 2])}}),
    "int-keys": ({1: array(2), 10: 5, 2: array()}, {1: host([0, 1]), 10: 5, 2: host(0)}),
    "odd-keys": ({"": 1, "a.b": 2, "a/b": 3, "ä b": 4, "1": 5, "..": 6}, {"": 1, "a.b": 2, "a/b": 3, "ä b": 4, "1": 5, "..": 6}),
    "odd-array-names": (
        {name: array(2) for name in ODD_NAMES} | {"a": {"c": array(1), "zarr.json": array(1), "": array(1)}},
        {name: host([0, 1]) for name in ODD_NAMES} | {"a": {"c": host([0]), "zarr.json": host([0]), "": host([0])}},
    ),
    "list": ([array(1), [array(2), []], {}], [host([0]), [host([0, 1]), []], {}]),
    "tuple": ((array(1), (2, ())), [host([0]), [2, ()]]),
    "named-tuple": (Pair(array(1), Pair(None, 3)), {"first": host([0]), "second": {"first": None, "second": 3}}),
    "ordered-dict": (OrderedDict(z=array(1), a=1), {"z": host([0]), "a": 1}),
    "frozen-dict": (FrozenDict({"a": {"b": array(1)}}), {"a": {"b": host([0])}}),
    "dataclass": (Registered(array(1), None), {"weight": host([0]), "bias": None}),
    "flax-struct": (FlaxStruct(array(1)), {"weight": host([0])}),
    "empty-nodes": (
        {"n": None, "d": {}, "l": [], "t": (), "e": optax.EmptyState()},
        {"n": None, "d": {}, "l": [], "t": (), "e": ()},
    ),
    "empty-root": ({}, {}),
    "none-root": (None, None),
    "leaf-root": (array(2), host([0, 1])),
    "values": (VALUES, VALUES),
    "not-a-number": ([float("nan")], [float("nan")]),
    "long-bytes": ({"blob": bytes(range(256)) * 400}, {"blob": bytes(range(256)) * 400}),
    "chain": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10))).init({"w": array(2)}),
        [
            (),
            [
                {"count": np.zeros((), np.int32), "mu": {"w": np.zeros(2, np.float32)}, "nu": {"w": np.zeros(2, np.float32)}},
                (),
                {"count": np.zeros((), np.int32)},
            ],
        ],
    ),
    "masked": (
        optax.masked(optax.sgd(0.1, momentum=0.9), {"w": True, "frozen": False}).init({"w": array(2), "frozen": array(3)}),
        {"inner_state": [{"trace": {"frozen": (), "w": np.zeros(2, np.float32)}}, ()]},
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_come_back_through_like(name: str, tmp_path: Path) -> None:
    value, _ = CONTAINERS[name]
    assert_same(round_trip(tmp_path / "run", {"x": value})["x"], value)


def test_names_that_would_be_stored_alike_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedLeaf, match=r"params\['a'\]\['b'\] and params\['a\.b'\] would both be stored as 'params\.a\.b'"
    ):
        save(tmp_path / "run", {"params": {"a": {"b": array(1)}, "a.b": array(1)}})


def test_containers_come_back_plain_without_jax(tmp_path: Path) -> None:
    state = {name: value for name, (value, _) in CONTAINERS.items()}
    save(tmp_path / "run", {"params": PARAMS, **{f"c_{name}".replace("-", "_"): value for name, value in state.items()}})
    plain = {f"c_{name}".replace("-", "_"): expected for name, (_, expected) in CONTAINERS.items()}
    expected = {"params": jax.tree.map(np.asarray, PARAMS), **plain}
    assert dict(restored_without_jax(tmp_path / "run")[1]) == dict(describe(expected)[1])
    assert check_run(tmp_path / "run") == []


def test_a_restore_without_like_gives_host_arrays(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": PARAMS})
    with checkpointer(tmp_path / "run") as saver:
        restored = saver.restore(accept_guarantee="coverage")  # host arrays lie on no mesh
    assert describe(dict(restored.components)) == describe({"params": jax.tree.map(np.asarray, PARAMS)})


@pytest.mark.parametrize(
    "transformation",
    [
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 1, 5, 50))),
        optax.masked(optax.adam(1e-3), {"dense": {"kernel": True, "bias": False}, "scale": False}),
        optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4),
        optax.multi_transform(
            {"a": optax.adam(1e-3), "b": optax.set_to_zero()}, {"dense": {"kernel": "a", "bias": "b"}, "scale": "a"}
        ),
        optax.inject_hyperparams(optax.adamw)(learning_rate=optax.linear_schedule(1.0, 0.0, 10)),
        optax.apply_if_finite(optax.lion(1e-3), 3),
        optax.contrib.schedule_free_adamw(1e-3),
        optax.adafactor(1e-3, min_dim_size_to_factor=2),
    ],
    ids=["chain", "masked", "multi-steps", "multi-transform", "hyperparams", "if-finite", "schedule-free", "adafactor"],
)
def test_optimizers_come_back_after_a_step(transformation: Any, tmp_path: Path) -> None:
    state = transformation.init(PARAMS)
    update = jax.jit(transformation.update)
    _, after = update(jax.tree.map(jnp.ones_like, PARAMS), state, PARAMS)
    with checkpointer(tmp_path / "run") as saver:
        saver.save(1, {"params": PARAMS, "optimizer": after}).result(30)
    restored = resume(tmp_path / "run", {"params": PARAMS, "optimizer": state}).components
    assert jax.tree.structure(restored["optimizer"]) == jax.tree.structure(after)
    assert [bits(leaf) for leaf in jax.tree.leaves(restored["optimizer"])] == [bits(leaf) for leaf in jax.tree.leaves(after)]
    assert_same(update(PARAMS, restored["optimizer"], PARAMS), update(PARAMS, after, PARAMS))


class Dropped(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = linen.relu(linen.Dense(8)(x))
        return linen.Dense(2)(linen.Dropout(0.5, deterministic=not train)(x))


def linen_state() -> TrainState:
    model = Dropped()
    variables = model.init(jax.random.key(0), jnp.ones((1, 4)), train=False)
    tx = optax.adamw(optax.warmup_cosine_decay_schedule(0, 0.1, 2, 8))
    return TrainState.create(apply_fn=model.apply, params=variables["params"], tx=tx)


@jax.jit
def linen_step(state: TrainState, key: jax.Array) -> tuple[TrainState, jax.Array, jax.Array]:
    key, dropout = jax.random.split(key)

    def loss(params: Any) -> jax.Array:
        return state.apply_fn({"params": params}, jnp.ones((3, 4)), train=True, rngs={"dropout": dropout}).sum()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), key, value


def test_a_train_state_goes_on_bit_for_bit(tmp_path: Path) -> None:
    state, key = linen_state(), jax.random.key(7)
    losses = []
    with checkpointer(tmp_path / "run") as saver:
        for step in range(6):
            if step == 3:
                saver.save(3, {"params": state, "rng": key})
            state, key, loss = linen_step(state, key)
            losses.append(bits(loss))
    restored = resume(tmp_path / "run", {"params": linen_state(), "rng": jax.random.key(0)})
    again, again_key = restored.components["params"], restored.components["rng"]
    assert type(again) is TrainState
    for step in range(restored.step, 6):
        again, again_key, loss = linen_step(again, again_key)
        assert bits(loss) == losses[step]
    assert_same((again.params, again.opt_state, again_key), (state.params, state.opt_state, key))


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.dropout(self.norm(self.layers[0](x))))


@nnx.jit
def nnx_step(model: Net, optimizer: nnx.Optimizer) -> jax.Array:
    value, gradients = nnx.value_and_grad(lambda model: model(jnp.arange(12.0).reshape(3, 4)).sum())(model)
    optimizer.update(model, gradients)
    return value


def nnx_job(seed: int) -> tuple[Net, nnx.Optimizer]:
    model = Net(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adamw(optax.linear_schedule(0.1, 0.0, 10)), wrt=nnx.Param)


def test_an_nnx_module_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = nnx_job(0)
    losses = []
    with checkpointer(tmp_path / "run") as saver:
        for step in range(5):
            if step == 2:
                saver.save(2, {"params": model, "optimizer": optimizer})
            losses.append(bits(nnx_step(model, optimizer)))
    again, again_optimizer = nnx_job(1)
    restored = resume(tmp_path / "run", {"params": again, "optimizer": again_optimizer})
    assert restored.components["params"] is again
    assert [bits(nnx_step(again, again_optimizer)) for _ in range(2, 5)] == losses[2:]
    assert_same(nnx.state(again), nnx.state(model))


def test_an_nnx_state_comes_back_as_one(tmp_path: Path) -> None:
    model = Net(nnx.Rngs(0))
    graph, state = nnx.split(model)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    restored = round_trip(tmp_path / "run", state, abstract)
    assert type(restored) is type(state)
    assert_same(restored, state)
    assert_same(nnx.merge(graph, restored)(jnp.ones((2, 4))), Net(nnx.Rngs(0))(jnp.ones((2, 4))))


def test_a_module_a_state_and_a_pure_dict_are_interchangeable(tmp_path: Path) -> None:
    state = nnx.state(Net(nnx.Rngs(0)))
    save(tmp_path / "run", {"params": Net(nnx.Rngs(0))})
    assert_same(resume(tmp_path / "run", {"params": nnx.state(Net(nnx.Rngs(1)))}).components["params"], state)
    pure = nnx.to_pure_dict(nnx.state(Net(nnx.Rngs(2))))
    assert_same(resume(tmp_path / "run", {"params": pure}).components["params"], nnx.to_pure_dict(state))


def test_abstract_arrays_say_where_to_restore_to(tmp_path: Path, mesh: Mesh) -> None:
    place = NamedSharding(mesh, PartitionSpec("data"))
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), PARAMS)
    abstract["dense"]["kernel"] = jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=place)
    save(tmp_path / "run", {"params": PARAMS})
    with checkpointer(tmp_path / "run") as saver:
        restored = saver.restore(like={"params": abstract}, accept_guarantee="coverage").components["params"]
    assert_same(restored["dense"]["kernel"], jax.device_put(PARAMS["dense"]["kernel"], place))
    assert_same(restored["scale"], PARAMS["scale"])


def test_an_array_in_two_places_comes_back_in_both(tmp_path: Path) -> None:
    shared = array(6)
    restored = round_trip(tmp_path / "run", {"embed": shared, "head": shared, "host": [np.ones(2)] * 2})
    assert_same(restored, {"embed": shared, "head": shared, "host": [np.ones(2)] * 2})
    assert restored["host"][0] is not restored["host"][1]


def test_a_fresh_state_is_made_only_when_there_is_nothing_to_restore(tmp_path: Path) -> None:
    calls: list[str] = []

    def init() -> dict[str, Any]:
        calls.append("init")
        return {"params": array(2)}

    with checkpointer(tmp_path / "run") as saver:
        first = saver.restore_or_init(init, like={"params": array(2)})
        assert (first.step, first.generation, calls) == (0, None, ["init"])
        saver.save(4, first.components)
    with checkpointer(tmp_path / "run") as saver:
        second = saver.restore_or_init(init, like={"params": array(2)})
    assert (second.step, second.guarantee, second.reason, calls) == (4, "exact", "newest", ["init"])
    assert_same(second.components["params"], first.components["params"])
