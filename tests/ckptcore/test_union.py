"""What the ranks of a job hold between them: equal tables cost nothing, different ones are united."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ckptcore import records, union, wants
from ckptcore.backend import Flat, Target, Wanted
from ckptcore.channel import Channel
from ckptcore.digests import digest
from ckptcore.errors import UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.union import Exchange, Tables, describe, digest_of, unite
from tests.ckptcore.counting_channel import CountingChannel
from tests.ckptcore.support import run_ranks

SHAPE = (4, 2)
WHOLE = Box.whole(SHAPE)
TOP, BOTTOM = Box((0, 0), (2, 2)), Box((2, 0), (4, 2))


class Facts(Flat):
    def stage(self, own: Any, replicated: Any, limit: Any) -> Any:  # noqa: ARG002
        raise AssertionError


def mesh(axis: str) -> records.Mesh:
    return records.Mesh(axes=[axis], shape=[2], devices=digest(axis.encode()))


def flat(*arrays: ArrayFacts, values: tuple[str, ...] = (), scope: Any = "global", meshes: Sequence[str] = ()) -> Facts:
    held = [ValueFacts(component="params", path=(("key", name),), value=1) for name in values]
    components = {"params": ComponentFacts(kind="parameters", scope=scope)}
    return Facts(components=components, arrays=arrays, values=held, meshes=[mesh(name) for name in meshes])


def array(name: str = "w", **changes: Any) -> ArrayFacts:
    facts: dict[str, Any] = {"dtype": "float32", "stored_dtype": "float32", "shape": SHAPE, "itemsize": 4}
    return ArrayFacts(component="params", path=(("key", name),), **facts | changes)


def local(name: str = "w", ranks: int = 4, **changes: Any) -> ArrayFacts:
    return array(name, **{"shards": {WHOLE: tuple(range(ranks))}, "local": True, "host_replicated": True} | changes)


def shard(boxes: dict[Box, tuple[int, ...]], name: str = "w") -> ArrayFacts:
    return array(name, shards=boxes)


def united(flats: dict[int, Facts], rank: int) -> union.United:
    by_table: dict[bytes, list[int]] = {}
    for owner, held in flats.items():
        by_table.setdefault(describe(held), []).append(owner)
    return unite(flats[rank], Tables(tuple(by_table), tuple(map(tuple, by_table.values()))))


def test_a_leaf_that_only_some_ranks_have_is_held_by_these() -> None:
    stages = {0: flat(local("a"), local("shared")), 1: flat(local("b"), local("shared")), 2: flat(local("b"))}
    assert [facts.shards for facts in united(stages, 1).arrays] == [{WHOLE: (1, 2)}, {WHOLE: (0, 1)}]
    assert [facts.shards for facts in united(stages, 0).arrays] == [{WHOLE: (0,)}, {WHOLE: (0, 1)}]
    assert [(facts.name, facts.shards) for facts in united(stages, 0).elsewhere] == [("params.b", {WHOLE: (1, 2)})]


def test_shards_of_one_tensor_on_the_meshes_of_several_groups_are_united() -> None:
    groups = {rank: flat(shard({TOP: (0,), BOTTOM: (1,)} if rank < 2 else {TOP: (2,), BOTTOM: (3,)})) for rank in range(4)}
    for rank in range(4):
        assert united(groups, rank).arrays[0].shards == {TOP: (0, 2), BOTTOM: (1, 3)}


def test_where_one_copy_counts_it_is_that_of_the_lowest_rank_that_has_the_leaf() -> None:
    stages = {0: flat(local("a")), 1: flat(local("b", host_replicated=False)), 2: flat(local("b", host_replicated=False))}
    assert united(stages, 2).arrays[0].shards == {WHOLE: (1,)}


def test_a_value_is_kept_by_the_lowest_rank_that_has_it() -> None:
    stages = {0: flat(values=("x",)), 1: flat(values=("x", "y")), 2: flat(values=("y",))}
    assert [value.keeper for value in united(stages, 2).values] == [1]
    assert [value.keeper for value in united(stages, 1).values] == [0, 1]


def test_what_is_of_one_rank_alone_is_not_told() -> None:
    own = flat(array("key"), values=("x",), scope="rank")
    assert describe(own) == describe(flat(scope="rank"))
    found = unite(own, Tables((describe(own),), ((0, 1),)))
    assert (list(found.arrays), list(found.values), list(found.elsewhere)) == (list(own.arrays), list(own.values), [])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (local(dtype="float64", stored_dtype="float64"), r"rank 0 has it as float32\[4, 2\], rank 1 as float64\[4, 2\]"),
        (local(shape=(2, 2), shards={Box.whole((2, 2)): (0, 1)}), r"rank 1 as float32\[2, 2\]"),
        (local(alias="params.v"), "tied to params.v"),
        (shard({TOP: (0,), BOTTOM: (1,)}), "rank 0 holds it whole, other ranks as shards"),
    ],
)
def test_one_name_is_one_array(other: ArrayFacts, said: str) -> None:
    with pytest.raises(UnsupportedLeaf, match=said):
        united({0: flat(local()), 1: flat(other)}, 0)


def wants_leaf(name: str, kind: Any = "array") -> Wanted:
    return Wanted(component="params", path=(("key", name),), kind=kind)


def test_equal_ranks_send_no_table_and_different_ones_send_each_once() -> None:
    def work(channel: Channel) -> Any:
        rank = channel.rank
        counting = CountingChannel(channel)
        exchange = Exchange(counting)
        found = []
        same = flat(local("same"))
        stage = flat(local("a" if rank < 2 else "b"))
        for held in (same, stage, stage, same):
            told = channel.gather(digest_of(describe(held)), timeout=5, what="digests")
            found.append(exchange.complete(held, told).arrays[0].shards[WHOLE])
        return found, counting.sent

    results: Any = run_ranks(4, work)
    for rank, (found, sent) in enumerate(results):
        assert found == [(0, 1, 2, 3), (0, 1) if rank < 2 else (2, 3), (0, 1) if rank < 2 else (2, 3), (0, 1, 2, 3)]
        # One exchange, at the change; of the two tables, ranks 0 and 2 send one each.
        assert [size > 0 for size in sent] == [rank in (0, 2)]


class Wanting(Target):
    def place(self, found: Any) -> Any:  # noqa: ARG002
        raise AssertionError


def test_what_other_ranks_restore() -> None:
    def work(channel: Channel) -> Any:
        wanted = [wants_leaf("a" if channel.rank == 0 else "b"), wants_leaf("both"), wants_leaf("opt", kind="any")]
        target = Wanting(wanted=wanted, components={}, meshes=[mesh("dp")] if channel.rank == 0 else [mesh("tp")])
        told = channel.gather(wants.tell(target), timeout=5, what="names")
        return wants.gather(channel, target, told)

    one, other = run_ranks(2, work)
    assert (one.elsewhere, other.elsewhere) == ([("params.b", False)], [("params.a", False)])  # pyright: ignore[reportAttributeAccessIssue]
    assert one.meshes == other.meshes == [mesh("dp"), mesh("tp")]  # pyright: ignore[reportAttributeAccessIssue]


def test_the_meshes_of_all_ranks_are_united() -> None:
    stages = {0: flat(local("a"), meshes=["dp", "tp"]), 1: flat(local("b"), meshes=["tp"]), 2: flat(local("c"))}
    for rank in range(3):
        assert united(stages, rank).meshes == [mesh("dp"), mesh("tp")]


def test_tables_stay_small() -> None:
    """A thousand leaves of one sharding over 256 ranks: the sharding is told once."""
    boxes = {Box((rank, 0), (rank + 1, 2)): (rank,) for rank in range(256)}
    held = flat(*(shard(boxes, f"layer.{index}.w") for index in range(1000)))
    assert len(describe(held)) < 100_000
    assert [facts.shards for facts in unite(held, Tables((describe(held),), (tuple(range(256)),))).arrays] == [boxes] * 1000
