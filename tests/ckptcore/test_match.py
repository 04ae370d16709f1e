"""What a target wants against what a checkpoint has: everything fits, or every difference is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ckptcore.backend import Wanted
from ckptcore.convert import Conversion, flax_to_torch
from ckptcore.errors import CallError, StructureMismatch
from ckptcore.geometry import Box
from ckptcore.match import Match, Rules, cast_name, match
from ckptcore.names import Path, array_name
from ckptcore.readable import StoredLeaf
from ckptcore.records import ArrayLeaf, ValueLeaf

W: Path = (("key", "w"),)
X: Path = (("key", "x"),)


def array(
    path: Path = W, dtype: str = "float32", shape: tuple[int, ...] = (4,), component: str = "params", **more: Any
) -> StoredLeaf:
    name = array_name(component, path)
    chunk_shape = tuple(max(1, extent) for extent in shape)
    record = ArrayLeaf(path=path, name=name, dtype=dtype, stored_dtype=dtype, shape=shape, chunk_shape=chunk_shape, **more)
    return StoredLeaf(component, record, None)


def value(path: Path = W, component: str = "params") -> StoredLeaf:
    return StoredLeaf(component, ValueLeaf(path=path, name=array_name(component, path)), None)


@dataclass(frozen=True)
class Source:
    """A readable of which only the values are looked at."""

    held: Any
    title: str = "generation 7"
    framework: str = "host"
    names: tuple[str, ...] = ("params",)

    def value(self, leaf: StoredLeaf) -> Any:  # noqa: ARG002
        return self.held

    def leaves(self, component: str, rank: int | None = None) -> dict[str, StoredLeaf]:  # noqa: ARG002
        raise AssertionError

    def read(self, wanted: Any) -> Any:  # noqa: ARG002
        raise AssertionError

    def digest(self, leaf: StoredLeaf) -> str | None:
        """As if the last letter of the name were its content."""
        return leaf.name[-1]


def wants(path: Path = W, kind: Any = "array", component: str = "params", **facts: Any) -> Wanted:
    if kind == "array":
        facts = {"dtype": "float32", "shape": (4,)} | facts
        facts["boxes"] = (Box.whole(facts["shape"]),)
    return Wanted(component=component, path=path, kind=kind, **facts)


def pair(wanted: list[Wanted], stored: list[StoredLeaf], value_: Any = None, **rules: Any) -> Match:
    return match(wanted, {leaf.name: leaf for leaf in stored}, Source(value_), Rules(**rules))


def differences(wanted: list[Wanted], stored: list[StoredLeaf], value_: Any = None, **rules: Any) -> tuple[str, ...]:
    with pytest.raises(StructureMismatch, match="generation 7 does not fit") as caught:
        pair(wanted, stored, value_, **rules)
    return caught.value.differences


def test_an_equal_array_fits() -> None:
    wanted, stored = wants(), array()
    assert pair([wanted], [stored]).arrays == [(wanted, stored)]


def test_all_differences_are_told_at_once() -> None:
    found = differences(
        [wants(W, dtype="bfloat16"), wants(X, shape=(2, 2)), wants((("key", "y"),)), wants((("key", "n"),), "empty", value={})],
        [array(W), array(X), array((("key", "n"),)), array((("key", "z"), ("index", 0)))],
    )
    assert found == (
        "params['w']: dtype float32 in the checkpoint, bfloat16 in the target (restore(cast=…) casts floating-point arrays)",
        "params['x']: shape [4] in the checkpoint, [2, 2] in the target",
        "params['y']: not in the checkpoint",
        "params['n']: the target is {} there, the checkpoint an array of float32[4]",
        "params['z'][0]: in the checkpoint, not in the target",
    )


def test_nothing_is_cast_unasked() -> None:
    for stored, target in (("float64", "float32"), ("int32", "float32"), ("int32", "int64"), ("float32", "float16")):
        assert differences([wants(dtype=target)], [array(dtype=stored)])


def test_only_floating_arrays_are_cast() -> None:
    assert pair([wants(dtype="bfloat16")], [array(dtype="float32")], cast="bfloat16").arrays
    assert pair([wants(dtype="int32")], [array(dtype="int32")], cast="bfloat16").arrays
    assert differences([wants(dtype="bfloat16")], [array(dtype="int32")], cast="bfloat16")
    assert differences([wants(dtype="float32")], [array(dtype="float32")], cast="bfloat16")


@pytest.mark.parametrize("cast", ["bfloat16", np.float16, np.dtype("float64"), ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_a_cast_is_named_or_given_as_a_dtype(cast: Any) -> None:
    assert cast_name(cast) == (cast if isinstance(cast, str) else np.dtype(cast).name)


@pytest.mark.parametrize("cast", ["int32", np.int8, "complex64", "floaty", "float99", 7, "nonsense"])
def test_a_cast_to_anything_else_is_refused(cast: Any) -> None:
    with pytest.raises(CallError, match="cast"):
        cast_name(cast)


def test_missing_and_extra_leaves_need_permission() -> None:
    assert pair([wants(X)], [], missing="keep").arrays == []
    assert pair([], [array()], extra="ignore").arrays == []
    assert differences([wants(X)], [array()], missing="keep") == ("params['w']: in the checkpoint, not in the target",)
    assert differences([wants(X)], [array()], extra="ignore") == ("params['x']: not in the checkpoint",)
    for wrong in ({"missing": "ignore"}, {"extra": "keep"}):
        with pytest.raises(CallError):
            Rules(**wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", ["flax_to_torch", flax_to_torch, Conversion, {"params.w": "model.w"}, object()])
def test_a_conversion_is_one_that_was_made(wrong: Any) -> None:
    with pytest.raises(CallError, match=r"convert=.*expected a conversion, which flax_to_torch\(…\) or"):
        Rules(convert=wrong)
    assert Rules(convert=flax_to_torch()).convert == flax_to_torch()


def test_renaming_by_prefix_and_by_function() -> None:
    stored = array((("key", "old"), ("key", "w")))
    wanted = wants((("key", "new"), ("key", "w")))
    for rename in (
        {"params.new": "params.old"},
        lambda name: name.replace("new", "old"),
        {"params": "x", "params.new": "params.old"},
    ):
        assert pair([wanted], [stored], rename=rename).arrays == [(wanted, stored)]
    assert "(looked for as 'params.gone.w')" in differences([wanted], [stored], rename={"params.new": "params.gone"})[0]
    assert Rules(rename={"params.n": "x"}).stored_name("params.new") == "params.new"


@pytest.mark.parametrize(("scalar", "found"), [("int", 3), ("float", 0.5), ("bool", True)])
def test_numbers_keep_their_kind(scalar: Any, found: Any) -> None:
    wanted = wants(kind="value", value=type(found)(0), scalar=scalar)
    assert pair([wanted], [value()], found).values
    others: list[Any] = [3, 0.5, True, "3", None, [3], {}]
    for other in others:
        if type(other) is not type(found):
            assert differences([wanted], [value()], other)


@pytest.mark.parametrize(
    ("dtype", "scalar"), [("int32", "int"), ("uint8", "int"), ("float32", "float"), ("bfloat16", "float"), ("bool", "bool")]
)
def test_a_number_and_a_scalar_array_of_its_kind_stand_for_each_other(dtype: str, scalar: Any) -> None:
    number = {"int": 3, "float": 0.5, "bool": True}[scalar]
    assert pair([wants(kind="value", value=number, scalar=scalar)], [array(dtype=dtype, shape=())]).arrays
    assert pair([wants(dtype=dtype, shape=())], [value()], number).values
    assert differences([wants(kind="value", value=number, scalar=scalar)], [array(dtype=dtype, shape=(1,))])
    assert differences([wants(dtype=dtype, shape=(1,))], [value()], number)
    assert differences([wants(kind="value", value="text")], [array(dtype=dtype, shape=())])


@pytest.mark.parametrize(
    ("number", "dtype", "fits"),
    [
        (0.1, "float64", True),
        (0.1, "float32", True),
        (0.1, "float16", False),
        (0.1, "bfloat16", False),
        (0.5, "bfloat16", True),
        (0.5, "float8_e4m3fn", True),
        (-0.0, "float8_e4m3fnuz", False),
        (-0.0, "bfloat16", True),
        (1e300, "float64", True),
        (1e300, "float32", False),
        (1e-300, "float32", False),
        (1e-40, "float32", True),
        (1e5, "float16", False),
        (math.inf, "float32", True),
        (-math.inf, "bfloat16", True),
        (math.inf, "float8_e4m3fn", False),
        (math.nan, "bfloat16", True),
        (math.nan, "float32", True),
        (0.0, "float32", True),
        (127, "int8", True),
        (128, "int8", False),
        (-1, "uint32", False),
        (7, "int4", True),
        (8, "int4", False),
        (2**64, "int64", False),
        (2**64 - 1, "uint64", True),
        (True, "bool", True),
    ],
)
def test_a_number_that_an_array_does_not_hold_is_a_difference(number: Any, dtype: str, fits: Any) -> None:
    wanted = wants(dtype=dtype, shape=())
    if fits:
        assert pair([wanted], [value()], number).values
    else:
        (found,) = differences([wanted], [value()], number)
        assert f"the target is an array of {dtype}[], which does not hold the checkpoint's {number!r}" in found
    if isinstance(number, float):
        assert pair([wanted], [value()], number, cast=dtype).values


def test_random_keys_keep_their_implementation() -> None:
    stored = array(dtype="uint32", shape=(2,), prng_impl="threefry2x32")
    assert pair([wants(dtype="uint32", shape=(2,), prng_impl="threefry2x32")], [stored]).arrays
    for impl in (None, "rbg"):
        assert "random key" in differences([wants(dtype="uint32", shape=(2,), prng_impl=impl)], [stored])[0]
    assert differences([wants(kind="value", value=1, scalar="int")], [array(dtype="uint32", shape=(), prng_impl="rbg")])


@pytest.mark.parametrize("empty", [None, {}, [], ()])
def test_empty_nodes_come_back_as_they_are(empty: Any) -> None:
    assert pair([wants(kind="empty", value=empty)], [value()], empty).values
    for other in (None, {}, [], (), 0, "x", [1]):
        if other != empty or type(other) is not type(empty):
            assert differences([wants(kind="empty", value=empty)], [value()], other)


def test_an_object_takes_all_that_lies_below_its_path() -> None:
    below = [value((("key", "a"), ("index", 0)), component="data"), array((("key", "a"), ("key", "b")), component="data")]
    wanted = wants((("key", "a"),), "any", "data")
    assert pair([wanted], below).trees == [(wanted, below)]
    assert "not in the checkpoint" in differences([wants((("key", "ab"),), "any", "data")], below)[0]


def test_a_key_with_a_dot_is_not_below_its_first_half() -> None:
    stored = [array((("key", "a.b"),), component="data")]
    assert differences([wants((("key", "a"),), "any", "data")], stored)
    assert pair([wants((("key", "a.b"),), "any", "data")], stored).trees


def test_an_optional_leaf_may_be_absent() -> None:
    assert pair([wants(X, "any", optional=True), wants()], [array()]).trees == []


def test_what_other_ranks_take_is_not_left_over() -> None:
    below = value((("key", "opt"), ("key", "m")))
    stored = {leaf.name: leaf for leaf in (array(), array(X), below)}
    elsewhere = [("params.x", False), ("params.opt", True)]
    assert match([wants()], stored, Source(None), Rules(), elsewhere=elsewhere).arrays
    with pytest.raises(StructureMismatch) as caught:
        match([wants()], stored, Source(None), Rules(), elsewhere=[("params.op", True), ("params.x.y", False)])
    assert len(caught.value.differences) == 2


def test_a_tied_leaf_comes_from_any_of_its_names() -> None:
    wanted = wants(tied=("params.x",))
    tied = array(X, alias="params.w")
    assert pair([wanted], [array(), tied]).arrays == [(wanted, array())]
    assert pair([wanted], [array(X)]).arrays == [(wanted, array(X))]


def test_a_tied_leaf_needs_the_same_content_under_all_its_names() -> None:
    equal: Path = (("key", "other_w"),)
    wanted = wants(tied=("params.other_w",))
    assert pair([wanted], [array(), array(equal)]).arrays == [(wanted, array())]
    (difference,) = differences([wants(tied=("params.x",))], [array(), array(X)])
    assert "ties it to 'params.x', where the checkpoint holds other content" in difference


def test_names_that_only_begin_alike_are_not_below() -> None:
    wanted = wants((("key", "a"),), "any")
    below, beside = array((("key", "a"), ("key", "b"))), array((("key", "a-b"),))
    assert pair([wanted], [below, beside], extra="ignore").trees == [(wanted, [below])]
