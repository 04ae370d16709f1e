"""Leaves of a view: arrays made of boxes of the source's arrays, arrays of one number, and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptcore import dtypes
from ckptcore.convert.axes import Layout
from ckptcore.convert.pairing import Pair
from ckptcore.errors import NotFound
from ckptcore.geometry import Box
from ckptcore.names import Path
from ckptcore.readable import Readable, StoredLeaf, array_leaf, value_leaf
from ckptcore.records import ArrayLeaf

Shape = tuple[int, ...]
Request = tuple[StoredLeaf, Box]


@dataclass(frozen=True)
class Piece:
    """Rows of a shown array that one array of the source gives: its rows from `skip` on, by `layout`, lie from row `at` on.

    Rows are places along the first axis. A piece that is all of both arrays has `skip` and `at` 0.
    """

    source: StoredLeaf
    layout: Layout
    skip: int = 0
    at: int = 0

    def part(self, box: Box) -> Box | None:
        """What of `box` this piece gives, in its own coordinates; None for nothing."""
        own = Box.whole(self.layout.shape)
        return own.intersect(_shift(box, -self.at))

    def request(self, part: Box) -> Request:
        """What to read for `part`."""
        return self.source, _shift(self.layout.needs(part), self.skip)


@dataclass(frozen=True)
class Shown:
    """One leaf of a view.

    An array of `pieces` along the first axis; without pieces, an array with `number` everywhere; or a JSON `value`.
    """

    leaf: StoredLeaf
    pieces: tuple[Piece, ...] = ()
    number: int = 0
    value: Any = None

    @property
    def dtype(self) -> np.dtype:
        """The stored dtype."""
        return dtypes.numpy_dtype(_record(self.leaf).stored_dtype)

    def requests(self, box: Box) -> list[Request]:
        """What to read for `box`, in the order in which `make` takes it."""
        return [piece.request(part) for piece, part in self._parts(box)]

    def make(self, box: Box, read: Sequence[np.ndarray]) -> np.ndarray:
        """The box, in memory of its own and in C order, from what was read."""
        if not self.pieces:
            return np.full(box.shape, self.number, dtypes.numpy_dtype(dtype_of(self.leaf))).view(self.dtype)
        parts = self._parts(box)
        if len(parts) == 1:
            made = parts[0][0].layout.make(parts[0][1], read[0])
            # What is only reshaped is handed on; a copy would need its memory twice.
            return made if made.flags.c_contiguous and made.size == read[0].size else made.copy(order="C")
        result = np.empty(box.shape, self.dtype)
        for (piece, part), array in zip(parts, read, strict=True):
            result[_shift(part, piece.at).slices(box.start)] = piece.layout.make(part, array)
        return result

    def _parts(self, box: Box) -> list[tuple[Piece, Box]]:
        parts = [(piece, piece.part(box)) for piece in self.pieces]
        return [(piece, part) for piece, part in parts if part is not None]

    def digest(self, source: Readable) -> str | None:
        """The source's digest where all of one array is shown, and how its axes lie."""
        if len(self.pieces) != 1 or self.pieces[0].layout.shape != shape_of(self.leaf):
            return None
        piece = self.pieces[0]
        digest = source.digest(piece.source)
        whole = shape_of(piece.source) == piece.layout.inverse.shape
        return f"{digest} {piece.layout.signature}" if digest is not None and whole else None


def to_torch(component: str, path: Path, pair: Pair, sources: Mapping[str, StoredLeaf]) -> Shown:
    """A torch array made of Flax's, which have one dtype."""
    dtype = dtype_of(sources[pair.flax[0]])
    pieces = [
        Piece(sources[name], layout, at=start) for name, layout, start in zip(pair.flax, pair.layouts, pair.starts, strict=True)
    ]
    return Shown(array_leaf(component, path, dtype, pair.shape), tuple(pieces))


def to_flax(component: str, path: Path, pair: Pair, name: str, source: StoredLeaf) -> Shown:
    """The array of Flax that is `name`'s part of torch's."""
    part = pair.flax.index(name)
    layout = pair.layouts[part].inverse
    return Shown(array_leaf(component, path, dtype_of(source), layout.shape), (Piece(source, layout, skip=pair.starts[part]),))


def constant(component: str, path: Path, dtype: str, shape: Sequence[int], number: int = 0) -> Shown:
    """An array with `number` everywhere."""
    return Shown(array_leaf(component, path, dtype, shape), number=number)


def value(component: str, path: Path, content: Any) -> Shown:
    """A JSON value."""
    return Shown(value_leaf(component, path), value=content)


def dtype_of(leaf: StoredLeaf) -> str:
    """The logical dtype of an array leaf."""
    return _record(leaf).dtype


def shape_of(leaf: StoredLeaf) -> tuple[int, ...]:
    """The shape of an array leaf."""
    return tuple(_record(leaf).shape)


def is_array(leaf: StoredLeaf) -> bool:
    """Whether it is an array, not a JSON value."""
    return isinstance(leaf.record, ArrayLeaf)


def _record(leaf: StoredLeaf) -> ArrayLeaf:
    if not isinstance(leaf.record, ArrayLeaf):
        raise NotFound(f"leaf {leaf.name!r} is a value, not an array")
    return leaf.record


def _shift(box: Box, rows: int) -> Box:
    if not rows:
        return box
    return Box((box.start[0] + rows, *box.start[1:]), (box.stop[0] + rows, *box.stop[1:]))
