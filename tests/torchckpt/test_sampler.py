"""Every id once an epoch, whatever workers fetch ahead; the position is that of what was trained on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ckptcore import sampler as core
from ckptcore.errors import CallError
from tests.torchckpt.procs import forking, run_job
from torchckpt.sampler import Sampler

SIZE, BATCH = 30, 8


class Numbers(Dataset[torch.Tensor]):
    """Sample i is the number i."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def loader(sampler: Sampler, workers: int = 0, *, persistent: bool = False) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_sampler=sampler, num_workers=workers, persistent_workers=persistent)


def take(sampler: Sampler, batches: DataLoader[Any], count: int) -> list[list[int]]:
    return [batch.tolist() for batch in itertools.islice(sampler.over(batches), count)]


def global_batches(parts: list[list[list[int]]]) -> list[list[int]]:
    """The parts of all ranks, joined batch by batch."""
    return [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]


def expected(start: int, count: int) -> list[list[int]]:
    ids = core.Sampler(SIZE, BATCH, seed=4)
    return [ids.ids(BATCH * number, BATCH).tolist() for number in range(start, start + count)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@forking
def test_a_run_that_resumes_on_other_ranks_trains_on_each_sample_once_an_epoch(workers: int) -> None:
    """The loaders have fetched batches that nobody trained on when the state is taken."""
    state: dict[str, Any] = Sampler(SIZE, BATCH, seed=4).get_state()
    trained: list[list[int]] = []
    for ranks, count in [(1, 3), (2, 5), (3, 4)]:
        parts, states = [], []
        for rank in range(ranks):
            sampler = Sampler(SIZE, BATCH, seed=4, rank=rank, ranks=ranks)
            sampler.set_state(state)
            parts.append(take(sampler, loader(sampler, workers), count))
            states.append(sampler.get_state())
        assert states == [states[0]] * ranks
        state = states[0]
        trained += global_batches(parts)
    assert trained == expected(0, 12)
    seen = list(itertools.chain(*trained))
    assert [sorted(seen[epoch * SIZE :][:SIZE]) for epoch in range(3)] == [list(range(SIZE))] * 3


@forking
def test_the_state_is_that_of_what_was_handed_out() -> None:
    sampler = Sampler(SIZE, BATCH)
    for number, _ in enumerate(sampler.over(loader(sampler, 2)), 1):
        assert sampler.get_state()["position"] == number * BATCH
        if number == 4:
            break
    assert sampler.position == 4 * BATCH
    assert sampler._read_to > sampler.position


def test_states_cross_frameworks() -> None:
    ours, theirs = Sampler(SIZE, BATCH, seed=4), core.Sampler(SIZE, BATCH, seed=4)
    take(ours, loader(ours), 3)
    theirs.set_state(ours.get_state())
    assert theirs.next().tolist() == expected(3, 1)[0]
    ours.set_state(theirs.get_state())
    assert take(ours, loader(ours), 1) == expected(4, 1)
    assert isinstance(ours, torch.utils.data.Sampler)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@forking
def test_a_restore_in_the_middle_of_a_loop_takes_effect_at_the_next_batch(workers: int, persistent: bool) -> None:  # noqa: FBT001
    sampler = Sampler(SIZE, BATCH, seed=4)
    loop = sampler.over(loader(sampler, workers, persistent=persistent))
    first = [next(loop).tolist() for _ in range(2)]
    state = sampler.get_state()
    gone = [next(loop).tolist() for _ in range(2)]
    sampler.set_state(state)
    assert sampler.get_state() == state
    assert [next(loop).tolist() for _ in range(2)] == gone
    assert first + gone == expected(0, 4)
    sampler.seek(0)
    assert next(loop).tolist() == first[0]
    sampler.seek(sampler.position)
    assert next(loop).tolist() == first[1]
    sampler.next()
    assert next(loop).tolist() == expected(3, 1)[0]


@pytest.mark.parametrize("workers", [0, 2])
@forking
def test_batches_that_nobody_counts_are_an_error_when_the_state_is_taken(workers: int) -> None:
    sampler = Sampler(SIZE, BATCH)
    take(sampler, loader(sampler), 2)
    state = sampler.get_state()
    batches = iter(loader(sampler, workers))
    next(batches)
    with pytest.raises(CallError, match=r"iterate with `for batch in sampler.over\(loader\)`"):
        sampler.get_state()
    sampler.set_state(state)  # a restore is no matter of what was read
    assert sampler.get_state() == state
    next(iter(loader(sampler)))
    sampler.next()  # this counts
    assert sampler.get_state()["position"] == 3 * BATCH


def test_a_loader_of_something_else_is_refused() -> None:
    sampler, other = Sampler(SIZE, BATCH), Sampler(SIZE, BATCH)
    with pytest.raises(CallError, match="does not read from this sampler"):
        next(sampler.over(loader(other)))
    take(sampler, loader(sampler), 2)
    with pytest.raises(CallError, match="does not read from this sampler"):
        next(sampler.over(DataLoader(Numbers(), sampler=range(SIZE))))
    assert sampler.position == 2 * BATCH


def test_a_loop_over_batches_that_are_made_of_a_loaders() -> None:
    sampler = Sampler(SIZE, BATCH, seed=4)

    def doubled() -> Iterator[list[int]]:
        for batch in loader(sampler):
            yield (2 * batch).tolist()

    assert next(sampler.over(doubled())) == [2 * number for number in expected(0, 1)[0]]
    assert sampler.position == BATCH
    assert len(list(sampler.over(itertools.islice(loader(sampler), 3)))) == 3
    assert sampler.position == 4 * BATCH


@pytest.mark.parametrize("workers", [0, 2])
@forking
def test_starting_a_loader_draws_nothing_from_torchs_generator(workers: int) -> None:
    """A run that resumes starts its loader once more than one that went through."""
    torch.manual_seed(0)
    draws = torch.rand(3).tolist()
    torch.manual_seed(0)
    sampler = Sampler(SIZE, BATCH)
    take(sampler, loader(sampler, workers), 1)
    assert torch.rand(3).tolist() == draws


def test_rank_and_ranks_come_together() -> None:
    with pytest.raises(CallError, match="give both, or neither"):
        Sampler(SIZE, BATCH, rank=0)
    with pytest.raises(CallError, match="give both, or neither"):
        Sampler(SIZE, BATCH).next(1)
    with pytest.raises(CallError, match="rank 3 of 2 ranks"):
        Sampler(SIZE, BATCH, rank=3, ranks=2)


def test_parts_by_hand() -> None:
    sampler = Sampler(SIZE, BATCH, seed=4, rank=1, ranks=2)
    assert sampler.next().tolist() == expected(0, 1)[0][4:]
    assert sampler.next(0, 4).tolist() == expected(1, 1)[0][:2]
    assert next(sampler.shard()).tolist() == expected(2, 1)[0][4:]
    assert next(sampler.shard(0, 1)).tolist() == expected(3, 1)[0]
    assert np.array_equal(sampler.ids(0, 3), core.Sampler(SIZE, BATCH, seed=4).ids(0, 3))


def test_a_rank_without_rows_is_told_before_it_trains_on_nothing() -> None:
    with pytest.raises(CallError, match="a batch of 2 has no row for rank 0 of 3"):
        iter(Sampler(SIZE, 2, rank=0, ranks=3))


def test_another_order_of_samples_is_refused_and_changes_nothing() -> None:
    sampler = Sampler(SIZE, BATCH, seed=4)
    take(sampler, loader(sampler), 2)
    with pytest.raises(CallError, match="seed is 4, saved was 5"):
        sampler.set_state(Sampler(SIZE, BATCH, seed=5).get_state())
    assert sampler.position == 2 * BATCH


def test_a_job_without_its_group_does_not_read_the_same_samples_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = Sampler(SIZE, BATCH)
    with pytest.raises(CallError, match="init_process_group"):
        iter(sampler)
    assert next(iter(Sampler(SIZE, BATCH, seed=4, rank=0, ranks=2))) == expected(0, 1)[0][:4]


@pytest.mark.slow
def test_ranks_default_to_the_groups() -> None:
    script = """
    import json
    from tests.torchckpt.test_sampler import BATCH, SIZE as SAMPLES, loader, take
    from torchckpt.sampler import Sampler
    sampler = Sampler(SAMPLES, BATCH, seed=4)
    print(json.dumps(take(sampler, loader(sampler, 2), 4)))
    """
    parts = [
        json.loads(output.splitlines()[-1]) for output in run_job(script, size=2)
    ]  # with one core torch warns of two workers
    assert global_batches(parts) == expected(0, 4)
