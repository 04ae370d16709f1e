"""Boxes, chunk grids, the tiling proof and the choice of who writes what (spec: arrays).

Pure: integers in, integers out. Invariants:

- the cells of a grid are disjoint and cover the array; a cell's index is its place in C order;
- every shard box given to `choose_grid` is a union of cells of the grid it returns;
- a regular grid stores its chunk shape only, so its cost does not grow with the array;
- `assign` gives every rank the same answer, whatever the order of its input.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import islice, pairwise
from operator import ge, le
from typing import NamedTuple

from ckptcore.errors import CallError

CHUNK_BYTES = 16 << 20
"""The most bytes of a chunk, unless somebody asks for another number."""
SHOWN = 8
"""How many chunks or ranks one message lists."""


@dataclass(frozen=True, order=True)
class Box:
    """A half-open box of elements, `start <= index < stop` along every dimension."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        """The box of a whole array. A scalar's is `Box((), ())`, of one element."""
        return Box((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if self.is_empty else math.prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether no element is inside."""
        return any(map(ge, self.start, self.stop))

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None when there is none."""
        common = Box(tuple(map(max, self.start, other.start)), tuple(map(min, self.stop, other.stop)))
        return None if common.is_empty else common

    def contains(self, other: Box) -> bool:
        """Whether `other` lies within this box, its boundaries included."""
        return all(map(le, self.start, other.start)) and all(map(ge, self.stop, other.stop))

    def slices(self, origin: Sequence[int] | None = None) -> tuple[slice, ...]:
        """Slices of this box in an array whose first element lies at `origin` (default: the global array)."""
        base = (0,) * len(self.start) if origin is None else origin
        return tuple(slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, base, strict=True))


@dataclass(frozen=True)
class Grid:
    """How an array is cut into cells: regular (`chunk_shape`) or by boundaries (`cuts`), never both.

    Regular cells are clipped at the array's edge. `cuts` holds the boundaries per dimension,
    0 and the extent included. Make one with `Grid.regular` or `Grid.irregular`.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...] | None
    cuts: tuple[tuple[int, ...], ...] | None

    @staticmethod
    def regular(shape: Sequence[int], chunk_shape: Sequence[int]) -> Grid:
        """Raises `CallError` unless there is one chunk extent of at least 1 for each dimension."""
        if len(chunk_shape) != len(shape) or any(size < 1 for size in chunk_shape):
            raise CallError(f"chunk shape {tuple(chunk_shape)} does not fit shape {tuple(shape)}")
        return Grid(tuple(shape), tuple(chunk_shape), None)

    @staticmethod
    def irregular(shape: Sequence[int], cuts: Sequence[Sequence[int]]) -> Grid:
        """Raises `CallError` unless the cuts of each dimension rise from 0 to its extent."""
        if len(cuts) != len(shape):
            raise CallError(f"{len(cuts)} lists of cuts for {len(shape)} dimensions")
        for extent, bounds in zip(shape, cuts, strict=True):
            if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != extent or any(b <= a for a, b in pairwise(bounds)):
                raise CallError(f"the cuts of a dimension must rise from 0 to its extent {extent}")
        return Grid(tuple(shape), None, tuple(tuple(bounds) for bounds in cuts))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Cells along each dimension."""
        if self.cuts is not None:
            return tuple(len(bounds) - 1 for bounds in self.cuts)
        return _parts(self.shape, self.chunk_shape or ())

    @cached_property
    def size(self) -> int:
        """Number of cells: 1 for a scalar, 0 when an extent is 0."""
        return math.prod(self.counts)

    @cached_property
    def largest(self) -> int:
        """Elements of the largest cell."""
        if self.cuts is not None:
            return math.prod(_longest(bounds) for bounds in self.cuts)
        return math.prod(min(pair) for pair in zip(self.shape, self.chunk_shape or (), strict=True))

    def position(self, index: int) -> tuple[int, ...]:
        """The cell's place along each dimension. Raises `CallError` when there is no such cell."""
        if not 0 <= index < self.size:
            raise CallError(f"chunk {index} is not one of the {self.size} chunks of an array of shape {self.shape}")
        places = []
        for count in reversed(self.counts):
            index, place = divmod(index, count)
            places.append(place)
        return tuple(reversed(places))

    def cell(self, index: int) -> Box:
        """The box of a cell, clipped to the array. Raises `CallError` when there is no such cell."""
        place = self.position(index)
        if self.cuts is not None:
            bounds = [(cuts[at], cuts[at + 1]) for cuts, at in zip(self.cuts, place, strict=True)]
        else:
            sizes = zip(self.shape, self.chunk_shape or (), place, strict=True)
            bounds = [(at * size, min(extent, (at + 1) * size)) for extent, size, at in sizes]
        return Box(tuple(start for start, _ in bounds), tuple(stop for _, stop in bounds))

    def overlapping(self, box: Box) -> Iterator[int]:
        """Indexes of the cells that share an element with `box`, rising. Takes time in the result only."""
        inside = box.intersect(Box.whole(self.shape))
        if inside is None:
            return iter(())
        return _indexes([self._range(d, inside.start[d], inside.stop[d]) for d in range(len(self.shape))], self.counts, 0)

    def _range(self, dimension: int, start: int, stop: int) -> range:
        if self.cuts is not None:
            bounds = self.cuts[dimension]
            return range(bisect_right(bounds, start) - 1, bisect_left(bounds, stop))
        size = (self.chunk_shape or ())[dimension]
        return range(start // size, -(-stop // size))


def choose_grid(
    shape: Sequence[int],
    shards: Iterable[Box],
    itemsize: int,
    chunk_bytes: int = CHUNK_BYTES,
    max_chunks: int = 1 << 16,
) -> Grid:
    """Choose the chunk grid of an array from its shard boxes (spec: arrays, "chunk grid").

    Every non-empty shard box is a union of cells. A cell has at most `chunk_bytes` bytes as
    far as `max_chunks` cells allow; larger shards are cut along their longest dimension
    first, towards square tiles. The grid is regular unless that would take far more cells
    than the shard boundaries ask for, or leave a cell too large.

    Raises `CallError` when a shard box does not lie in the array.
    """
    shape = tuple(shape)
    if 0 in shape:
        return Grid.regular(shape, (1,) * len(shape))
    bounds = _boundaries(shape, shards)
    limit = max(1, chunk_bytes // max(1, itemsize))
    regular = _regular(shape, bounds, limit, max_chunks)
    if regular is not None and regular.largest <= limit:
        return regular
    irregular = _irregular(shape, bounds, limit, max_chunks)
    return irregular if regular is None or irregular.largest < regular.largest else regular


def in_grid_order(cells: int, parts: Iterable[Sequence[tuple[int, str]]]) -> list[str] | None:
    """The digest of each of `cells` chunks, in their order; None unless `parts`, of all ranks, have each exactly once."""
    found = [""] * cells
    count = 0
    for part in parts:
        count += len(part)
        for index, digest in part:
            if not 0 <= index < cells or found[index]:
                return None
            found[index] = digest
    return found if count == cells else None


def tiling_problems(cells: int, owners: Mapping[int, Sequence[int]]) -> list[str]:
    """What keeps the written chunks from tiling an array of `cells` chunks; empty when they do.

    `owners` maps a chunk's index to the ranks that wrote it. The text names a few examples,
    so that its length is bounded.
    """
    outside = sorted(index for index, ranks in owners.items() if ranks and not 0 <= index < cells)
    twice = sorted(index for index, ranks in owners.items() if len(ranks) > 1 and 0 <= index < cells)
    written = sum(1 for index, ranks in owners.items() if ranks and 0 <= index < cells)
    problems = []
    if written < cells:
        missing = islice((index for index in range(cells) if not owners.get(index)), SHOWN)
        problems.append(f"{cells - written} of {cells} chunks were written by no rank: {_some(missing, cells - written)}")
    if twice:
        shown = (f"{index} (ranks {_some(owners[index], len(owners[index]))})" for index in twice[:SHOWN])
        problems.append(f"{len(twice)} of {cells} chunks were written more than once: {_some(shown, len(twice))}")
    if outside:
        problems.append(f"{len(outside)} chunks lie outside the {cells} of the array: {_some(outside, len(outside))}")
    return problems


class Claimable(NamedTuple):
    """A chunk that has to be written once: `nbytes` bytes of array `name`, held by the sorted ranks `holders`."""

    name: str
    cell: int
    nbytes: int
    holders: tuple[int, ...]


def assign(cells: Sequence[Claimable], given: Mapping[int, int] | None = None) -> dict[tuple[str, int], int]:
    """Choose the rank that writes each chunk: `(name, cell)` → rank (spec: arrays, "owner").

    A chunk with one holder goes to it. Then, the largest first, each goes to its holder with
    the fewest bytes so far, the lowest rank among equals. Chunks held by the same ranks thus
    differ in load by at most the largest of them. `given` are the bytes of chunks with one holder that are not
    among `cells`, by rank. Raises `CallError` for a chunk without a holder.
    """
    chosen: dict[tuple[str, int], int] = {}
    loads = dict(given or {})
    shared: list[Claimable] = []
    for claim in cells:
        if len(claim.holders) == 1:
            _give(claim, claim.holders[0], chosen, loads)
        elif claim.holders:
            shared.append(claim)
        else:
            raise CallError(f"chunk {claim.cell} of {claim.name!r} is held by no rank")
    # Equal holder sets share one heap. Loads only grow, so an outdated entry can only be too
    # small: it is corrected when it comes to the top.
    heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for claim in sorted(shared, key=lambda claim: (-claim.nbytes, claim.name, claim.cell)):
        heap = heaps.get(claim.holders)
        if heap is None:
            heap = heaps[claim.holders] = [(loads.get(rank, 0), rank) for rank in claim.holders]
            heapify(heap)
        while heap[0][0] != loads.get(heap[0][1], 0):
            heapreplace(heap, (loads[heap[0][1]], heap[0][1]))
        _give(claim, heap[0][1], chosen, loads)
    return chosen


def _give(claim: Claimable, rank: int, chosen: dict[tuple[str, int], int], loads: dict[int, int]) -> None:
    chosen[claim.name, claim.cell] = rank
    loads[rank] = loads.get(rank, 0) + claim.nbytes


def _boundaries(shape: tuple[int, ...], shards: Iterable[Box]) -> list[list[int]]:
    """Per dimension the sorted places where a shard starts or stops, 0 and the extent included."""
    whole = Box.whole(shape)
    found = [{0, extent} for extent in shape]
    for box in shards:
        if {len(box.start), len(box.stop)} != {len(shape)} or not whole.contains(box):
            raise CallError(f"shard {box.start}..{box.stop} does not lie in an array of shape {shape}")
        if not box.is_empty:
            for places, start, stop in zip(found, box.start, box.stop, strict=True):
                places.update((start, stop))
    return [sorted(places) for places in found]


def _regular(shape: tuple[int, ...], bounds: list[list[int]], limit: int, max_chunks: int) -> Grid | None:
    """The regular grid on which every boundary falls; None when it takes unreasonably many cells."""
    free = [len(places) == 2 for places in bounds]
    # The last cell may be clipped, so the extent itself need not fall on the grid.
    steps = [math.gcd(*places[1:-1]) or extent for places, extent in zip(bounds, shape, strict=True)]
    needed = math.prod(len(places) - 1 for places in bounds)
    if math.prod(_parts(shape, steps)) > max(needed, min(max_chunks, max(64, 8 * needed))):
        return None

    def smaller(dimension: int, side: int, bound: int) -> int:
        if free[dimension]:
            return -(-side // 2)
        factor = _factor(side, bound)
        return side // factor if factor else 0

    sides = _shrink(steps, smaller, lambda sides: math.prod(_parts(shape, sides)), limit, max_chunks)
    balanced = (-(-extent // parts) for extent, parts in zip(shape, _parts(shape, sides), strict=True))
    return Grid.regular(shape, [even if loose else side for even, loose, side in zip(balanced, free, sides, strict=True)])


def _irregular(shape: tuple[int, ...], bounds: list[list[int]], limit: int, max_chunks: int) -> Grid:
    """The grid of the shard boundaries themselves, its intervals cut further into even parts."""

    def count(sides: Sequence[int]) -> int:
        return math.prod(_pieces(places, side) for places, side in zip(bounds, sides, strict=True))

    sides = _shrink([_longest(places) for places in bounds], lambda _, side, __: -(-side // 2), count, limit, max_chunks)
    return Grid.irregular(shape, [_even_cuts(places, side) for places, side in zip(bounds, sides, strict=True)])


def _shrink(
    sides: Sequence[int],
    smaller: Callable[[int, int, int], int],
    count: Callable[[Sequence[int]], int],
    limit: int,
    max_chunks: int,
) -> list[int]:
    """Cut the longest side again and again until a cell has at most `limit` elements.

    `smaller(dimension, side, bound)` gives the next shorter side, at most `bound` times
    shorter, or 0. A cut much deeper than what is still needed (a prime side) is the last resort.
    """
    current = list(sides)
    while (size := math.prod(current)) > limit:
        for bound in (max(8, 2 * -(-size // limit)), max_chunks):
            options = [(side, -d, smaller(d, side, bound)) for d, side in enumerate(current) if side > 1]
            options = [option for option in options if option[2]]
            if options:
                break
        else:
            break
        _, minus_dimension, side = max(options)
        trial = [side if d == -minus_dimension else old for d, old in enumerate(current)]
        if count(trial) > max_chunks:
            break
        current = trial
    return current


def _factor(number: int, bound: int) -> int | None:
    """The smallest prime factor of `number` up to `bound`, or None."""
    for candidate in range(2, min(bound, math.isqrt(number)) + 1):
        if number % candidate == 0:
            return candidate
    return number if 1 < number <= bound else None


def _pieces(places: Sequence[int], side: int) -> int:
    return sum(-(-(stop - start) // side) for start, stop in pairwise(places))


def _even_cuts(places: Sequence[int], side: int) -> list[int]:
    cuts = [0]
    for start, stop in pairwise(places):
        parts = -(-(stop - start) // side)
        cuts.extend(start + (stop - start) * part // parts for part in range(1, parts + 1))
    return cuts


def _parts(shape: Sequence[int], sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-extent // side) for extent, side in zip(shape, sides, strict=True))


def _longest(places: Sequence[int]) -> int:
    return max(stop - start for start, stop in pairwise(places))


def _indexes(ranges: Sequence[range], counts: Sequence[int], base: int) -> Iterator[int]:
    """Linear indexes of the positions in a product of ranges, in C order, without listing any range."""
    if not ranges:
        yield base
    elif len(ranges) == 1:
        start = base * counts[0]
        yield from range(start + ranges[0].start, start + ranges[0].stop)
    else:
        for place in ranges[0]:
            yield from _indexes(ranges[1:], counts[1:], base * counts[0] + place)


def _some(items: Iterable[object], total: int) -> str:
    """The first few items as text, and how many more there are."""
    shown = [str(item) for item in islice(items, SHOWN)]
    return ", ".join(shown) + (f", … ({total - len(shown)} more)" if total > len(shown) else "")
