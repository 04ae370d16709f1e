"""An array under another arrangement of its axes, box by box: pure.

`Axes` is the pattern, such as `d h k -> (h k) d`: names are axes, parentheses merge several into
one (the last runs fastest), a `-` before a name on the right reverses it. Every name stands once on each side, so that a pattern
works both ways. `Layout` is a pattern with its sizes: it says which box of the source a box of the target
is made from, and makes it. A box is never larger than the merged axes of the source require.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ckptcore.errors import CallError
from ckptcore.geometry import Box

Axis = tuple[str, ...]
"""The names that are merged into one axis, the last of which runs fastest."""

Ranges = dict[str, tuple[int, int]]
"""`start, stop` by name."""

_AXIS = re.compile(r"\(([^()]*)\)|([^()\s]+)")
_NAME = re.compile(r"-?[A-Za-z]\w*")


@dataclass(frozen=True)
class Axes:
    """A parsed pattern. `reversed_` are the names that run backwards on the other side."""

    left: tuple[Axis, ...]
    right: tuple[Axis, ...]
    reversed_: frozenset[str]

    def bind(self, shape: Sequence[int], sizes: Mapping[str, int]) -> Layout | None:
        """The layout of an array that has `shape` on the left; None if the shape does not fit.

        Of the names merged into one axis of the left, all but one need a size in `sizes`.
        """
        if len(shape) != len(self.left):
            return None
        known = {name: size for name, size in sizes.items() if any(name in axis for axis in self.left)}
        for axis, extent in zip(self.left, shape, strict=True):
            unknown = [name for name in axis if name not in known]
            rest = math.prod(known[name] for name in axis if name in known)
            if len(unknown) > 1 or (unknown and (rest == 0 or extent % rest)):
                return None
            known.update(dict.fromkeys(unknown, extent // rest))
            if math.prod(known[name] for name in axis) != extent:
                return None
        return Layout(self.left, self.right, known, self.reversed_)


@dataclass(frozen=True)
class Layout:
    """How a target array is made of a source array: the names in each one's axes, and their sizes."""

    source: tuple[Axis, ...]
    target: tuple[Axis, ...]
    sizes: Mapping[str, int]
    reversed_: frozenset[str] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """The target's shape."""
        return tuple(math.prod(self.sizes[name] for name in axis) for axis in self.target)

    @property
    def inverse(self) -> Layout:
        """The way back."""
        return Layout(self.target, self.source, self.sizes, self.reversed_)

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for two layouts of the same source that put every element in the same place."""
        names = [name for axis in self.source for name in axis if self.sizes[name] != 1]
        order = [names.index(name) for axis in self.target for name in axis if self.sizes[name] != 1]
        return (*[self.sizes[name] for name in names], *order, *[name in self.reversed_ for name in names], self.shape)

    def needs(self, box: Box) -> Box:
        """The box of the source that `box` of the target, which is not empty, is made from."""
        ranges = self._read(self._source_ranges(box))
        bounds = [self._interval(axis, ranges) for axis in self.source]
        return Box(tuple(start for start, _ in bounds), tuple(stop for _, stop in bounds))

    def make(self, box: Box, read: np.ndarray) -> np.ndarray:
        """`box` of the target, as a view of `read`, the source's `needs(box)`, where that is possible."""
        wanted = self._source_ranges(box)
        have = self._read(wanted)
        names = [name for axis in self.source for name in axis]
        parts = read.reshape([have[name][1] - have[name][0] for name in names])
        parts = parts[tuple(self._slice(name, wanted[name], have[name]) for name in names)]
        parts = parts.transpose([names.index(name) for axis in self.target for name in axis])
        covered = self._target_ranges(box)
        merged = parts.reshape([math.prod(covered[name][1] - covered[name][0] for name in axis) for axis in self.target])
        return merged[box.slices([self._interval(axis, covered)[0] for axis in self.target])]

    def _target_ranges(self, box: Box) -> Ranges:
        """Per name the least range, in the target's direction, that holds the box and is without gaps in each of its axes."""
        ranges: Ranges = {}
        for axis, start, stop in zip(self.target, box.start, box.stop, strict=True):
            ranges.update(_cover([(name, self.sizes[name]) for name in axis], start, stop))
        return ranges

    def _source_ranges(self, box: Box) -> Ranges:
        ranges = self._target_ranges(box)
        for name in self.reversed_:
            start, stop = ranges[name]
            ranges[name] = (self.sizes[name] - stop, self.sizes[name] - start)
        return ranges

    def _read(self, ranges: Ranges) -> Ranges:
        """`ranges`, widened so that they are without gaps in each axis of the source."""
        wide: Ranges = {}
        for axis in self.source:
            whole = False
            for name in axis:
                wide[name] = (0, self.sizes[name]) if whole else ranges[name]
                whole = whole or wide[name][1] - wide[name][0] > 1
        return wide

    def _interval(self, axis: Axis, ranges: Ranges) -> tuple[int, int]:
        """Where ranges without gaps begin and end along the axis that their names are merged into."""
        start = last = 0
        for name in axis:
            start = start * self.sizes[name] + ranges[name][0]
            last = last * self.sizes[name] + ranges[name][1] - 1
        return start, last + 1

    def _slice(self, name: str, wanted: tuple[int, int], have: tuple[int, int]) -> slice:
        start, stop = wanted[0] - have[0], wanted[1] - have[0]
        if name not in self.reversed_:
            return slice(start, stop)
        return slice(stop - 1, start - 1 if start else None, -1)


@cache
def parse(text: str) -> Axes:
    """Parse `left -> right`. Raises `CallError` for text that is no pattern."""
    left, arrow, right = text.partition("->")
    sides = [_side(left, text), _side(right, text)]
    names = [[name for axis in side for name in axis] for side in sides]
    plain = [sorted(name.removeprefix("-") for name in side) for side in names]
    if not arrow or plain[0] != plain[1] or len(set(plain[0])) != len(plain[0]):
        raise CallError(f"axes {text!r}: expected every axis once on each side of an arrow, such as 'h w i o -> o i h w'")
    turned = frozenset(name.removeprefix("-") for name in names[1] if name.startswith("-"))
    if any(name.startswith("-") for name in names[0]):
        raise CallError(f"axes {text!r}: '-' stands on the right")
    bare = [tuple(tuple(name.removeprefix("-") for name in axis) for axis in side) for side in sides]
    return Axes(bare[0], bare[1], turned)


def _side(text: str, whole: str) -> list[Axis]:
    if _AXIS.sub("", text).strip():
        raise CallError(f"axes {whole!r}: parentheses do not match, or are nested")
    axes = [tuple(match[1].split()) if match[1] is not None else (match[2],) for match in _AXIS.finditer(text)]
    wrong = [name for axis in axes for name in axis if not _NAME.fullmatch(name)]
    if wrong or () in axes:
        raise CallError(f"axes {whole!r}: {wrong or '()'} is no axis; expected names, merged by parentheses, reversed by '-'")
    return axes


def _cover(names: Sequence[tuple[str, int]], start: int, stop: int) -> Ranges:
    """Per name the range that positions `start` to `stop` of the merged axis touch, without gaps."""
    ranges: Ranges = {}
    inner = math.prod(size for _, size in names)
    for position, (name, size) in enumerate(names):
        inner //= size
        first, last = start // inner, (stop - 1) // inner
        ranges[name] = (first, last + 1)
        if first != last:
            return {**ranges, **{other: (0, extent) for other, extent in names[position + 1 :]}}
        start, stop = start - first * inner, stop - first * inner
    return ranges
