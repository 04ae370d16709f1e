from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import values
from ckptcore.errors import CallError
from ckptcore.sampler import Sampler, rows

SIZES = st.integers(1, 200)
SEEDS = st.integers(0, 2**53 - 1)

GOLDEN_10 = [5, 0, 1, 2, 8, 3, 7, 9, 6, 4, 7, 6, 5, 2, 0, 1, 4, 3, 8, 9]
GOLDEN_MILLION = [142107, 992682, 350914, 131584]
GOLDEN_LARGE = [975304291856, 174303977609]


def test_the_order_is_part_of_the_format() -> None:
    assert Sampler(10, 1, seed=0).ids(0, 20).tolist() == GOLDEN_10
    assert Sampler(1_000_000, 1, seed=7).ids(123_456_789, 4).tolist() == GOLDEN_MILLION
    assert Sampler(2**40, 1, seed=1).ids(0, 2).tolist() == GOLDEN_LARGE


def plain_id(size: int, seed: int, position: int) -> int:
    """The permutation once more, one number at a time and in Python's integers."""
    epoch, number = divmod(position, size)
    material = blake3(f"ckpt/sampler/1/{seed}/{epoch}".encode()).digest(length=64)
    keys = [int.from_bytes(material[at : at + 8], "little") for at in range(0, 64, 8)]
    bits = max((size - 1).bit_length(), 2)

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    while True:
        high, low = divmod(number, 2 ** (bits // 2))
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            high ^= mix(low ^ first) % 2 ** (bits - bits // 2)
            low ^= mix(high ^ second) % 2 ** (bits // 2)
        number = high * 2 ** (bits // 2) + low
        if number < size:
            return number


@given(st.integers(2, 2**50), SEEDS, st.integers(0, 2**52))
def test_the_permutation_is_the_one_that_plain_integers_give(size: int, seed: int, position: int) -> None:
    assert Sampler(size, 1, seed=seed).ids(position, 1).tolist() == [plain_id(size, seed, position)]


@given(SIZES, SEEDS, st.integers(0, 10**9))
def test_every_epoch_visits_every_sample_once(size: int, seed: int, epoch: int) -> None:
    ids = Sampler(size, 1, seed=seed).ids(epoch * size, size)
    assert ids.dtype == np.int64
    assert sorted(ids.tolist()) == list(range(size))


@given(SIZES, st.integers(1, 50), SEEDS, st.integers(1, 8), st.integers(1, 5))
def test_the_parts_of_any_number_of_ranks_are_the_same_list(size: int, batch: int, seed: int, ranks: int, steps: int) -> None:
    batch = min(batch, size)
    samplers = [Sampler(size, batch, seed=seed) for _ in range(ranks)]
    parts = [sampler.next(rank, ranks) for _ in range(steps) for rank, sampler in enumerate(samplers)]
    assert np.array_equal(np.concatenate(parts), samplers[0].ids(0, steps * batch))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1


@given(SIZES, SEEDS, st.integers(0, 2000), st.integers(0, 300), st.data())
def test_seeking_equals_stepping(size: int, seed: int, position: int, count: int, draw: st.DataObject) -> None:
    sampler = Sampler(size, 1, seed=seed)
    cut = draw.draw(st.integers(0, count))
    joined = np.concatenate([sampler.ids(position, cut), sampler.ids(position + cut, count - cut)])
    assert np.array_equal(joined, sampler.ids(position, count))
    assert sampler.position == 0


@given(SIZES, SEEDS, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), max_size=5))
def test_resuming_on_other_ranks_and_batches_repeats_and_skips_nothing(
    size: int, seed: int, lives: list[tuple[int, int]]
) -> None:
    state, seen = Sampler(size, 1, seed=seed).get_state(), []
    lives = [(min(batch, size), ranks) for batch, ranks in lives]
    for batch, ranks in lives:
        samplers = [Sampler(size, batch, seed=seed) for _ in range(ranks)]
        for rank, sampler in enumerate(samplers):
            sampler.set_state(values.decode(values.encode(state, where="data"), where="data"))
            seen.append(sampler.next(rank, ranks))
        assert all(sampler.get_state() == samplers[0].get_state() for sampler in samplers)
        state = samplers[0].get_state()
    total = sum(batch for batch, _ in lives)
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *seen]), Sampler(size, 1, seed=seed).ids(0, total))


def test_a_batch_runs_across_the_end_of_an_epoch() -> None:
    sampler = Sampler(5, 3, shuffle=False)
    assert [sampler.next().tolist() for _ in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    assert (sampler.position, sampler.epoch) == (12, 2)


def test_a_batch_larger_than_the_data_set_is_refused() -> None:
    with pytest.raises(CallError, match="batch 10 is larger than the data set of 5"):
        Sampler(size=5, batch=10)


def test_shard_goes_on_from_the_samplers_position() -> None:
    sampler = Sampler(10, 4, shuffle=False)
    sampler.next(1, 2)
    assert [part.tolist() for part in itertools.islice(sampler.shard(1, 2), 2)] == [[6, 7], [0, 1]]
    assert sampler.position == 12
    sampler.seek(2)
    assert sampler.next(0, 2).tolist() == [2, 3]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    sampler = Sampler(64, 64, seed=3)
    orders = [sampler.next() for _ in range(50)] + [Sampler(64, 64, seed=seed).next() for seed in range(50) if seed != 3]
    assert len({order.tobytes() for order in orders}) == len(orders)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 7, 12, 19])
def test_every_sample_comes_at_every_place_about_equally_often(size: int) -> None:
    epochs = 400 * size
    ids = Sampler(size, 1).ids(0, epochs * size).reshape(epochs, size)
    counts = np.stack([np.bincount(ids[:, place], minlength=size) for place in range(size)])
    # 400 expected, standard deviation about 20 for all sizes.
    assert np.abs(counts - 400).max() < 100


def test_neighbours_are_as_far_apart_as_in_random_orders() -> None:
    size = 10_000
    ids = Sampler(size, 1, seed=5).ids(0, size)
    # The mean distance of two random samples is a third of the size; its standard error here is 0.24 %.
    assert abs(np.abs(np.diff(ids)).mean() / size - 1 / 3) < 0.012
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.05
    # A random order has one fixed point on average.
    assert (ids == np.arange(size)).sum() < 10


def test_all_orders_of_four_samples_occur() -> None:
    ids = Sampler(4, 1).ids(0, 4 * 2400).reshape(-1, 4)
    counts = np.unique(ids, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert 40 < counts.min() <= counts.max() < 180


def test_the_state_is_plain_numbers() -> None:
    state = Sampler(10, 4, seed=2).get_state()
    assert state == {"algorithm": 1, "batch": 4, "position": 0, "seed": 2, "shuffle": True, "size": 10}
    assert all(type(value) in (int, bool) for value in state.values())


@pytest.mark.parametrize(("name", "value"), [("size", 11), ("seed", 3), ("shuffle", False), ("algorithm", 2)])
def test_a_state_of_another_order_is_refused_by_name(name: str, value: Any) -> None:
    sampler = Sampler(10, 4, seed=2)
    sampler.seek(8)
    with pytest.raises(CallError, match=f"{name} is .*saved was {value}"):
        sampler.set_state({**sampler.get_state(), name: value})
    assert sampler.position == 8


@pytest.mark.parametrize("state", [{}, {"position": 3}, {**Sampler(10, 4).get_state(), "more": 1}])
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="expected"):
        Sampler(10, 4).set_state(state)


@pytest.mark.parametrize("position", [-1, 1.5, "3", None, True, 2**60])
def test_a_position_that_is_none_is_refused(position: Any) -> None:
    sampler = Sampler(10, 4)
    with pytest.raises(CallError, match="position"):
        sampler.set_state({**sampler.get_state(), "position": position})


@pytest.mark.parametrize("arguments", [{"size": 0}, {"batch": 0}, {"seed": -1}, {"size": 2.5}, {"batch": True}, {"size": 2**53}])
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError, match=next(iter(arguments))):
        Sampler(**{"size": 10, "batch": 2, **arguments})


@pytest.mark.parametrize(("rank", "ranks"), [(-1, 2), (2, 2), (0, 0)])
def test_ranks_out_of_range_are_refused(rank: int, ranks: int) -> None:
    sampler = Sampler(10, 4)
    with pytest.raises(CallError, match="rank"):
        sampler.next(rank, ranks)
    assert sampler.position == 0


def test_rows_are_balanced_also_when_there_are_more_ranks_than_rows() -> None:
    assert [rows(10, rank, 4) for rank in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert [rows(1, rank, 3) for rank in range(3)] == [(0, 0), (0, 0), (0, 1)]
