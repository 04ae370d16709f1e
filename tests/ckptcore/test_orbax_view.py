"""Orbax restores `state/` as it is: metadata alone, made from records, adds what it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import orbax_view, records, values
from ckptcore.arrays import DatabaseWriter, StoredArray, merge
from ckptcore.digests import value_digest
from ckptcore.layout import grid_of
from ckptcore.names import Path as LeafPath
from ckptcore.names import PathElement, array_name, database_prefix
from ckptcore.store import Store, open_store
from tests.ckptcore.databases import GENERATION, STATE

Values = Mapping[str, str]


def path_of(*elements: str | int) -> LeafPath:
    """Text is a dict key, a number an index, text that starts with `.` an attribute."""
    return tuple(_element(element) for element in elements)


def _element(element: str | int) -> PathElement:
    if isinstance(element, int):
        return ("index", element)
    return ("attr", element[1:]) if element.startswith(".") else ("key", element)


def array(*path: str | int, data: np.ndarray, component: str = "params", **facts: Any) -> tuple[records.ArrayLeaf, np.ndarray]:
    grid = {} if "cuts" in facts else {"chunk_shape": tuple(max(1, extent // 2) for extent in data.shape)}
    dtype = facts.pop("dtype", data.dtype.name)
    name = array_name(component, path_of(*path))
    leaf = records.ArrayLeaf(
        path=path_of(*path), name=name, dtype=dtype, stored_dtype=data.dtype.name, shape=data.shape, **{**grid, **facts}
    )
    return leaf, data


def value(*path: str | int, component: str = "params") -> records.ValueLeaf:
    return records.ValueLeaf(path=path_of(*path), name=array_name(component, path_of(*path)))


def layout(*leaves: records.ArrayLeaf | records.ValueLeaf, component: str = "params", scope: Any = "global") -> records.Layout:
    ordered = sorted(leaves, key=lambda leaf: leaf.name)
    return records.Layout(components={component: records.LayoutComponent(kind=component, scope=scope, leaves=ordered)})


def digests_of(**found: Any) -> Values:
    return {f"params.{name}": value_digest(values.encode(value, where=name)) for name, value in found.items()}


def publish(
    store: Store, leaves: list[tuple[records.ArrayLeaf, np.ndarray]], others: list[records.ValueLeaf], digests: Values | None
) -> None:
    writer = DatabaseWriter(store, database_prefix(GENERATION, 0, "00000000"))
    for leaf, data in leaves:
        stored = StoredArray(leaf.name, leaf.stored_dtype, leaf.shape, grid_of(leaf))
        writer.add(stored, {cell: data[(..., *stored.grid.cell(cell).slices())] for cell in range(stored.grid.size)})
    writer.finish()
    merge(store, STATE, [database_prefix(GENERATION, 0, "00000000")])
    orbax_view.publish(store, STATE, [layout(*(leaf for leaf, _ in leaves), *others)], digests)


def tree(documents: Mapping[str, bytes]) -> dict[str, str]:
    """Path as Orbax writes it → value type."""
    entries = json.loads(documents["_METADATA"])["tree_metadata"]
    return {path: entry["value_metadata"]["value_type"] for path, entry in entries.items()}


# Pure


def test_the_documents_do_not_depend_on_the_order_or_number_of_layouts() -> None:
    leaves = [array("lst", number, data=np.zeros(2))[0] for number in range(12)] + [value("none")]
    one = orbax_view.documents([layout(*leaves)])
    split = [layout(*leaves[5:]), layout(*leaves[:7])]
    assert one == orbax_view.documents(split) == orbax_view.documents(reversed(split))
    assert set(one) == {"_METADATA"}


def test_lists_come_in_order_of_their_numbers() -> None:
    shown = tree(orbax_view.documents([layout(*(array("lst", number, data=np.zeros(2))[0] for number in range(12)))]))
    assert list(shown) == [f"('params', 'lst', '{number}')" for number in range(12)]


def test_empty_nodes_are_told_from_values_by_their_digests() -> None:
    leaves = [value(name) for name in ("none", "dict", "list", "tuple", "five", "zero", "text")]
    digests = digests_of(none=None, dict={}, list=[], tuple=(), five=5, zero=0, text="")
    assert tree(orbax_view.documents([layout(*leaves)], digests)) == {
        "('params', 'none')": "None",
        "('params', 'dict')": "Dict",
        "('params', 'list')": "List",
        "('params', 'tuple')": "Tuple",
    }
    assert set(tree(orbax_view.documents([layout(*leaves)])).values()) == {"None"}


def test_what_orbax_cannot_hold_is_left_out() -> None:
    data = np.zeros((4, 2), np.uint8)
    whole = array("w", data=data)[0]
    odd = [
        array("cut", data=data, cuts=((0, 1, 4), (0, 2)))[0],
        array("a/b", data=data)[0],
        array("50%", data=data)[0],
        array("narrow", data=data, dtype="uint4")[0],
        records.ArrayLeaf(
            path=path_of("tied"), name="params.tied", dtype="uint8", stored_dtype="uint8", shape=(4, 2), alias="params.w"
        ),
    ]
    assert tree(orbax_view.documents([layout(whole, *odd)], {})) == {"('params', 'w')": "jax.Array"}


def test_a_list_keeps_its_places() -> None:
    data = np.zeros(4, np.uint8)
    leaves = [
        value("chain", 0),
        array("chain", 1, "mu", data=data)[0],
        value("chain", 1, "count"),
        array("chain", 2, data=data, dtype="uint4")[0],
        array("chain", 3, data=data)[0],
    ]
    digests = {"params.chain.0": digests_of(x=7)["params.x"], "params.chain.1.count": digests_of(x=7)["params.x"]}
    assert tree(orbax_view.documents([layout(*leaves)], digests)) == {
        "('params', 'chain', '0')": "None",
        "('params', 'chain', '1', 'mu')": "jax.Array",
        "('params', 'chain', '2')": "None",
        "('params', 'chain', '3')": "jax.Array",
    }


def test_what_belongs_to_one_rank_is_no_part_of_the_tree() -> None:
    shared, own = (
        array("w", data=np.zeros(2))[0],
        array("key", data=np.zeros(2, np.uint32), component="rng", prng_impl="threefry2x32")[0],
    )
    documents = orbax_view.documents([layout(shared), layout(own, component="rng", scope="rank")])
    assert list(tree(documents)) == ["('params', 'w')"]
    assert set(documents) == {"_METADATA"}


def test_publishing_twice_is_harmless_and_what_is_there_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, one = open_store(tmp_path), layout(array("w", data=np.zeros(2))[0])
    orbax_view.publish(store, STATE, [one])
    orbax_view.publish(store, STATE, [one])
    assert not caplog.messages
    orbax_view.publish(store, STATE, [layout(array("v", data=np.zeros(2))[0])])
    assert "_METADATA was written by another release" in caplog.text
    assert store.get(f"{STATE}_METADATA") == orbax_view.documents([one])["_METADATA"]


# With Orbax


@pytest.fixture(scope="module")
def ocp() -> Any:
    pytest.importorskip("jax")
    return pytest.importorskip("orbax.checkpoint")


def key_data(seed: int, impl: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    jax = pytest.importorskip("jax")
    keys = jax.random.key(seed, impl=impl) if not shape else jax.random.split(jax.random.key(seed, impl=impl), shape)
    return np.asarray(jax.random.key_data(keys))


@pytest.fixture
def saved(tmp_path: Path, ocp: Any) -> tuple[Path, dict[str, np.ndarray]]:
    del ocp
    import jax.numpy as jnp

    leaves = [
        array("w", data=np.arange(48, dtype=np.float32).reshape(8, 6)),
        array("zeros", data=np.zeros(4, np.float32)),
        array("scalar", data=np.array(7, np.int32)),
        array("empty", data=np.zeros((0, 3), np.float32)),
        array("half", data=np.arange(5).astype(jnp.bfloat16)),
        array("flag", data=np.array([True, False, True])),
        array("nested", ".inner", "a.b", data=np.arange(3)),
        array("key", data=key_data(3, "threefry2x32"), prng_impl="threefry2x32"),
        array("keys", data=key_data(5, "rbg", (3,)), prng_impl="rbg"),
        *(array("lst", number, data=np.full(3, number, np.int16)) for number in range(11)),
    ]
    others = [value("none"), value("dict"), value("list"), value("mixed", 0), value("five")]
    digests = {**digests_of(none=None, dict={}, list=[], five=5), "params.mixed.0": digests_of(x=None)["params.x"]}
    leaves.append(array("mixed", 1, data=np.ones(2, np.float32)))
    publish(open_store(tmp_path), leaves, others, digests)
    return tmp_path / STATE, {leaf.name: data for leaf, data in leaves}


def test_orbax_restores_without_a_target(saved: tuple[Path, dict[str, np.ndarray]], ocp: Any) -> None:
    path, data = saved
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path)["params"]
    expected = {name: data[f"params.{name}"] for name in ("w", "zeros", "scalar", "empty", "half", "flag", "key", "keys")}
    for name, one in expected.items():
        np.testing.assert_array_equal(restored[name], one, strict=True)
    np.testing.assert_array_equal(restored["nested"]["inner"]["a.b"], np.arange(3), strict=True)
    assert [int(one[0]) for one in restored["lst"]] == list(range(11))
    assert restored["mixed"][0] is None
    np.testing.assert_array_equal(restored["mixed"][1], np.ones(2, np.float32))
    assert (restored["none"], restored["dict"], restored["list"]) == (None, {}, [])
    assert set(restored) == {*expected, "nested", "lst", "mixed", "none", "dict", "list"}


def test_orbax_restores_onto_a_target_with_typed_keys(saved: tuple[Path, dict[str, np.ndarray]], ocp: Any) -> None:
    import jax

    path, data = saved
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with ocp.StandardCheckpointer() as checkpointer:
        target: Any = jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=here), checkpointer.restore(path)
        )
        target["params"]["key"] = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=here)
        target["params"]["keys"] = jax.ShapeDtypeStruct((3,), jax.random.key(0, impl="rbg").dtype, sharding=here)
        restored = checkpointer.restore(path, target)["params"]
    assert isinstance(restored["w"], jax.Array)
    np.testing.assert_array_equal(restored["w"], data["params.w"])
    for name, impl in (("key", "threefry2x32"), ("keys", "rbg")):
        assert jax.random.key_impl(restored[name]) == impl
        np.testing.assert_array_equal(jax.random.key_data(restored[name]), data[f"params.{name}"])


def test_orbax_refuses_a_target_with_what_was_left_out(saved: tuple[Path, dict[str, np.ndarray]], ocp: Any) -> None:
    path, _ = saved
    with ocp.StandardCheckpointer() as checkpointer:
        target = checkpointer.restore(path)
        target["params"]["five"] = 0
        with pytest.raises(ValueError, match=r"params\.five"):
            checkpointer.restore(path, target)
