"""Boxes of devices, against a simpler truth: every element is marked with who holds it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_conformance.cases.boxes import Box, device_boxes, divides, process_boxes

Sharding = list[str | list[str] | None]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], Sharding, dict[str, int]]:
    """A shape, a sharding over axes of which each is used once at most, and a mesh."""
    mesh = {axis: draw(st.integers(1, 3)) for axis in "xyz"[: draw(st.integers(1, 3))]}
    shape = draw(st.lists(st.integers(0, 7), max_size=3))
    dimensions = {axis: draw(st.integers(-1, len(shape) - 1)) for axis in draw(st.permutations(list(mesh)))}
    sharding: Sharding = [
        [axis for axis, dimension in dimensions.items() if dimension == place] or None for place in range(len(shape))
    ]
    return shape, sharding, mesh


def elements(shape: list[int], box: Box) -> set[int]:
    index = np.arange(math.prod(shape)).reshape(shape)
    return set(index[tuple(slice(start, stop) for start, stop in zip(*box, strict=True))].flatten().tolist())


@given(layouts())
def test_devices_that_differ_in_a_sharding_axis_share_nothing_and_all_hold_everything(layout: tuple) -> None:
    shape, sharding, mesh = layout
    used = [axis for axis in mesh if any(axis in (entry or []) for entry in sharding)]
    held: dict[tuple[int, ...], set[int]] = {}
    for place, box in zip(itertools.product(*map(range, mesh.values())), device_boxes(shape, sharding, mesh), strict=True):
        at = tuple(index for axis, index in zip(mesh, place, strict=True) if axis in used)
        assert held.setdefault(at, elements(shape, box)) == elements(shape, box), "replicas hold the same"
    assert sum(map(len, held.values())) == math.prod(shape)
    assert set().union(*held.values()) == set(range(math.prod(shape)))


@given(layouts())
def test_pieces_are_as_numpy_splits_them_where_axes_divide(layout: tuple) -> None:
    """The axes of a dimension, slowest first: reshape the dimension to the axes and take the place of the device."""
    shape, sharding, mesh = layout
    shape = [extent * math.prod(mesh[axis] for axis in entry or []) for extent, entry in zip(shape, sharding, strict=True)]
    assert divides(shape, sharding, mesh)
    index = np.arange(math.prod(shape)).reshape(shape)
    for place, box in zip(itertools.product(*map(range, mesh.values())), device_boxes(shape, sharding, mesh), strict=True):
        at = dict(zip(mesh, place, strict=True))
        part = index
        for dimension, entry in enumerate(sharding):
            for axis in entry or []:
                part = np.split(part, mesh[axis], axis=dimension)[at[axis]]
        assert elements(shape, box) == set(part.flatten().tolist())


def test_an_axis_that_does_not_divide_leaves_the_last_ones_less_or_nothing() -> None:
    assert device_boxes([5], ["x"], {"x": 4}) == [((0,), (2,)), ((2,), (4,)), ((4,), (5,)), ((5,), (5,))]
    assert device_boxes([10], [["x", "y"]], {"x": 2, "y": 2}) == [((0,), (3,)), ((3,), (5,)), ((5,), (8,)), ((8,), (10,))]
    assert not divides([5], ["x"], {"x": 4})


def test_a_process_has_the_boxes_of_its_devices_each_once() -> None:
    mesh = {"x": 2, "y": 2}
    assert process_boxes([4, 6], ["x", None], mesh, 1, 2) == [((2, 0), (4, 6))]
    assert process_boxes([4, 6], [None, "y"], mesh, 1, 2) == [((0, 0), (4, 3)), ((0, 3), (4, 6))]
    assert process_boxes([4, 6], ["y", "x"], mesh, 3, 4) == [((2, 3), (4, 6))]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_array_and_a_scalar_are_whole(rank: int) -> None:
    assert process_boxes([4], None, {"x": 2}, rank, 2) == [((0,), (4,))]
    assert process_boxes([], [], {"x": 2}, rank, 2) == [((), ())]
