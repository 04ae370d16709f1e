"""Leaf tables and plans: what one rank writes, and that all ranks together write everything once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import names, records
from ckptcore.errors import CallError, CheckpointError, UnsupportedLeaf
from ckptcore.geometry import Box, Grid
from ckptcore.layout import ArrayFacts, ComponentFacts, Plan, ValueFacts, grid_of, make_plan
from ckptcore.names import Path, PathElement

PARAMS = ComponentFacts(kind="parameters", scope="global")
RNG = ComponentFacts(kind="rng", scope="rank")


def array(path: Path = (("key", "w"),), shape: tuple[int, ...] = (4,), **facts: Any) -> ArrayFacts:
    """An array of `params` that rank 0 holds whole, unless `facts` say otherwise."""
    wanted = {"component": "params", "dtype": "float32", "itemsize": 4, "shards": {Box.whole(shape): (0,)}} | facts
    return ArrayFacts(path=path, shape=shape, **{"stored_dtype": wanted["dtype"]} | wanted)


def value(*path: PathElement, content: Any = 1, component: str = "params") -> ValueFacts:
    return ValueFacts(component=component, path=path, value=content)


def plan(*leaves: ArrayFacts | ValueFacts, components: Mapping[str, ComponentFacts] | None = None, rank: int = 0) -> Plan:
    arrays = [leaf for leaf in leaves if isinstance(leaf, ArrayFacts)]
    values = [leaf for leaf in leaves if isinstance(leaf, ValueFacts)]
    return make_plan({"params": PARAMS} if components is None else components, arrays, values, rank=rank)


@st.composite
def sharded_arrays(draw: st.DrawFn, ranks: int, index: int) -> ArrayFacts:
    """An array cut anywhere, each shard held by any set of ranks: as uneven as torch can make it."""
    shape = tuple(draw(st.lists(st.integers(0, 12), max_size=2)))
    cuts = [sorted({0, extent} | draw(st.sets(st.integers(0, extent), max_size=3))) for extent in shape]
    holders = st.sets(st.integers(0, ranks - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    shards: dict[Box, tuple[int, ...]] = {}
    for bounds in itertools.product(*map(itertools.pairwise, cuts)):
        shards[Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))] = draw(holders)
    if draw(st.booleans()) or not shards:  # a replica beside the shards, as of data-parallel groups with other meshes
        shards[Box.whole(shape)] = draw(holders)
    dtype, itemsize = draw(st.sampled_from([("int8", 1), ("float16", 2), ("float32", 4)]))
    return array((("key", f"a{index}"),), shape, shards=shards, dtype=dtype, itemsize=itemsize)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[ArrayFacts]]:
    ranks = draw(st.integers(1, 5))
    return ranks, [draw(sharded_arrays(ranks, index)) for index in range(draw(st.integers(0, 5)))]


class TestOwners:
    @given(jobs(), st.integers(1, 64))
    def test_all_ranks_together_write_everything_once(self, job: tuple[int, list[ArrayFacts]], chunk_bytes: int) -> None:
        ranks, arrays = job
        plans = [make_plan({"params": PARAMS}, arrays, [], rank=rank, chunk_bytes=chunk_bytes) for rank in range(ranks)]
        assert all(other.layout == plans[0].layout and other.grids == plans[0].grids for other in plans)
        for facts in arrays:
            written = np.zeros(facts.shape, int)
            writers = 0
            for rank, mine in enumerate(plans):
                writers += facts.name in mine.own
                for cell in mine.own.get(facts.name, ()):
                    box = mine.grids[facts.name].cell(cell)
                    written[box.slices()] += 1
                    assert any(rank in held and shard.contains(box) for shard, held in facts.shards.items())
            assert (written == 1).all()
            assert writers >= 1, "somebody writes the metadata, of an empty array too"
            assert 0 not in facts.shape or writers == 1
        assert sum(mine.own_bytes for mine in plans) == sum(math.prod(facts.shape) * facts.itemsize for facts in arrays)

    @given(st.data(), jobs())
    def test_the_order_of_leaves_does_not_matter(self, data: st.DataObject, job: tuple[int, list[ArrayFacts]]) -> None:
        _, arrays = job
        shuffled = make_plan({"params": PARAMS}, data.draw(st.permutations(arrays)), [], rank=0)
        assert shuffled == make_plan({"params": PARAMS}, arrays, [], rank=0)

    def test_replicas_share_the_work(self) -> None:
        everywhere = {Box.whole((256,)): (0, 1, 2, 3)}
        arrays = [array((("key", f"layer{index}"),), (256,), shards=everywhere) for index in range(8)]
        plans = [plan(*arrays, rank=rank) for rank in range(4)]
        assert [mine.own_bytes for mine in plans] == [2 * 256 * 4] * 4

    def test_an_empty_array_is_written_by_its_lowest_holder(self) -> None:
        empty = array(shape=(0, 3), shards={Box.whole((0, 3)): (1, 2)})
        assert [plan(empty, rank=rank).own for rank in range(3)] == [{}, {"params.w": ()}, {}]

    def test_a_per_rank_array_is_written_whole_by_each_rank(self) -> None:
        key = array((("key", "key"),), (3, 2), component="rng", shards={}, itemsize=4)
        none = array((("key", "none"),), (0,), component="rng", shards={})
        for rank in (0, 7):
            mine = plan(key, none, components={"rng": RNG}, rank=rank)
            assert mine.own == {"rng.key": (0,), "rng.none": ()}
            assert mine.own_bytes == 24

    def test_a_per_rank_array_is_no_load_for_others(self) -> None:
        """Other ranks do not know it, so it must not change who writes the shared arrays."""
        shared = [array((("key", f"a{index}"),), shards={Box.whole((4,)): (0, 1)}) for index in range(3)]
        key = array((), (1000,), component="rng", shards={})
        components = {"params": PARAMS, "rng": RNG}
        with_key = plan(*shared, key, components=components).own
        assert {name: cells for name, cells in with_key.items() if name != "rng"} == plan(*shared, components=components).own

    def test_an_alias_is_written_by_nobody(self) -> None:
        tied = plan(array((("key", "embed"),)), array((("key", "head"),), alias="params.embed", shards={}))
        assert tied.own == {"params.embed": (0,)}
        assert set(tied.grids) == {"params.embed"}

    def test_large_jobs_are_planned_through_few_cuts(self) -> None:
        shards = {Box((row * 16, 0), (row * 16 + 16, 8)): (2 * row, 2 * row + 1) for row in range(4)}
        arrays = [array((("key", f"a{index}"),), (64, 8), shards=dict(shards)) for index in range(2_000)]
        mine = plan(*arrays, rank=5)
        assert len({id(grid) for grid in mine.grids.values()}) == 1
        assert mine.own_bytes == 1_000 * 16 * 8 * 4
        assert all(cells == (2,) for cells in mine.own.values())


class TestLayout:
    def leaves(self) -> list[ArrayFacts | ValueFacts]:
        bounds = (0, 12565, 25129, 37693, 50257)
        rows = {Box((a, 0), (b, 8)): (rank,) for rank, (a, b) in enumerate(itertools.pairwise(bounds))}
        return [
            array((("key", "b"), ("index", 2)), (6, 4), memory_kind="pinned_host", sharding="P('x')", weak_type=True),
            array((("key", "b"), ("index", 10)), (), dtype="key<fry>", stored_dtype="uint32", prng_impl="threefry2x32"),
            array((("key", 7),), (0, 3)),
            array((("attr", "embed"),), (50257, 8), shards=rows),
            array((("attr", "head"),), (50257, 8), shards={}, alias="params.embed"),
            value(("key", "a/b"), content=0.5),
            value(("key", "empty"), content={}),
            array((), (2,), component="rng", shards={}),
        ]

    def test_it_survives_the_record(self) -> None:
        layout = plan(*self.leaves(), components={"params": PARAMS, "rng": RNG, "none": PARAMS}).layout
        assert records.decode(records.encode(layout), records.Layout, key="layout") == layout

    def test_leaves_are_sorted_by_name(self) -> None:
        layout = plan(*self.leaves(), components={"params": PARAMS, "rng": RNG}).layout
        assert [leaf.name for leaf in layout.components["params"].leaves] == [
            "params.7",
            "params.a%2Fb",
            "params.b.10",
            "params.b.2",
            "params.embed",
            "params.empty",
            "params.head",
        ]
        assert layout.components["rng"].scope == "rank"

    def test_every_fact_is_kept(self) -> None:
        layout = plan(self.leaves()[0]).layout
        assert layout.components["params"].leaves == [
            records.ArrayLeaf(
                path=(("key", "b"), ("index", 2)),
                name="params.b.2",
                dtype="float32",
                stored_dtype="float32",
                shape=(6, 4),
                chunk_shape=(6, 4),
                weak_type=True,
                memory_kind="pinned_host",
                sharding="P('x')",
            )
        ]

    @given(jobs(), st.integers(1, 64))
    def test_grids_come_back_from_the_record(self, job: tuple[int, list[ArrayFacts]], chunk_bytes: int) -> None:
        made = make_plan({"params": PARAMS}, job[1], [value(("key", "v"))], rank=0, chunk_bytes=chunk_bytes)
        read = records.decode(records.encode(made.layout), records.Layout, key="layout")
        assert read == made.layout
        leaves = [leaf for leaf in read.components["params"].leaves if isinstance(leaf, records.ArrayLeaf)]
        assert {leaf.name: grid_of(leaf) for leaf in leaves} == made.grids

    def test_uneven_boundaries_become_cuts(self) -> None:
        leaf = next(leaf for leaf in plan(*self.leaves()[3:5]).layout.components["params"].leaves if leaf.name == "params.embed")
        assert isinstance(leaf, records.ArrayLeaf)
        assert grid_of(leaf) == Grid.irregular((50257, 8), ((0, 12565, 25129, 37693, 50257), (0, 8)))

    def test_an_alias_has_no_grid(self) -> None:
        leaf = records.ArrayLeaf(path=(), name="params", dtype="int8", stored_dtype="int8", shape=(2,), alias="params.w")
        with pytest.raises(CallError, match=r"'params' is an alias: its chunks are those of 'params\.w'"):
            grid_of(leaf)


EMBED = array((("key", "embed"),))

REFUSED: dict[str, tuple[list[ArrayFacts | ValueFacts], type[CheckpointError], str]] = {
    "two arrays of one name": (
        [array((("key", "a.b"),)), array((("key", "a"), ("attr", "b")))],
        UnsupportedLeaf,
        r"params\['a\.b'\] and params\['a'\]\.b would both be stored as 'params\.a\.b'",
    ),
    "an array and a value of one name": (
        [array((("index", 0),)), value(("key", "0"))],
        UnsupportedLeaf,
        r"params\[0\] and params\['0'\]",
    ),
    "a leaf twice": ([EMBED, EMBED, array((("key", "embed"),))], UnsupportedLeaf, "would both be stored"),
    "a name too long": ([array((("key", "x" * 1024),))], UnsupportedLeaf, "bytes, more than 1024; shorten"),
    "text that is not Unicode": ([value(("key", "\ud800"))], UnsupportedLeaf, "not valid Unicode"),
    "an integer key beyond 53 bits": ([value(("key", 2**53))], UnsupportedLeaf, "53 bits"),
    "a key that is a bool": ([value(("key", True))], UnsupportedLeaf, "key True is neither text nor an integer"),
    "an attribute that is a number": ([value(("attr", 3))], UnsupportedLeaf, "attr 3 is neither"),
    "a component that nobody declared": ([value(component="ema")], CallError, "'ema', which is not among"),
    "an alias of nothing": (
        [array(alias="params.embed", shards={})],
        UnsupportedLeaf,
        "is no stored array of component 'params'",
    ),
    "an alias of itself": ([array(alias="params.w", shards={})], UnsupportedLeaf, "is no stored array"),
    "an alias of an alias": (
        [EMBED, array(alias="params.embed", shards={}), array((("key", "v"),), alias="params.w", shards={})],
        UnsupportedLeaf,
        r"params\['v'\]: alias 'params.w' is no stored array",
    ),
    "an alias of a value": ([value(("key", "v")), array(alias="params.v", shards={})], UnsupportedLeaf, "is no stored array"),
    "an alias of another shape": ([EMBED, array(shape=(5,), alias="params.embed", shards={})], UnsupportedLeaf, "dtype or shape"),
    "an alias of another dtype": (
        [EMBED, array(dtype="int32", alias="params.embed", shards={})],
        UnsupportedLeaf,
        r"differs in dtype or shape from params\['embed'\]",
    ),
    "shards with a gap": (
        [array(shards={Box((0,), (1,)): (0,), Box((2,), (4,)): (1,)})],
        UnsupportedLeaf,
        r"params\['w'\]: its shards do not cover its shape \(4,\)",
    ),
    "a shard that nobody holds": ([array(shards={Box((0,), (4,)): ()})], UnsupportedLeaf, "do not cover"),
    "no shards": ([array(shards={})], UnsupportedLeaf, "no rank is known to hold"),
    "a shard outside": ([array(shards={Box((0,), (5,)): (0,)})], UnsupportedLeaf, r"params\['w'\]: shard .* does not lie"),
    "too many dimensions": ([array(shape=(1,) * 33)], UnsupportedLeaf, "beyond 32 dimensions"),
    "too large an extent": ([array(shape=(2**53, 0))], UnsupportedLeaf, "beyond 32 dimensions"),
    "a sharded array stored per rank": (
        [array(component="rng")],
        UnsupportedLeaf,
        "over several ranks cannot be stored per rank",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("case", REFUSED)
    def test_what_has_no_place_is_refused_by_name(self, case: str) -> None:
        leaves, error, message = REFUSED[case]
        with pytest.raises(error, match=message):
            plan(*leaves, components={"params": PARAMS, "rng": RNG})

    @pytest.mark.parametrize("name", ["", "a.b", "rank_state", "../up", "a/b"])
    def test_bad_component_names_are_refused(self, name: str) -> None:
        with pytest.raises(CallError, match="component name"):
            plan(components={name: PARAMS})

    def test_an_array_in_too_many_shards_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "MAX_CHUNKS", 3)
        shards = {Box((row,), (row + 1,)): (row,) for row in range(4)}
        with pytest.raises(UnsupportedLeaf, match="need 4 chunks, more than an array may have"):
            plan(array(shards=shards))

    def test_the_longest_name_that_fits_is_taken(self) -> None:
        room = names.MAX_NAME_BYTES - len(names.rank_array_name(names.MAX_RANK, "params."))
        layout = plan(array((("key", "x" * room),))).layout
        assert records.decode(records.encode(layout), records.Layout, key="layout") == layout
        with pytest.raises(UnsupportedLeaf, match="takes 1025 bytes"):
            plan(array((("key", "x" * (room + 1)),)))
