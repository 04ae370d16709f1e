"""Pytrees to leaves with paths, and back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.core import FrozenDict
from flax.training.train_state import TrainState

from ckptcore.errors import UnsupportedLeaf
from ckptcore.names import show_path
from jaxckpt import tree
from jaxckpt.backend import flatten


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


@jax.tree_util.register_pytree_node_class
class Anonymous:
    """A node that gives JAX no keys."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[Any, None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _aux: None, children: Any) -> Anonymous:
        return cls(*children)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.dropout(self.norm(self.layers[0](x))))


def shown(value: Any) -> list[str]:
    return [show_path("c", path) for path, _ in tree.flatten("c", value).leaves]


def rebuilt(value: Any) -> Any:
    flat = tree.flatten("c", value)
    return flat.build([leaf for _, leaf in flat.leaves])


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (1, ["c"]),
        ({"b": 1, "a": [2, (3,)]}, ["c['a'][0]", "c['a'][1][0]", "c['b']"]),
        ({1: 1, 10: 2, 2: 3}, ["c[1]", "c[2]", "c[10]"]),
        (Pair(1, {"x": 2}), ["c.first", "c.second['x']"]),
        (Registered(1, 2), ["c.weight", "c.bias"]),
        (FlaxStruct(1), ["c.weight"]),
        (Anonymous(1, [2]), ["c[0]", "c[1][0]"]),
        (OrderedDict(z=1, a=2), ["c['z']", "c['a']"]),
        (FrozenDict({"a": 1}), ["c['a']"]),
        (None, ["c"]),
        ({"a": None, "b": {}, "c": [], "d": (), "e": [{}]}, ["c['a']", "c['b']", "c['c']", "c['d']", "c['e'][0]"]),
        (optax.EmptyState(), ["c"]),
    ],
)
def test_paths_and_structure(value: Any, paths: list[str]) -> None:
    assert shown(value) == paths
    again = rebuilt(value)
    assert type(again) is type(value)
    assert jax.tree.structure(again) == jax.tree.structure(value)


def test_empty_nodes_are_values() -> None:
    flat = flatten({"c": {"a": None, "b": {}, "c": [], "d": (), "e": optax.EmptyState(), "f": FlaxEmpty()}})
    assert {leaf.name: leaf.value for leaf in flat.values} == {"c.a": None, "c.b": {}, "c.c": [], "c.d": (), "c.e": (), "c.f": {}}


@struct.dataclass
class FlaxEmpty:
    pass


def test_optax_chain_has_the_fields_names() -> None:
    state = optax.chain(optax.clip(1.0), optax.adamw(1e-3)).init({"w": jnp.ones(2)})
    assert shown(state)[:4] == ["c[0]", "c[1][0].count", "c[1][0].mu['w']", "c[1][0].nu['w']"]


def test_train_state() -> None:
    state = TrainState.create(apply_fn=len, params={"w": jnp.ones(2)}, tx=optax.sgd(0.1, momentum=0.9))
    assert shown(state) == ["c.step", "c.params['w']", "c.opt_state[0].trace['w']", "c.opt_state[1]"]
    assert rebuilt(state).apply_fn is len


def test_a_module_its_state_and_its_pure_dict_have_the_same_paths() -> None:
    module = Net(nnx.Rngs(0))
    state = nnx.state(module)
    assert shown(module) == shown(state) == shown(nnx.to_pure_dict(state))
    assert "c['layers'][0]['kernel']" in shown(module)
    assert "c['dropout']['rngs']['key']" in shown(module)


def test_a_module_is_updated_in_place() -> None:
    module, other = Net(nnx.Rngs(0)), Net(nnx.Rngs(1))
    flat = tree.flatten("c", module)
    assert flat.build([leaf for _, leaf in tree.flatten("c", other).leaves]) is module
    np.testing.assert_array_equal(module.layers[0].kernel[...], other.layers[0].kernel[...])
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), nnx.state(module), nnx.state(other)))


def test_nnx_state_comes_back_as_a_state_of_variables() -> None:
    state = nnx.state(Net(nnx.Rngs(0)))
    again = rebuilt({"model": state, "count": nnx.Param(jnp.ones(2))})
    assert type(again["model"]) is type(state)
    assert type(again["model"]["norm"]["mean"]) is nnx.BatchStat
    assert type(again["count"]) is nnx.Param


def test_an_nnx_optimizer_is_a_component() -> None:
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    assert "c['opt_state'][0]['mu']['layers'][1]['bias']" in shown(optimizer)
    assert rebuilt(optimizer) is optimizer


@pytest.mark.parametrize("key", [1.5, (1, 2), True, np.int64(3)])
def test_other_dict_keys_are_refused_by_name(key: Any) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"c\['a'\]: the key"):
        tree.flatten("c", {"a": {key: 1}})


def test_a_dict_that_jax_cannot_sort_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedLeaf, match=r"c\['a'\]\[1\]: JAX cannot flatten this dict .*all text or all int"):
        tree.flatten("c", {"a": [0, {1: 1, "x": 2}]})


def within_itself() -> Any:
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    return cycle


def deep(levels: int, leaf: Any = 0) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize("endless", [within_itself(), deep(2000)], ids=["cycle", "deep"])
def test_endless_nesting_is_refused_by_name(endless: Any) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"c\['x'\]\[.*…: nested deeper than 128 levels, or within itself"):
        tree.flatten("c", {"x": endless})
    assert len(tree.flatten("c", deep(128)).leaves) == 1
    assert rebuilt(deep(128)) == deep(128)


@pytest.mark.parametrize(
    ("leaf", "match"),
    [
        (len, r"c\['a'\]\[1\]: builtin_function_or_method.*Functions are code"),
        (object(), r"c\['a'\]\[1\]: object has no place"),
        (1j, r"c\['a'\]\[1\]: complex"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), r"c\['a'\]\[1\]: jax.*ShapeDtypeStruct.*Abstract arrays belong into `like`"),
        (np.array(["text"]), r"c\['a'\]\[1\]: an array of dtype <U4"),
        (np.array([object()]), r"c\['a'\]\[1\]: an array of dtype object"),
        (np.ma.masked_array([1]), r"c\['a'\]\[1\]: a masked array"),
    ],
)
def test_other_leaves_are_refused_by_name(leaf: Any, match: str) -> None:
    with pytest.raises(UnsupportedLeaf, match=match):
        flatten({"c": {"a": [0, leaf]}})


def test_a_tracer_is_refused() -> None:
    def step(x: jax.Array) -> jax.Array:
        flatten({"c": x})
        return x

    with pytest.raises(UnsupportedLeaf, match="tracer"):
        jax.jit(step)(1.0)


def test_a_donated_array_is_refused() -> None:
    array = jnp.ones(4)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    with pytest.raises(UnsupportedLeaf, match=r"c\['x'\].*donated"):
        flatten({"c": {"x": array}})
