"""Which rank of a job reads which chunk for the others: pure (docs/adr/0024).

Every rank says which chunks it wants whole. A chunk that two or more want has one owner among them, which reads it from the
store. All ranks make the plan from the same messages, so all make the same one; a chunk is known by its number in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ckptcore import canonical
from ckptcore.array_spec import StoredArray
from ckptcore.geometry import Box, Claimable, assign

Wish = tuple[str, StoredArray, Sequence[Box]]
"""The prefix of the database, an array in it, and the boxes wanted of it."""

Chunk = tuple[str, str, int]
"""The prefix of its database, the stored name of its array, and its place in the array's grid."""


@dataclass(frozen=True)
class Plan:
    """The chunks that are passed on, in one order on all ranks, and the owner of each."""

    chunks: tuple[Chunk, ...] = ()
    owners: tuple[int, ...] = ()

    def of(self, rank: int) -> frozenset[int]:
        """The numbers of the chunks that `rank` owns."""
        return frozenset(number for number, owner in enumerate(self.owners) if owner == rank)


def encode(wishes: Iterable[Wish]) -> bytes:
    """The chunks that a rank wants whole: canonical bytes, equal on ranks that want the same ones.

    An array's chunks are told as the ends of runs of consecutive ones, with the bytes of its largest chunk.
    """
    wanted: dict[tuple[str, str], tuple[int, set[int]]] = {}
    boxes: dict[tuple[str, StoredArray], list[Box]] = {}
    for prefix, array, some in wishes:
        boxes.setdefault((prefix, array), []).extend(some)
    for (prefix, array), some in boxes.items():
        nbytes = array.grid.largest * array.itemsize
        wanted.setdefault((prefix, array.name), (nbytes, set()))[1].update(whole_chunks(array, some))
    told = [[*key, nbytes, _runs(sorted(chunks))] for key, (nbytes, chunks) in sorted(wanted.items()) if chunks]
    return canonical.encode(told)


def whole_chunks(array: StoredArray, boxes: Sequence[Box]) -> Iterable[int]:
    """The chunks of `array` of which `boxes` together want every element, rising."""
    distinct = list(dict.fromkeys(boxes))
    if any(box == Box.whole(array.shape) for box in distinct):
        return range(array.grid.size)
    met = sorted({chunk for box in distinct for chunk in array.grid.overlapping(box)})
    return [chunk for chunk in met if covered(array.grid.cell(chunk), distinct)]


def covered(cell: Box, boxes: Iterable[Box]) -> bool:
    """Whether every element of `cell` lies in one of `boxes`."""
    parts = [part for part in (cell.intersect(box) for box in boxes) if part is not None]
    if cell in parts:
        return True
    if sum(part.size for part in parts) < cell.size:
        return False
    # Between the boundaries of the parts a block lies in a part with all of its elements, or with none.
    edges = [sorted({edge for part in parts for edge in (part.start[d], part.stop[d])}) for d in range(len(cell.start))]
    inside = np.zeros([len(known) - 1 for known in edges], bool)
    for part in parts:
        inside[tuple(slice(e.index(a), e.index(b)) for e, a, b in zip(edges, part.start, part.stop, strict=True))] = True
    reached = all((e[0], e[-1]) == ends for e, ends in zip(edges, zip(cell.start, cell.stop, strict=True), strict=True))
    return reached and bool(inside.all())


def plan(lists: Mapping[bytes, Sequence[int]], serving: Iterable[int]) -> Plan:
    """Who reads what, if `lists` (of `encode`) are wanted by the ranks given for each, and only `serving` can pass chunks on.

    Owners are spread evenly by bytes, those that one rank alone wants counted in. What no rank that wants it can pass on
    is not in the plan: each reads it for itself.
    """
    able = frozenset(serving)
    wanting: dict[Chunk, tuple[int, ...]] = {}
    nbytes: dict[Chunk, int] = {}
    told = sorted(lists, key=lambda encoded: min(lists[encoded]))
    for number, encoded in enumerate(told):
        for chunk, size in _told(encoded):
            wanting[chunk] = (*wanting.get(chunk, ()), number)
            nbytes[chunk] = size
    holders = {some: tuple(sorted(rank for number in some for rank in lists[told[number]])) for some in set(wanting.values())}
    alone: dict[int, int] = {}
    shared: dict[Chunk, tuple[int, ...]] = {}
    for chunk, some in wanting.items():
        ranks = holders[some]
        if len(ranks) == 1:
            alone[ranks[0]] = alone.get(ranks[0], 0) + nbytes[chunk]
        elif not able.isdisjoint(ranks):
            shared[chunk] = ranks if able.issuperset(ranks) else tuple(rank for rank in ranks if rank in able)
    chosen = assign([Claimable(_name(chunk), chunk[2], nbytes[chunk], holders) for chunk, holders in shared.items()], alone)
    chunks = tuple(sorted(shared))
    return Plan(chunks, tuple(chosen[_name(chunk), chunk[2]] for chunk in chunks))


def _name(chunk: Chunk) -> str:
    return chunk[0] + chunk[1]


def _told(encoded: bytes) -> Iterator[tuple[Chunk, int]]:
    """The chunks of a list, and the bytes that each counts for."""
    for prefix, name, nbytes, ends in canonical.decode(encoded, what="the chunks that another rank wants"):
        for start, stop in zip(ends[::2], ends[1::2], strict=True):
            yield from (((prefix, name, number), nbytes) for number in range(start, stop))


def _runs(numbers: Sequence[int]) -> list[int]:
    """`[0, 1, 2, 7]` → `[0, 3, 7, 8]`: where each run of consecutive numbers begins and ends."""
    breaks = [edge for one, other in pairwise(numbers) if other != one + 1 for edge in (one + 1, other)]
    return [numbers[0], *breaks, numbers[-1] + 1]
