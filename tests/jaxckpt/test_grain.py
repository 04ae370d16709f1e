"""A run that reads its data through Grain goes on with exactly the same elements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.flags
import grain.python as grain
import numpy as np
import pytest

from jaxckpt import PerRank
from tests.jaxckpt.runs import resume, save

# Outside of an absl application nobody parses the flags that Grain looks at.
absl.flags.FLAGS.mark_as_parsed()


class Numbers:
    """A data source whose `repr`, which is part of Grain's state, says nothing of the process."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(2, index)

    def __repr__(self) -> str:
        return "Numbers(40)"


class Noisy(grain.RandomMapTransform):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + rng.integers(0, 1000)


def loader(workers: int) -> Iterator[Any]:
    sampler = grain.IndexSampler(40, grain.ShardOptions(0, 1), shuffle=True, num_epochs=3, seed=5)
    operations = [Noisy(), grain.Batch(4)]
    return iter(grain.DataLoader(data_source=Numbers(), sampler=sampler, operations=operations, worker_count=workers))


def map_dataset() -> Iterator[Any]:
    dataset = grain.MapDataset.source(Numbers()).seed(3).shuffle().random_map(Noisy()).batch(4).repeat(2)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))


def mixed_dataset() -> Iterator[Any]:
    odd = grain.MapDataset.source(Numbers()).filter(lambda x: x[0] % 2 == 1).shuffle(seed=1).repeat()
    even = grain.MapDataset.source(Numbers()).filter(lambda x: x[0] % 2 == 0).seed(8).shuffle().repeat()
    return iter(grain.MapDataset.mix([odd, even], weights=[0.7, 0.3]).to_iter_dataset().batch(3))


def windowed_dataset() -> Iterator[Any]:
    dataset = grain.MapDataset.source(Numbers()).repeat().to_iter_dataset()
    return iter(grain.experimental.WindowShuffleIterDataset(dataset, window_size=8, seed=2).batch(4))


MAKERS = {"loader": lambda: loader(0), "map": map_dataset, "mixed": mixed_dataset, "windowed": windowed_dataset}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_iterator_goes_on_where_it_was(name: str, taken: int, tmp_path: Path) -> None:
    iterator = MAKERS[name]()
    for _ in range(taken):
        next(iterator)
    save(tmp_path / "run", {"params": {"x": np.ones(1)}, "data": PerRank(iterator)})
    expected = [next(iterator) for _ in range(4)]
    again = MAKERS[name]()
    next(again)
    resume(tmp_path / "run", {"params": {"x": np.ones(1)}, "data": PerRank(again)})
    np.testing.assert_array_equal([next(again) for _ in range(4)], expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_loader_with_worker_processes(tmp_path: Path) -> None:
    iterator = loader(2)
    for _ in range(3):
        next(iterator)
    save(tmp_path / "run", {"params": {"x": np.ones(1)}, "data": PerRank(iterator)})
    expected = [next(iterator) for _ in range(4)]
    again = loader(2)
    resume(tmp_path / "run", {"params": {"x": np.ones(1)}, "data": PerRank(again)})
    np.testing.assert_array_equal([next(again) for _ in range(4)], expected)
