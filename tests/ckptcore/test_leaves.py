"""Leaves by name, slices as numpy has them, and arrays that are shown in part."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptcore import readable
from ckptcore.errors import CallError, NotFound
from ckptcore.inspect import leaves
from ckptcore.readable import StoredLeaf


def leaf(*path: Any, component: str = "params") -> StoredLeaf:
    return readable.array_leaf(component, path, "float32", (2, 3))


KERNEL = leaf(("key", "Dense_0"), ("key", "kernel"))
BIAS = leaf(("key", "Dense_0"), ("key", "bias"))
OTHER = leaf(("key", "Dense_01"), ("attr", "mu"), ("index", 0))
ALL = [KERNEL, BIAS, OTHER]


@pytest.mark.parametrize("name", ["params.Dense_0.kernel", "params['Dense_0']['kernel']", 'params["Dense_0"]["kernel"]'])
def test_a_leaf_by_its_name_or_its_path(name: str) -> None:
    assert leaves.find(ALL, name, where="x") == [KERNEL]


def test_a_container_is_its_leaves() -> None:
    assert leaves.find(ALL, "params", where="x") == ALL
    assert leaves.find(ALL, "params.Dense_0", where="x") == [KERNEL, BIAS]
    assert leaves.find(ALL, "params['Dense_01']", where="x") == [OTHER]
    assert leaves.find(ALL, "params['Dense_01'].mu", where="x") == [OTHER]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("params.Dense_0.kernal", "did you mean params.Dense_0.kernel"),
        ("parms['Dense_0']['bias']", "did you mean params.Dense_0.bias"),
        ("model.layer.bias", "did you mean params.Dense_0.bias"),
        ("zzz", "`ckpt tree` shows all"),
    ],
)
def test_a_wrong_name_gets_the_ones_that_are_like_it(name: str, advice: str) -> None:
    with pytest.raises(NotFound, match=f"generation 7 has no leaf .*{advice}"):
        leaves.find(ALL, name, where="generation 7")


def test_the_rank_of_a_stored_name() -> None:
    assert leaves.named("rank_state.12.rng.key") == (12, "rng.key")
    assert leaves.named("params.w") == (None, "params.w")


SLICES = ["", "1", "-1", "0:3", ":", "::2", "1:-1", "5:2", ":,1", "0:3,:,2", "...", "...,1", "1,...,::2", "-2:,:,:", "[1,2]"]


@pytest.mark.parametrize("text", SLICES)
def test_a_slice_is_what_numpy_makes_of_it(text: str) -> None:
    array = np.arange(5 * 4 * 3).reshape(5, 4, 3)
    selection = leaves.select(text or None, array.shape)
    expected = eval(f"array[{text.strip('[]') or '...'}]")  # noqa: S307 - the test's own texts
    assert np.array_equal(selection.of(array[selection.box.slices()]), expected)
    assert selection.kept == expected.shape
    assert selection.count == expected.size


@pytest.mark.parametrize("text", ["a", "1:2:3:4", "::-1", "::0", "5", "-6", "0,0,0,0", "...,...", "1,,2", "1.5"])
def test_what_is_no_slice(text: str) -> None:
    with pytest.raises(CallError, match="the slice"):
        leaves.select(text, (5, 4, 3))


@given(st.lists(st.integers(0, 40), min_size=0, max_size=4))
@example([7, 7, 7, 7])  # both ends and the place between them are as long as the dimension
def test_what_is_read_in_part_is_shown_as_numpy_shows_the_whole(shape: list[int]) -> None:
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    selection = leaves.select(None, array.shape)
    boxes, places = leaves.corners(selection)
    shown = leaves.joined(selection, places, [array[box.slices()] for box in boxes])
    assert sum(box.size for box in boxes) <= leaves.MOST_SHOWN + 6 ** len(shape)
    ours = leaves.shown(shown, edge=leaves.edge_of(selection), width=75)
    numpys = np.array2string(array, max_line_width=75, separator=", ")
    assert ours.replace(" ", "") == numpys.replace(" ", "")


def test_steps_in_what_is_shown_in_part() -> None:
    array = np.arange(10_000)
    selection = leaves.select("1::3", array.shape)
    boxes, places = leaves.corners(selection)
    shown = leaves.joined(selection, places, [array[box.slices()] for box in boxes])
    assert leaves.shown(shown, edge=leaves.edge_of(selection), width=80) == "[   1,    4,    7, ..., 9991, 9994, 9997]"


def test_exotic_elements() -> None:
    numbers = np.array([1.5, -2, math.nan], ml_dtypes.bfloat16)
    assert leaves.shown(numbers, edge=None, width=80) == "[ 1.5, -2. ,  nan]"
    assert leaves.as_json(numbers) == [1.5, -2.0, "nan"]
    assert leaves.shown(np.array([1, -2], ml_dtypes.int4), edge=None, width=80) == "[ 1, -2]"
    assert leaves.as_json(np.array([[1, -2]], ml_dtypes.int4)) == [[1, -2]]
    assert leaves.as_json(np.array([1 + 2j, math.inf], np.complex64)) == [[1.0, 2.0], ["inf", 0.0]]
    assert leaves.as_json(np.ones((), np.bool_)) is True
    assert leaves.as_json(np.array(2**63, np.uint64)) == 2**63


def test_values_as_people_read_them() -> None:
    assert leaves.as_text({1: (None, b"ab", 0.5), "ä": True}) == '{"1": [null, "YWI=", 0.5], "ä": true}'
