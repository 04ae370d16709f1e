"""Boxes, grids, tiling and owners, against brute force and numpy."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError
from ckptcore.geometry import CHUNK_BYTES, Box, Claimable, Grid, assign, choose_grid, in_grid_order, tiling_problems

Cuts = tuple[tuple[int, ...], ...]


@st.composite
def splits(draw: st.DrawFn, shape: tuple[int, ...]) -> Cuts:
    """Shard boundaries per dimension: even as JAX cuts, ceil-sized as FSDP2 does, or anywhere."""
    cuts = []
    for extent in shape:
        kind = draw(st.sampled_from(["even", "ceil", "anywhere"]))
        parts = draw(st.integers(1, 5))
        if kind == "even" and extent % parts == 0:
            inner = {extent // parts * k for k in range(1, parts)}
        elif kind == "ceil":
            inner = {min(extent, -(-extent // parts) * k) for k in range(1, parts)}
        else:
            inner = draw(st.sets(st.integers(0, extent), max_size=4))
        cuts.append(tuple(sorted(inner | {0, extent})))
    return tuple(cuts)


shapes = st.lists(st.integers(0, 24), max_size=3).map(tuple)
sharded = shapes.flatmap(lambda shape: st.tuples(st.just(shape), splits(shape)))


def boxes_of(cuts: Cuts) -> list[Box]:
    """The shard boxes between the boundaries."""
    sides = [list(itertools.pairwise(places)) for places in cuts]
    return [Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)) for pairs in itertools.product(*sides)]


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    bounds = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


def even_shards(shape: Sequence[int], parts: Sequence[int]) -> list[Box]:
    """Shards as JAX makes them: `parts` equal ones along each dimension."""
    return boxes_of(tuple(tuple(e // n * k for k in range(n + 1)) for e, n in zip(shape, parts, strict=True)))


def row_shards(bounds: Sequence[int], width: int) -> list[Box]:
    return boxes_of((tuple(bounds), (0, width)))


class TestBox:
    def test_facts_of_a_box(self) -> None:
        box = Box((2, 0), (5, 4))
        assert (box.shape, box.size, box.is_empty) == ((3, 4), 12, False)
        assert box.slices() == (slice(2, 5), slice(0, 4))
        assert box.slices((2, 0)) == (slice(0, 3), slice(0, 4))

    def test_a_scalar_is_one_element(self) -> None:
        box = Box.whole(())
        assert (box.shape, box.size, box.is_empty, box.slices()) == ((), 1, False, ())
        assert box.intersect(box) == box

    def test_an_inverted_box_is_empty(self) -> None:
        assert Box((5, 5), (2, 2)).is_empty
        assert Box((5, 5), (2, 2)).size == 0

    @given(st.data(), shapes)
    def test_intersect_and_contains_equal_numpy(self, data: st.DataObject, shape: tuple[int, ...]) -> None:
        one, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
        in_one, in_other = np.zeros(shape, bool), np.zeros(shape, bool)
        in_one[one.slices()] = True
        in_other[other.slices()] = True
        common = one.intersect(other)
        in_common = np.zeros(shape, bool)
        if common is not None:
            in_common[common.slices()] = True
            assert one.contains(common)
            assert other.contains(common)
        np.testing.assert_array_equal(in_common, in_one & in_other)
        assert (common is None) == (not (in_one & in_other).any())


class TestGrid:
    @given(st.data(), sharded)
    def test_cells_tile_and_overlapping_equals_brute_force(self, data: st.DataObject, case: tuple[tuple[int, ...], Cuts]) -> None:
        shape, cuts = case
        chunk = tuple(data.draw(st.integers(1, 30)) for _ in shape)
        box = data.draw(boxes_in(shape))
        grids = [Grid.regular(shape, chunk)] + ([Grid.irregular(shape, cuts)] if 0 not in shape else [])
        for grid in grids:
            cells = [grid.cell(index) for index in range(grid.size)]
            hits = np.zeros(shape, int)
            for cell in cells:
                hits[cell.slices()] += 1
            assert (hits == 1).all()
            assert max((cell.size for cell in cells), default=0) == grid.largest
            meets = [index for index, cell in enumerate(cells) if cell.intersect(box)]
            assert list(grid.overlapping(box)) == meets
            positions = list(itertools.product(*map(range, grid.counts)))
            assert [grid.position(index) for index in range(grid.size)] == positions

    def test_a_scalar_has_one_cell(self) -> None:
        grid = Grid.regular((), ())
        assert (grid.size, grid.counts, grid.cell(0)) == (1, (), Box((), ()))
        assert list(grid.overlapping(Box((), ()))) == [0]

    def test_an_empty_array_has_no_cells(self) -> None:
        grid = Grid.regular((3, 0), (1, 1))
        assert grid.size == 0
        assert list(grid.overlapping(Box.whole((3, 0)))) == []
        with pytest.raises(CallError, match="not one of the 0 chunks"):
            grid.cell(0)

    def test_a_box_beyond_the_array_is_clipped(self) -> None:
        grid = Grid.regular((10,), (4,))
        assert list(grid.overlapping(Box((-5,), (99,)))) == [0, 1, 2]
        assert list(grid.overlapping(Box((10,), (99,)))) == []

    @pytest.mark.parametrize("index", [-1, 3])
    def test_no_such_cell(self, index: int) -> None:
        with pytest.raises(CallError, match=f"chunk {index} is not one of the 3 chunks"):
            Grid.regular((10,), (4,)).cell(index)

    def test_a_huge_shape_costs_nothing(self) -> None:
        extent = 2**53 - 1
        tracemalloc.start()
        try:
            grid = Grid.regular((extent, extent), (1, 2**40))
            columns = -(-extent // 2**40)
            assert grid.size == extent * columns
            assert grid.cell(grid.size - 1).stop == (extent, extent)
            box = Box((7, 0), (9, 2**41))
            assert list(grid.overlapping(box)) == [7 * columns, 7 * columns + 1, 8 * columns, 8 * columns + 1]
            first = list(itertools.islice(grid.overlapping(Box.whole(grid.shape)), 3))
            assert first == [0, 1, 2]
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("chunk", [(0, 1), (1,), (1, -2)])
    def test_bad_chunk_shapes_are_refused(self, chunk: tuple[int, ...]) -> None:
        with pytest.raises(CallError, match="does not fit"):
            Grid.regular((4, 4), chunk)

    @pytest.mark.parametrize("cuts", [[(0, 2)], [(1, 4)], [(0, 2, 2, 4)], [(0, 3, 2, 4)], [()], [(0,)], [], [(0, 4), (0, 4)]])
    def test_bad_cuts_are_refused(self, cuts: list[tuple[int, ...]]) -> None:
        with pytest.raises(CallError, match="cuts"):
            Grid.irregular((4,), cuts)


class TestChooseGrid:
    @given(st.data(), sharded)
    def test_every_shard_is_a_union_of_cells(self, data: st.DataObject, case: tuple[tuple[int, ...], Cuts]) -> None:
        shape, cuts = case
        itemsize = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
        chunk_bytes = data.draw(st.integers(1, 4096))
        grid = choose_grid(shape, boxes_of(cuts), itemsize, chunk_bytes)
        if 0 in shape:
            assert grid.size == 0
            assert min(grid.chunk_shape or (0,)) >= 1
            return
        for shard in boxes_of(cuts):
            cells = [grid.cell(index) for index in grid.overlapping(shard)]
            assert all(shard.contains(cell) for cell in cells)
            assert sum(cell.size for cell in cells) == shard.size
        assert grid.largest * itemsize <= max(chunk_bytes, itemsize)

    @given(st.data(), sharded)
    def test_the_cap_on_chunks_holds_beyond_what_shards_need(
        self, data: st.DataObject, case: tuple[tuple[int, ...], Cuts]
    ) -> None:
        shape, cuts = case
        cap = data.draw(st.integers(1, 50))
        grid = choose_grid(shape, boxes_of(cuts), 1, 1, max_chunks=cap)
        assert grid.size <= max(cap, math.prod(len(places) - 1 for places in cuts))

    @given(st.data(), shapes)
    def test_from_one_sharding_to_another_equals_numpy(self, data: st.DataObject, shape: tuple[int, ...]) -> None:
        """Scatter from one layout into cells, gather from the cells into another layout."""
        before, after = boxes_of(data.draw(splits(shape))), boxes_of(data.draw(splits(shape)))
        values = np.arange(math.prod(shape)).reshape(shape)
        grid = choose_grid(shape, before, 8, data.draw(st.integers(8, 2048)))
        stored: dict[int, np.ndarray] = {}
        for shard in before:
            held = values[shard.slices()]
            for index in grid.overlapping(shard):
                stored[index] = held[grid.cell(index).slices(shard.start)]
        assert sorted(stored) == list(range(grid.size))
        for shard in after:
            read = np.full(shard.shape, -1)
            for index in grid.overlapping(shard):
                cell = grid.cell(index)
                common = cell.intersect(shard)
                assert common is not None
                read[common.slices(shard.start)] = stored[index][common.slices(cell.start)]
            np.testing.assert_array_equal(read, values[shard.slices()])

    def test_small_shards_are_one_chunk_each(self) -> None:
        assert choose_grid((100, 8), even_shards((100, 8), (4, 2)), 4).chunk_shape == (25, 4)

    def test_uneven_last_shard_stays_regular(self) -> None:
        assert choose_grid((10,), boxes_of(((0, 3, 6, 9, 10),)), 4).chunk_shape == (3,)

    def test_large_arrays_are_cut_towards_squares_without_waste(self) -> None:
        grid = choose_grid((50257, 768), [Box.whole((50257, 768))], 4)
        assert grid.chunk_shape == (3142, 768)
        grid = choose_grid((20000, 30000), [Box.whole((20000, 30000))], 4)
        assert grid.chunk_shape is not None
        assert max(grid.chunk_shape) <= 2 * min(grid.chunk_shape)
        assert 4 << 20 <= grid.largest * 4 <= CHUNK_BYTES
        assert math.prod(count * side for count, side in zip(grid.counts, grid.chunk_shape, strict=True)) < 1.01 * 20000 * 30000

    def test_cuts_of_a_shard_divide_it(self) -> None:
        shape = (4 * 3 * 2048, 8192)
        grid = choose_grid(shape, even_shards(shape, (4, 1)), 4)
        assert grid.chunk_shape is not None
        assert (3 * 2048) % grid.chunk_shape[0] == 0
        assert grid.largest * 4 <= CHUNK_BYTES

    def test_a_prime_shard_is_cut_along_other_dimensions(self) -> None:
        prime = 12569
        grid = choose_grid((4 * prime, 7680), even_shards((4 * prime, 7680), (4, 1)), 4)
        assert grid.chunk_shape == (prime, 240)

    def test_a_prime_shard_without_other_dimensions_is_cut_irregularly(self) -> None:
        prime = 100_000_007
        grid = choose_grid((4 * prime,), even_shards((4 * prime,), (4,)), 4)
        assert grid.cuts is not None
        assert grid.largest * 4 <= CHUNK_BYTES
        assert set(grid.cuts[0]) >= {prime * k for k in range(5)}
        assert grid.size <= 4 * 32

    def test_boundaries_off_any_grid_fall_back_to_cuts(self) -> None:
        bounds = (0, 12565, 25129, 37693, 50257)
        small = choose_grid((50257, 8), row_shards(bounds, 8), 4)
        assert small.cuts == (bounds, (0, 8))
        large = choose_grid((50257, 768), row_shards(bounds, 768), 4)
        assert large.cuts is not None
        assert set(bounds) < set(large.cuts[0])
        assert large.largest * 4 <= CHUNK_BYTES

    def test_a_few_odd_boundaries_stay_regular(self) -> None:
        """A small array may have a few more chunks than shards: a regular grid serves more readers."""
        assert choose_grid((10, 4), row_shards((0, 3, 5, 10), 4), 4).chunk_shape == (1, 4)

    def test_more_shards_than_the_cap_are_kept(self) -> None:
        assert choose_grid((200,), even_shards((200,), (100,)), 4, max_chunks=10).chunk_shape == (2,)

    def test_empty_shards_are_no_boundary(self) -> None:
        shards = [Box((0,), (3,)), Box((3,), (5,)), Box((5,), (5,)), Box((4,), (4,))]
        assert choose_grid((5,), shards, 4).chunk_shape == (3,)

    def test_one_element_may_exceed_the_chunk_size(self) -> None:
        assert choose_grid((3,), [], 16, chunk_bytes=4).chunk_shape == (1,)

    @pytest.mark.parametrize("shard", [Box((0,), (11,)), Box((-1,), (3,)), Box((0, 0), (1, 1)), Box((), ()), Box((0,), ())])
    def test_a_shard_outside_the_array_is_refused(self, shard: Box) -> None:
        with pytest.raises(CallError, match="does not lie in an array of shape"):
            choose_grid((10,), [shard], 4)


class TestTilingProblems:
    def test_a_tiling_has_none(self) -> None:
        assert tiling_problems(3, {0: [0], 1: [5], 2: (0,)}) == []
        assert tiling_problems(0, {}) == []

    def test_gaps_overlaps_and_strays_are_all_told(self) -> None:
        problems = tiling_problems(5, {0: [1], 1: [], 2: [0, 3], 7: [2], -1: [4]})
        assert problems == [
            "3 of 5 chunks were written by no rank: 1, 3, 4",
            "1 of 5 chunks were written more than once: 2 (ranks 0, 3)",
            "2 chunks lie outside the 5 of the array: -1, 7",
        ]

    def test_twice_by_one_rank_is_an_overlap(self) -> None:
        assert tiling_problems(1, {0: [4, 4]}) == ["1 of 1 chunks were written more than once: 0 (ranks 4, 4)"]

    def test_the_text_is_bounded(self) -> None:
        many = range(100_000)
        gaps = tiling_problems(1 << 20, {index: list(range(5000)) for index in range(50)})
        strays = tiling_problems(0, {index: [0] for index in many})
        assert all(len(problem) < 2000 for problem in gaps + strays)
        assert "99992 more" in strays[0]

    @given(st.integers(0, 12), st.dictionaries(st.integers(-3, 15), st.lists(st.integers(0, 3), max_size=3)))
    def test_no_problem_means_exactly_once(self, cells: int, owners: dict[int, list[int]]) -> None:
        written = sorted(index for index, ranks in owners.items() for _ in ranks)
        assert (not tiling_problems(cells, owners)) == (written == list(range(cells)))


class TestInGridOrder:
    @given(st.data(), st.integers(0, 8))
    def test_what_ranks_wrote_comes_in_the_order_of_the_grid(self, data: st.DataObject, cells: int) -> None:
        order = data.draw(st.permutations(range(cells)))
        cut = data.draw(st.integers(0, cells))
        assert in_grid_order(cells, [[(cell, str(cell)) for cell in part] for part in (order[:cut], order[cut:])]) == [
            str(cell) for cell in range(cells)
        ]

    @given(st.integers(0, 6), st.lists(st.lists(st.integers(-2, 8), max_size=4), max_size=4))
    def test_it_gives_none_exactly_when_there_are_problems(self, cells: int, parts: list[list[int]]) -> None:
        owners: dict[int, list[int]] = {}
        for rank, part in enumerate(parts):
            for cell in part:
                owners.setdefault(cell, []).append(rank)
        found = in_grid_order(cells, [[(cell, "digest") for cell in part] for part in parts])
        assert (found is None) == bool(tiling_problems(cells, owners))


@st.composite
def claims(draw: st.DrawFn) -> list[Claimable]:
    pools = draw(st.lists(st.sets(st.integers(0, 9), min_size=1).map(lambda ranks: tuple(sorted(ranks))), min_size=1, max_size=4))
    keys = draw(st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, 5))))
    return [Claimable(name, cell, draw(st.integers(0, 100)), draw(st.sampled_from(pools))) for name, cell in sorted(keys)]


class TestAssign:
    @given(st.data(), claims())
    def test_each_goes_to_one_of_its_holders_whatever_the_order(self, data: st.DataObject, cells: list[Claimable]) -> None:
        owners = assign(cells)
        assert set(owners) == {(claim.name, claim.cell) for claim in cells}
        assert all(owners[claim.name, claim.cell] in claim.holders for claim in cells)
        assert assign(data.draw(st.permutations(cells))) == owners

    @given(st.lists(st.integers(0, 1000)), st.integers(1, 9))
    def test_replicas_differ_by_at_most_the_largest_chunk(self, sizes: list[int], replicas: int) -> None:
        cells = [Claimable("w", index, size, tuple(range(replicas))) for index, size in enumerate(sizes)]
        loads = dict.fromkeys(range(replicas), 0)
        for (_, cell), rank in assign(cells).items():
            loads[rank] += sizes[cell]
        assert max(loads.values()) - min(loads.values()) <= max(sizes, default=0)

    @given(claims())
    def test_it_is_the_greedy_choice(self, cells: list[Claimable]) -> None:
        """The heaps give what a plain search for the least loaded holder gives."""
        loads = dict.fromkeys(range(10), 0)
        expected = {}
        order = sorted(cells, key=lambda claim: (len(claim.holders) > 1, -claim.nbytes, claim.name, claim.cell))
        for claim in order:
            rank = min(claim.holders, key=lambda rank: (loads[rank], rank))
            loads[rank] += claim.nbytes
            expected[claim.name, claim.cell] = rank
        assert assign(cells) == expected

    def test_what_only_one_rank_holds_counts_first(self) -> None:
        cells = [Claimable("mine", 0, 10, (0,)), Claimable("ours", 0, 10, (0, 1)), Claimable("big", 0, 99, (0, 1))]
        assert assign(cells) == {("mine", 0): 0, ("big", 0): 1, ("ours", 0): 0}

    @given(claims())
    def test_chunks_with_one_holder_may_be_given_as_loads(self, cells: list[Claimable]) -> None:
        single = [claim for claim in cells if len(claim.holders) == 1]
        loads: dict[int, int] = {}
        for claim in single:
            loads[claim.holders[0]] = loads.get(claim.holders[0], 0) + claim.nbytes
        shared = [claim for claim in cells if len(claim.holders) > 1]
        alone = {(claim.name, claim.cell): claim.holders[0] for claim in single}
        assert assign(shared, loads) | alone == assign(cells)

    def test_a_chunk_without_holder_is_refused(self) -> None:
        with pytest.raises(CallError, match="chunk 3 of 'w' is held by no rank"):
            assign([Claimable("w", 3, 1, ())])

    @pytest.mark.parametrize(("arrays", "ranks"), [(1_000, 1_024), (10_000, 8)])
    def test_large_jobs_are_balanced(self, arrays: int, ranks: int) -> None:
        cells = [Claimable(f"layer{index}", 0, 1 + index * 7919 % 4096, tuple(range(ranks))) for index in range(arrays)]
        loads = dict.fromkeys(range(ranks), 0)
        owners = assign(cells)
        for claim in cells:
            loads[owners[claim.name, 0]] += claim.nbytes
        assert max(loads.values()) - min(loads.values()) <= 4096
