"""Boxes of rearranged arrays, against numpy on whole arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.convert.axes import Axis, Layout, parse
from ckptcore.errors import CallError
from ckptcore.geometry import Box

NAMES = "abcde"


@st.composite
def sides(draw: st.DrawFn, names: Sequence[str]) -> tuple[Axis, ...]:
    """The names in any order, neighbours merged at random."""
    order = draw(st.permutations(names))
    axes: list[list[str]] = []
    for name in order:
        if axes and draw(st.booleans()):
            axes[-1].append(name)
        else:
            axes.append([name])
    return tuple(map(tuple, axes))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    names = NAMES[: draw(st.integers(0, 5))]
    sizes = {name: draw(st.integers(1, 4)) for name in names}
    turned = frozenset(draw(st.sets(st.sampled_from(names)))) if names else frozenset()
    return Layout(draw(sides(names)), draw(sides(names)), sizes, turned)


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> Box:
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    stops = [draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    return Box(tuple(starts), tuple(stops))


def shape_of(side: Sequence[Axis], layout: Layout) -> tuple[int, ...]:
    return tuple(math.prod(layout.sizes[name] for name in axis) for axis in side)


def whole(layout: Layout, source: np.ndarray) -> np.ndarray:
    """What numpy makes of the whole array."""
    names = [name for axis in layout.source for name in axis]
    parts = source.reshape([layout.sizes[name] for name in names])
    parts = np.flip(parts, tuple(names.index(name) for name in layout.reversed_))
    parts = parts.transpose([names.index(name) for axis in layout.target for name in axis])
    return parts.reshape(shape_of(layout.target, layout))


@given(st.data(), layouts())
def test_a_box_is_that_part_of_the_whole(data: st.DataObject, layout: Layout) -> None:
    source = np.arange(math.prod(layout.sizes.values())).reshape(shape_of(layout.source, layout))
    box = data.draw(boxes(layout.shape))
    read = layout.needs(box)
    assert Box.whole(source.shape).contains(read)
    assert np.array_equal(layout.make(box, source[read.slices()]), whole(layout, source)[box.slices()])


@given(layouts())
def test_the_inverse_leads_back(layout: Layout) -> None:
    source = np.arange(math.prod(layout.sizes.values())).reshape(shape_of(layout.source, layout))
    there = layout.make(Box.whole(layout.shape), source)
    assert np.array_equal(layout.inverse.make(Box.whole(source.shape), there), source)


@given(st.data(), st.permutations("abcd"), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_of_axes_that_are_only_moved_no_more_is_read_than_is_wanted(
    data: st.DataObject, order: Sequence[str], sizes: Sequence[int]
) -> None:
    layout = parse(f"a b c d -> {' '.join(order)}").bind(sizes, {})
    assert layout is not None
    box = data.draw(boxes(layout.shape))
    assert layout.needs(box).size == box.size


def test_whole_heads_of_a_projection_are_read_alone() -> None:
    """A tensor-parallel shard of a query projection: rows of two heads of eight, of each their own."""
    layout = parse("d h k -> (h k) d").bind((64, 8, 16), {})
    assert layout is not None
    assert layout.needs(Box((32, 0), (64, 64))) == Box((0, 2, 0), (64, 4, 16))
    assert layout.needs(Box((36, 0), (40, 64))) == Box((0, 2, 4), (64, 3, 8))


@given(layouts(), layouts())
def test_equal_signatures_mean_equal_arrays(one: Layout, other: Layout) -> None:
    if shape_of(one.source, one) == shape_of(other.source, other) and one.signature == other.signature:
        source = np.arange(math.prod(one.sizes.values())).reshape(shape_of(one.source, one))
        assert np.array_equal(whole(one, source), whole(other, source))


def test_one_head_lies_alike_whichever_way_it_is_split() -> None:
    into, out = (parse(text).bind((6, 1, 6), {}) for text in ("d h k -> (h k) d", "h k d -> d (h k)"))
    assert into is not None
    assert out is not None
    assert into.signature == out.signature


def test_sizes_follow_from_the_shape_and_from_those_given() -> None:
    layout = parse("(h w c) o -> o (c h w)").bind((24, 5), {"h": 2, "w": 3, "unrelated": 9})
    assert layout is not None
    assert (layout.sizes, layout.shape) == ({"h": 2, "w": 3, "c": 4, "o": 5}, (5, 24))


@pytest.mark.parametrize(
    ("text", "shape", "sizes"),
    [
        ("i o -> o i", (3,), {}),
        ("(h w c) o -> o (c h w)", (24, 5), {"h": 2}),
        ("(h w c) o -> o (c h w)", (25, 5), {"h": 2, "w": 3}),
        ("i o -> o i", (3, 4), {"i": 2}),
    ],
)
def test_a_shape_that_does_not_fit_gives_no_layout(text: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    assert parse(text).bind(shape, sizes) is None


@pytest.mark.parametrize(
    "text",
    ["i o", "i o -> i", "i i -> i i", "(i o -> o i", "((i) o) -> o i", "i 3 -> 3 i", "-i o -> o -i", "() i -> i", "i o -> o i j"],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(CallError, match="axes"):
        parse(text)


def test_a_reversed_axis() -> None:
    layout = parse("h o -> o -h").bind((3, 2), {})
    assert layout is not None
    source = np.arange(6).reshape(3, 2)
    assert np.array_equal(layout.make(Box((0, 0), (2, 3)), source), source[::-1].T)
    assert layout.needs(Box((0, 0), (1, 1))) == Box((2, 0), (3, 1))
