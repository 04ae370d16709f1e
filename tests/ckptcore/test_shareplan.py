"""Who reads which chunk for the others: the same on all ranks, whole chunks only, evenly spread."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.array_spec import StoredArray
from ckptcore.geometry import Box, Grid
from ckptcore.shareplan import Plan, covered, encode, plan, whole_chunks

W = StoredArray("params.w", "float32", (8, 6), Grid.regular((8, 6), (2, 4)))  # 4 × 2 chunks, of 8 and 4 elements
WHOLE = Box.whole(W.shape)


def rows(first: int, last: int, array: StoredArray = W) -> Box:
    return Box((first, 0), (last, array.shape[1]))


# What is wanted whole


@pytest.mark.parametrize(
    ("boxes", "chunks"),
    [
        ([WHOLE], range(8)),
        ([], []),
        ([rows(0, 2)], [0, 1]),
        ([rows(1, 4)], [2, 3]),
        ([rows(1, 3), rows(3, 4), rows(0, 1)], [0, 1, 2, 3]),
        ([Box((0, 0), (8, 3)), Box((0, 3), (8, 6))], range(8)),
        ([Box((0, 0), (8, 3)), Box((0, 2), (8, 4))], [0, 2, 4, 6]),
        ([Box((0, 0), (8, 3)), Box((0, 1), (8, 3))], []),
        ([rows(0, 2)] * 3, [0, 1]),
    ],
)
def test_a_chunk_is_wanted_whole_if_the_boxes_cover_it_together(boxes: list[Box], chunks: list[int]) -> None:
    assert list(whole_chunks(W, boxes)) == list(chunks)


def test_a_scalar_is_one_chunk_and_an_empty_array_none() -> None:
    scalar = StoredArray("optimizer.count", "int32", (), Grid.regular((), ()))
    empty = StoredArray("params.e", "int32", (0, 3), Grid.regular((0, 3), (1, 1)))
    assert list(whole_chunks(scalar, [Box((), ())])) == [0]
    assert list(whole_chunks(empty, [Box.whole((0, 3))])) == []


@given(st.lists(st.tuples(*(st.integers(0, 4) for _ in range(4))), max_size=6))
def test_covered_is_what_counting_elements_says(corners: list[tuple[int, int, int, int]]) -> None:
    boxes = [Box((min(a, b), min(c, d)), (max(a, b), max(c, d))) for a, b, c, d in corners]
    cell = Box((1, 1), (3, 4))
    elements = itertools.product(range(1, 3), range(1, 4))
    expected = all(any(box.contains(Box((i, j), (i + 1, j + 1))) for box in boxes) for i, j in elements)
    assert covered(cell, boxes) is expected


# What is told


def test_equal_wants_are_told_alike_whatever_their_order() -> None:
    other = StoredArray("params.v", "int8", (4,), Grid.regular((4,), (4,)))
    one = encode([("state/", W, [rows(0, 4)]), ("state/", other, [Box.whole((4,))])])
    two = encode([("state/", other, [Box.whole((4,))]), ("state/", W, [rows(2, 4)]), ("state/", W, [rows(0, 2)])])
    assert one == two == b'[["state/","params.v",4,[0,1]],["state/","params.w",32,[0,4]]]'


def test_a_list_grows_with_the_arrays_not_with_the_chunks() -> None:
    large = StoredArray("params.w", "float32", (1 << 16, 8), Grid.regular((1 << 16, 8), (1, 8)))
    assert len(encode([("state/", large, [Box.whole(large.shape)])])) < 50
    arrays = [StoredArray(f"params.layers.{i}.w", "float32", large.shape, large.grid) for i in range(100)]
    told = encode([("state/", array, [rows(64, 128, array)]) for array in arrays])
    assert len(zlib.compress(told)) < 1000


# The plan


def wishes(*boxes: Box, prefix: str = "state/") -> bytes:
    return encode([(prefix, W, list(boxes))])


def test_ranks_that_want_the_same_share_it_out_evenly() -> None:
    made = plan({wishes(WHOLE): range(4)}, range(4))
    assert len(made.chunks) == 8
    assert [len(made.of(rank)) for rank in range(4)] == [2, 2, 2, 2]
    assert sorted(number for rank in range(4) for number in made.of(rank)) == list(range(8))


def test_what_one_rank_wants_is_not_in_the_plan() -> None:
    made = plan({wishes(rows(0, 4)): [0], wishes(rows(4, 8)): [1]}, range(2))
    assert made == Plan()


def test_owners_are_among_those_that_want_a_chunk() -> None:
    lists = {wishes(WHOLE): [0], wishes(rows(0, 4)): [1, 2], wishes(rows(4, 8)): [3]}
    made = plan(lists, range(4))
    assert made.chunks == tuple(("state/", "params.w", number) for number in range(8))
    assert set(made.owners[:4]) <= {0, 1, 2}
    assert set(made.owners[4:]) <= {0, 3}


def test_what_a_rank_reads_alone_counts_as_its_load() -> None:
    own = StoredArray("params.own", "float32", (8, 6), W.grid)
    busy = encode([("state/", W, [WHOLE]), ("state/", own, [WHOLE])])
    made = plan({busy: [0], wishes(WHOLE): [1]}, range(2))
    assert set(made.owners) == {1}


def test_databases_are_kept_apart() -> None:
    made = plan({wishes(WHOLE, prefix="one/"): [0], wishes(WHOLE, prefix="two/"): [1]}, range(2))
    assert made == Plan()


def test_ranks_without_a_server_own_nothing() -> None:
    assert set(plan({wishes(WHOLE): range(4)}, [2, 3]).owners) == {2, 3}
    assert set(plan({wishes(WHOLE): range(4)}, [2]).owners) == {2}
    assert plan({wishes(WHOLE): range(4)}, []) == Plan()


def test_every_rank_makes_the_same_plan() -> None:
    lists = {wishes(WHOLE): [0, 3], wishes(rows(0, 4)): [1, 2, 4], wishes(rows(2, 8)): [5]}
    shuffled = [*lists.items()]
    random.Random(1).shuffle(shuffled)
    assert plan(lists, range(6)) == plan(dict(shuffled), [5, 4, 3, 2, 1, 0])
