from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import canonical, values
from ckptcore.errors import InvalidRecord, UnsupportedLeaf

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["$", "$int", "$dict", "$float"])
INTS = st.integers() | st.integers(-(2**200), 2**200) | st.sampled_from([2**53 - 1, 2**53, -(2**53), 1 - 2**53])
VALUES = st.recursive(
    st.none() | st.booleans() | INTS | st.floats() | TEXT | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(TEXT | INTS, inner, max_size=3)
    ),
    max_leaves=8,
)

VECTORS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (7, "7"),
    (2**53 - 1, "9007199254740991"),
    (2**53, '{"$int":"9007199254740992"}'),
    (-(2**64), '{"$int":"-18446744073709551616"}'),
    (0.1, '{"$float":"0.1"}'),
    (1.0, '{"$float":"1.0"}'),
    (-0.0, '{"$float":"-0.0"}'),
    (1e300, '{"$float":"1e+300"}'),
    (5e-324, '{"$float":"5e-324"}'),
    (math.inf, '{"$float":"inf"}'),
    (-math.inf, '{"$float":"-inf"}'),
    (math.nan, '{"$float":"nan"}'),
    ("é", '"é"'),
    (b"\x00\xff", '{"$bytes":"AP8="}'),
    ([1, "a"], '[1,"a"]'),
    ((), '{"$tuple":[]}'),
    ((1, (2,)), '{"$tuple":[1,{"$tuple":[2]}]}'),
    ({}, "{}"),
    ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
    ({"$int": "1"}, '{"$dict":[["$int","1"]]}'),
    ({"a": 1, 10: 2, 9: 3}, '{"$dict":[[9,3],[10,2],["a",1]]}'),
    ({2**60: None}, '{"$dict":[[{"$int":"1152921504606846976"},null]]}'),
]


def is_same(left: Any, right: Any) -> bool:
    """Equal in type too, and bit for bit for floats other than NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left.hex() == right.hex()
    if isinstance(left, dict):
        return set(left) == set(right) and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    return left == right


@pytest.mark.parametrize(("value", "text"), VECTORS, ids=[text for _, text in VECTORS])
def test_worked_vectors(value: Any, text: str) -> None:
    assert canonical.encode(values.encode(value, where="x")) == text.encode()
    assert is_same(values.decode(canonical.decode(text.encode(), what="x"), where="x"), value)


@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    stored = canonical.encode(values.encode(value, where="x"))
    found = values.decode(canonical.decode(stored, what="x"), where="x")
    assert is_same(found, value)
    assert canonical.encode(values.encode(found, where="x")) == stored


@given(st.dictionaries(TEXT | INTS, st.integers(), max_size=6))
def test_equal_dicts_have_one_encoding(value: dict[Any, int]) -> None:
    reordered = {key: value[key] for key in reversed(value)}
    assert canonical.encode(values.encode(value, where="x")) == canonical.encode(values.encode(reordered, where="x"))


class Point(tuple):  # noqa: SLOT001
    pass


Named = collections.namedtuple("Named", "a")  # noqa: PYI024

UNSUPPORTED = [
    np.float32(1),
    np.float64(1),
    np.int64(1),
    np.bool_(1),
    np.zeros(2),
    1j,
    {1, 2},
    object(),
    bytearray(b"x"),
    Named(1),
    Point((1, 2)),
    collections.OrderedDict(a=1),
    {None: 1},
    {True: 1},
    {1.5: 1},
    {(1,): 2},
    print,
    int,
]


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: type(value).__name__)
def test_anything_else_is_refused_with_its_place_and_type(value: Any) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"data\['state'\]\[1\]") as caught:
        values.encode({"state": [0, value]}, where="data")
    bad = next(iter(value)) if type(value) is dict else value
    assert type(bad).__name__ in str(caught.value)


def test_limits_of_size() -> None:
    limit = values.MAX_BYTES
    assert values.decode(values.encode(bytes(limit), where="x"), where="x") == bytes(limit)
    with pytest.raises(UnsupportedLeaf, match="uint8 array"):
        values.encode(bytes(limit + 1), where="x")
    largest = 2**values.MAX_INT_BITS - 1
    assert values.decode(values.encode(-largest, where="x"), where="x") == -largest
    with pytest.raises(UnsupportedLeaf, match="too large"):
        values.encode(largest + 1, where="x")
    with pytest.raises(UnsupportedLeaf, match="surrogate"):
        values.encode(["\ud800"], where="x")
    with pytest.raises(UnsupportedLeaf, match="surrogate"):
        values.encode({"\ud800": 1}, where="x")


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: {1: x}], ids=["list", "tuple", "dict", "int"]
)
def test_the_deepest_value_fits_into_a_record_and_one_deeper_is_refused(wrap: Any) -> None:
    value: Any = 1
    for _ in range(100):
        last, value = value, wrap(value)
        try:
            encoded = values.encode(value, where="x")
        except UnsupportedLeaf:
            break
        canonical.encode({"shared": {"component": {"leaf": encoded}}})
    else:
        pytest.fail("no limit of depth")
    assert is_same(values.decode(values.encode(last, where="x"), where="x"), last)


def test_a_value_within_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedLeaf, match="within itself"):
        values.encode(cycle, where="x")


INVALID: list[Any] = [
    1.5,
    2**53,
    b"x",
    {"$int": 5},
    {"$int": "5"},
    {"$int": "+18446744073709551616"},
    {"$int": "018446744073709551616"},
    {"$int": "18_446_744_073_709_551_616"},
    {"$int": " 18446744073709551616"},
    {"$int": "18446744073709551616\n"},
    {"$int": "9" * 2500},
    {"$int": "9" * 1_000_000},
    {"$float": 1},
    {"$float": "1"},
    {"$float": "1.00"},
    {"$float": "NaN"},
    {"$float": "Infinity"},
    {"$float": "1_0.0"},
    {"$float": " 1.0"},
    {"$float": "1e5"},
    {"$float": "0." + "1" * 100},
    {"$float": "x"},
    {"$bytes": [1]},
    {"$bytes": "AP8"},
    {"$bytes": "AP9="},
    {"$bytes": "A P8="},
    {"$bytes": "AP8=\n"},
    {"$bytes": "é"},
    {"$bytes": "A" * (values.MAX_BYTES * 2)},
    {"$tuple": {}},
    {"$tuple": [1], "$int": "1"},
    {"$tuple": [1], "a": 1},
    {"$set": [1]},
    {"$": 1},
    {"$dict": []},
    {"$dict": {}},
    {"$dict": [["a", 1]]},
    {"$dict": [[1, 2, 3]]},
    {"$dict": [1]},
    {"$dict": [["$a", 1], [1, 1]]},
    {"$dict": [[2, 1], [1, 1]]},
    {"$dict": [[1, 1], [1, 2]]},
    {"$dict": [[True, 1]]},
    {"$dict": [[None, 1]]},
    {"$dict": [[{"$float": "1.0"}, 1]]},
    {"$dict": [[[1], 1]]},
    "\ud800",
]


@pytest.mark.parametrize("encoded", INVALID, ids=lambda encoded: repr(encoded)[:40])
def test_decode_refuses_what_encode_does_not_write(encoded: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"^data\['a'\]\[0\]: ") as caught:
        values.decode({"a": [encoded]}, where="data")
    assert len(str(caught.value)) < 200


def test_decode_refuses_deep_nesting() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InvalidRecord, match="nested"):
        values.decode(deep, where="x")
