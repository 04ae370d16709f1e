"""Nested trees from leaves, and a state's leaves."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import nested
from ckptcore.errors import InvalidRecord, UnsupportedLeaf
from ckptcore.names import Path


def is_array(node: Any) -> bool:
    return isinstance(node, np.ndarray)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.builds(np.arange, st.integers(0, 3)))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=3),
)


def plain(tree: Any) -> Any:
    """Comparable: arrays as tagged lists."""
    if is_array(tree):
        return ("array", tree.tolist())
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list) else tree


@given(TREES)
def test_a_state_comes_back_from_its_leaves(tree: Any) -> None:
    leaves = nested.split(tree, is_array, where="c")
    assert len({path for path, _ in leaves}) == len(leaves)
    assert plain(nested.build(dict(leaves), where="c")) == plain(tree)


def test_parts_without_an_array_stay_whole() -> None:
    array = np.zeros(2)
    assert nested.split({"a": (1, (2,)), "b": [array, (3,)]}, is_array, where="c") == [
        ((("key", "a"),), (1, (2,))),
        ((("key", "b"), ("index", 0)), array),
        ((("key", "b"), ("index", 1)), (3,)),
    ]
    assert nested.split((1, 2), is_array, where="c") == [((), (1, 2))]


def test_attributes_become_keys_and_indexes_a_list_in_their_order() -> None:
    leaves: dict[Path, int] = {(("attr", "x"), ("index", i)): i for i in reversed(range(11))}
    assert nested.build(leaves, where="c") == {"x": list(range(11))}
    assert nested.build({(("key", 1),): "int", (("key", "1"),): "text"}, where="c") == {1: "int", "1": "text"}


def test_a_part_of_a_list_has_int_keys() -> None:
    assert nested.build({(("index", 2),): "c", (("index", 10**15),): "z"}, where="c") == {2: "c", 10**15: "z"}


def test_no_leaves_are_an_empty_dict() -> None:
    assert nested.build({}, where="c") == {}


def test_long_bytes() -> None:
    data = np.frombuffer(b"abc", np.uint8)
    assert nested.build({(("key", "a"), nested.BYTES): data, (("key", "b"),): 1}, where="c") == {"a": b"abc", "b": 1}
    assert nested.build({(nested.BYTES,): data}, where="c") == b"abc"
    with pytest.raises(InvalidRecord, match=r"c\['a'\]: long bytes are stored as a uint8 array, this is int"):
        nested.build({(("key", "a"), nested.BYTES): 3}, where="c")


@pytest.mark.parametrize(
    "paths",
    [
        [(("key", "a"),), (("key", "a"), ("key", "b"))],
        [(("key", "a"), ("key", "b")), (("key", "a"),)],
        [(), (("key", "a"),)],
        [(("key", "a"),), (("attr", "a"),)],
        [(("key", 0),), (("index", 0),)],
    ],
)
def test_leaves_in_each_others_way_are_refused(paths: list[Path]) -> None:
    with pytest.raises(InvalidRecord, match="c"):
        nested.build(dict.fromkeys(paths, 1), where="c")


@pytest.mark.parametrize("leaf", [0, np.zeros(1)], ids=["value", "array"])
def test_endless_nesting_is_refused_by_name(leaf: Any) -> None:
    cycle: dict[str, Any] = {"x": leaf}
    cycle["again"] = [cycle]
    for endless in (cycle, functools.reduce(lambda inner, _: {"again": inner}, range(2000), leaf)):
        with pytest.raises(UnsupportedLeaf, match=r"c\['again'\].*…: nested deeper than 128 levels, or within itself"):
            nested.split(endless, is_array, where="c")
    deep = functools.reduce(lambda inner, _: {"again": inner}, range(nested.MAX_DEPTH), leaf)
    assert nested.split(deep, is_array, where="c")


@pytest.mark.parametrize("key", [True, 1.5, None, (1,)])
def test_a_key_beside_an_array_must_have_a_name(key: Any) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"c\['a'\]: the key"):
        nested.split({"a": {key: 1, "x": np.zeros(1)}}, is_array, where="c")
