"""From what a backend knows of its leaves to the leaf table, and to who writes which chunk (spec: layout).

Pure. Every rank that gives the same facts gets the same layout, grids and owners, without
talking to another. Invariants of a plan:

- leaf names are unique in the whole layout, and sorted in each component;
- over all ranks, the `own` cells of a global array are each of its cells exactly once, and a
  rank owns only what it holds;
- a rank-scoped array is written whole by its own rank, an alias by nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ckptcore import dtypes, geometry, names, records
from ckptcore.canonical import MAX_INT
from ckptcore.errors import CallError, UnsupportedLeaf
from ckptcore.geometry import Box, Claimable, Grid
from ckptcore.names import Path

MAX_DIMENSIONS = 32


@dataclass(frozen=True, kw_only=True)
class ArrayFacts:
    """What a backend knows of one array leaf; the same on every rank that holds it.

    `shards` maps every distinct shard box of the *global* array to the sorted ranks that hold
    it; it is empty for an array of a rank-scoped component, which its rank holds whole. An
    array that each rank holds by itself, but of which the lowest one's copy counts, has `{whole box: (0,)}`.

    `itemsize` is stored bytes an element. `alias` names the stored array of the same component
    that this leaf is tied to. `host_replicated` marks arrays that each rank holds by itself
    and that have to be equal: a digest goes into every receipt. `local` says that this rank holds the array by
    itself, whether others do or not.
    """

    component: str
    path: Path
    dtype: str
    stored_dtype: str
    shape: tuple[int, ...]
    itemsize: int
    shards: Mapping[Box, tuple[int, ...]] = field(default_factory=dict)
    weak_type: bool = False
    prng_impl: str | None = None
    memory_kind: str | None = None
    sharding: str | None = None
    alias: str | None = None
    host_replicated: bool = False
    local: bool = False

    @cached_property
    def name(self) -> str:
        """The layout name."""
        return names.array_name(self.component, self.path)


@dataclass(frozen=True, kw_only=True)
class ValueFacts:
    """One JSON leaf. `{}`, `[]` and `None` mark empty nodes, so that they survive.

    `keeper` is the lowest rank that has a global one: it stores it for all (spec: V-11).
    """

    component: str
    path: Path
    value: Any
    keeper: int = 0

    @cached_property
    def name(self) -> str:
        """The layout name."""
        return names.array_name(self.component, self.path)


@dataclass(frozen=True, kw_only=True)
class ComponentFacts:
    """One component: its kind, and whether it is one for all ranks or one per rank.

    `rank_zero`: its host arrays and values may differ between ranks, and those of the lowest rank that has them count.
    `inexact`: why a run that restores it cannot go on bit for bit, if the backend sees that.
    """

    kind: str
    scope: Literal["global", "rank"]
    rank_zero: bool = False
    inexact: str | None = None


@dataclass(frozen=True)
class Plan:
    """One rank's part of a save.

    `grids` has every stored array by layout name. `own` maps a layout name to the rank's
    cells, rising; an empty tuple means that this rank writes the metadata of an array without
    chunks. Arrays of which it writes nothing are left out.
    """

    layout: records.Layout
    grids: Mapping[str, Grid]
    own: Mapping[str, tuple[int, ...]]

    @property
    def own_bytes(self) -> int:
        """Stored bytes of the chunks that this rank writes."""
        leaves = (leaf for table in self.layout.components.values() for leaf in table.leaves)
        sizes = {leaf.name: dtypes.itemsize(leaf.stored_dtype) for leaf in leaves if isinstance(leaf, records.ArrayLeaf)}
        return sum(self.grids[name].cell(cell).size * sizes[name] for name, cells in self.own.items() for cell in cells)


def make_plan(
    components: Mapping[str, ComponentFacts],
    arrays: Sequence[ArrayFacts],
    values: Sequence[ValueFacts],
    *,
    rank: int,
    chunk_bytes: int = geometry.CHUNK_BYTES,
    elsewhere: Sequence[ArrayFacts] = (),
) -> Plan:
    """Lay out the leaves and choose what `rank` writes (spec: layout; arrays, "owner").

    `elsewhere` are global arrays that only other ranks hold: the work is balanced over all of them.

    Raises `UnsupportedLeaf`, naming the leaf's path, for names that collide or are too long,
    aliases without their array, and arrays that cannot be cut or are not wholly held by the
    ranks; `CallError` for a bad or unknown component name.
    """
    _check_names(components, [*arrays, *values])
    _check_aliases(arrays)
    stored = [array for array in arrays if array.alias is None]
    per_rank = {name for name, facts in components.items() if facts.scope == "rank"}
    cut = _Cutter(chunk_bytes)
    grids = {array.name: cut.grid(array, per_rank=array.component in per_rank) for array in stored}
    own = {array.name: tuple(range(grids[array.name].size)) for array in stored if array.component in per_rank}
    shared = [array for array in stored if array.component not in per_rank]
    others = [array for array in elsewhere if array.alias is None]
    for array in others:
        cut.grid(array, per_rank=False)
    own |= _own_shared([*shared, *others], cut, rank)
    return Plan(_layout(components, arrays, values, grids), grids, own)


def grid_of(leaf: records.ArrayLeaf) -> Grid:
    """The chunk grid of a decoded leaf. Raises `CallError` for an alias, which has none of its own."""
    if leaf.chunk_shape is not None:
        return Grid.regular(leaf.shape, leaf.chunk_shape)
    if leaf.cuts is not None:
        return Grid.irregular(leaf.shape, leaf.cuts)
    raise CallError(f"leaf {leaf.name!r} is an alias: its chunks are those of {leaf.alias!r}")


@dataclass(frozen=True)
class _Held:
    """Who holds the cells of an array: those with one holder by rank, their bytes by rank, and the others to be shared out."""

    single: Mapping[int, tuple[int, ...]]
    loads: Mapping[int, int]
    shared: Sequence[tuple[int, int, tuple[int, ...]]]
    """`(cell, bytes, holders)`."""


class Distinct:
    """Numbers the different maps of shards of arrays. Backends give arrays that are cut alike one map, so few are compared."""

    def __init__(self) -> None:
        self.found: dict[tuple[tuple[Box, tuple[int, ...]], ...], int] = {}
        self._seen: dict[int, tuple[Mapping[Box, tuple[int, ...]], int]] = {}

    def number(self, shards: Mapping[Box, tuple[int, ...]]) -> int:
        """The number of a map: equal maps, whose boxes come in the same order, have the same."""
        known = self._seen.get(id(shards))
        if known is None:  # it is kept, so that no other gets the same `id`
            known = self._seen[id(shards)] = shards, self.found.setdefault(tuple(shards.items()), len(self.found))
        return known[1]


class _Cutter:
    """Grids and holders of arrays. Models have many arrays but few shapes and shardings: each is cut once."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._shardings = Distinct()
        self._grids: dict[tuple[object, ...], Grid] = {}
        self._held: dict[tuple[object, ...], _Held] = {}

    def grid(self, array: ArrayFacts, *, per_rank: bool) -> Grid:
        """The chunk grid of an array. Raises `UnsupportedLeaf` unless its shards fit its component's scope."""
        if per_rank == bool(array.shards):
            raise UnsupportedLeaf(
                f"{_show(array)}: an array over several ranks cannot be stored per rank; save it in a component of its own"
                if per_rank
                else f"{_show(array)}: no rank is known to hold a shard of it"
            )
        key = self.key(array)
        if key not in self._grids:
            self._grids[key] = _grid(array, self._chunk_bytes)
        return self._grids[key]

    def held(self, array: ArrayFacts) -> _Held:
        """Who holds the cells of an array that has a grid."""
        key = self.key(array)
        if key not in self._held:
            self._held[key] = _held(array, self._grids[key])
        return self._held[key]

    def key(self, array: ArrayFacts) -> tuple[object, ...]:
        """Equal for arrays that are cut and held alike."""
        return array.shape, array.itemsize, self._shardings.number(array.shards)


def _own_shared(arrays: Sequence[ArrayFacts], cut: _Cutter, rank: int) -> dict[str, tuple[int, ...]]:
    """What `rank` writes of global arrays. Only what several ranks hold has to be looked at array by array and cell by cell."""
    claims: list[Claimable] = []
    alike: Counter[tuple[object, ...]] = Counter()
    held: dict[tuple[object, ...], _Held] = {}
    own: dict[str, list[int]] = {}
    for array in arrays:
        if 0 not in array.shape:
            key = cut.key(array)
            found = held[key] = cut.held(array)
            alike[key] += 1
            if rank in found.single:
                own[array.name] = list(found.single[rank])
            claims.extend(Claimable(array.name, cell, nbytes, holders) for cell, nbytes, holders in found.shared)
        elif rank == min((holder for holders in array.shards.values() for holder in holders), default=None):
            own[array.name] = []
    given: Counter[int] = Counter()
    for key, number in alike.items():
        given.update({holder: number * nbytes for holder, nbytes in held[key].loads.items()})
    for (name, cell), owner in geometry.assign(claims, given).items():
        if owner == rank:
            own.setdefault(name, []).append(cell)
    return {name: tuple(sorted(cells)) for name, cells in own.items()}


def _held(array: ArrayFacts, grid: Grid) -> _Held:
    """Who holds every cell. Raises `UnsupportedLeaf` if there is a gap."""
    held: dict[int, tuple[int, ...]] = {}
    for box, holders in array.shards.items():
        for cell in grid.overlapping(box):
            before = held.get(cell)
            held[cell] = holders if before is None else tuple(sorted({*before, *holders}))
    if len(held) != grid.size or not all(held.values()):
        raise UnsupportedLeaf(
            f"{_show(array)}: its shards do not cover its shape {array.shape}, so no rank could write the rest. "
            "Save it from ranks that hold the whole array between them."
        )
    single: dict[int, list[int]] = {}
    loads: Counter[int] = Counter()
    shared = []
    for cell, holders in held.items():
        nbytes = grid.cell(cell).size * array.itemsize
        if len(holders) == 1:
            single.setdefault(holders[0], []).append(cell)
            loads[holders[0]] += nbytes
        else:
            shared.append((cell, nbytes, holders))
    return _Held({rank: tuple(cells) for rank, cells in single.items()}, loads, shared)


def _grid(array: ArrayFacts, chunk_bytes: int) -> Grid:
    if len(array.shape) > MAX_DIMENSIONS or any(extent > MAX_INT for extent in array.shape):
        raise UnsupportedLeaf(f"{_show(array)}: shape {array.shape} is beyond {MAX_DIMENSIONS} dimensions of 2^53")
    try:
        grid = geometry.choose_grid(array.shape, array.shards or (Box.whole(array.shape),), array.itemsize, chunk_bytes)
    except CallError as error:
        raise UnsupportedLeaf(f"{_show(array)}: {error}") from error
    if grid.size > records.MAX_CHUNKS:
        raise UnsupportedLeaf(
            f"{_show(array)}: its shards need {grid.size} chunks, more than an array may have ({records.MAX_CHUNKS}); "
            "shard it along fewer or even boundaries"
        )
    return grid


def _check_names(components: Mapping[str, ComponentFacts], leaves: Iterable[ArrayFacts | ValueFacts]) -> None:
    for component in components:
        names.check_component(component)
    seen: dict[str, ArrayFacts | ValueFacts] = {}
    for leaf in leaves:
        if leaf.component not in components:
            raise CallError(f"{_show(leaf)} belongs to component {leaf.component!r}, which is not among {sorted(components)}")
        _check_name(leaf)
        other = seen.setdefault(leaf.name, leaf)
        if other is not leaf:
            raise UnsupportedLeaf(f"{_show(other)} and {_show(leaf)} would both be stored as {leaf.name!r}: rename one of them")


def _check_name(leaf: ArrayFacts | ValueFacts) -> None:
    wanted = {"key": (str, int), "index": (int,), "attr": (str,)}
    for kind, value in leaf.path:
        if type(value) not in wanted.get(kind, ()) or (isinstance(value, int) and abs(value) > MAX_INT):
            raise UnsupportedLeaf(f"{_show(leaf)}: {kind} {value!r} is neither text nor an integer of at most 53 bits")
    try:
        # The longest form: the one under which a rank's own leaf is stored.
        size = len(names.rank_array_name(names.MAX_RANK, leaf.name).encode())
    except UnicodeEncodeError as error:
        raise UnsupportedLeaf(f"{_show(leaf)!a}: its path is not valid Unicode") from error
    if size > names.MAX_NAME_BYTES:
        raise UnsupportedLeaf(
            f"{_show(leaf)}: its stored name takes {size} bytes, more than {names.MAX_NAME_BYTES}; shorten its path"
        )


def _check_aliases(arrays: Sequence[ArrayFacts]) -> None:
    stored = {array.name: array for array in arrays if array.alias is None}
    for array in arrays:
        if array.alias is None:
            continue
        target = stored.get(array.alias)
        if target is None or target.component != array.component:
            raise UnsupportedLeaf(f"{_show(array)}: alias {array.alias!r} is no stored array of component {array.component!r}")
        if (target.dtype, target.stored_dtype, target.shape) != (array.dtype, array.stored_dtype, array.shape):
            raise UnsupportedLeaf(f"{_show(array)}: differs in dtype or shape from {_show(target)}, which it is tied to")


def _layout(
    components: Mapping[str, ComponentFacts],
    arrays: Sequence[ArrayFacts],
    values: Sequence[ValueFacts],
    grids: Mapping[str, Grid],
) -> records.Layout:
    leaves: dict[str, list[records.ArrayLeaf | records.ValueLeaf]] = {component: [] for component in components}
    for array in arrays:
        leaves[array.component].append(_array_leaf(array, grids.get(array.name)))
    for value in values:
        leaves[value.component].append(records.ValueLeaf(path=value.path, name=value.name))
    return records.Layout(
        components={
            name: records.LayoutComponent(
                kind=facts.kind, scope=facts.scope, leaves=sorted(leaves[name], key=lambda leaf: leaf.name)
            )
            for name, facts in components.items()
        }
    )


def _array_leaf(array: ArrayFacts, grid: Grid | None) -> records.ArrayLeaf:
    return records.ArrayLeaf(
        path=array.path,
        name=array.name,
        dtype=array.dtype,
        stored_dtype=array.stored_dtype,
        shape=array.shape,
        chunk_shape=grid.chunk_shape if grid else None,
        cuts=grid.cuts if grid else None,
        alias=array.alias,
        weak_type=array.weak_type,
        prng_impl=array.prng_impl,
        memory_kind=array.memory_kind,
        sharding=array.sharding,
    )


def _show(leaf: ArrayFacts | ValueFacts) -> str:
    return names.show_path(leaf.component, leaf.path)
