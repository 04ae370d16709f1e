"""The core's data cursor for torch: a batch sampler that may be read ahead, and the loop that moves it.

A `DataLoader` with workers asks for ids long before their batches are trained on. So what the loader reads moves
nothing; the position is moved by the loop, a global batch at a time, when a batch is handed out. What is saved is
the position of what was trained on, however far the loader has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import data

from ckptcore import sampler
from ckptcore.errors import CallError
from torchckpt.channel import world

T = TypeVar("T")


class Sampler(sampler.Sampler, data.Sampler[list[int]]):
    """The ids of the samples to train on, in order, from a position that can be saved.

    ```
    sampler = Sampler(len(dataset), batch)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    for batch in sampler.over(loader):
    ```

    `size` is the number of samples in the data set, `batch` the rows of a global batch (over all ranks). `rank` and
    `ranks` say which part of it this process trains on; without them it is the process group's that counts, at the time
    when ids are asked for. Ranks that work on the same rows, as those of one tensor-parallel group, have to give the same
    numbers. Batches run across the ends of epochs: no sample is dropped or padded. The state is the same on every rank,
    and the same that JAX jobs save: save it as the `data` component, a global one.

    Raises `CallError` for numbers out of range, and for a batch larger than the data set.
    """

    def __init__(
        self, size: int, batch: int, *, seed: int = 0, shuffle: bool = True, rank: int | None = None, ranks: int | None = None
    ) -> None:
        super().__init__(size, batch, seed=seed, shuffle=shuffle)
        self._place = _both(rank, ranks)
        if self._place is not None:
            sampler.rows(self.batch, *self._place)
        self._read_from: int | None = None
        self._read_to = 0

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a loader that reads from this sampler; each moves the position by one global batch.

        A restore (`set_state`, `seek`) in the middle of the loop takes effect at the next batch: the loader is started again
        there. Starting a loader draws from torch's global generator; that is undone, so that a run that is resumed,
        and so starts its loader once more, draws the same numbers. Raises `CallError` for a loader that does not read from
        this sampler.
        """
        while True:
            position = self.position
            for batch in _started(loader):
                position += self.batch
                if self._read_to < position:
                    raise CallError("sampler: this loader does not read from this sampler: make it with batch_sampler=sampler")
                self._position = position
                yield batch
                if self.position != position or self._read_from is None:
                    break
            else:
                return

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's ids of each batch to come, without end. Moves nothing: `over` does."""
        rank, ranks = self._rank_of_ranks()
        start, stop = sampler.rows(self.batch, rank, ranks)
        if start == stop:
            raise CallError(f"sampler: a batch of {self.batch} has no row for rank {rank} of {ranks}: make it larger")
        return self._ahead(self.position, start, stop)

    def next(self, rank: int | None = None, ranks: int | None = None) -> np.ndarray:
        """The ids of this rank's part of the next global batch; then the whole batch is behind. int64."""
        return super().next(*self._rank_of_ranks(rank, ranks))

    def shard(self, rank: int | None = None, ranks: int | None = None) -> Iterator[np.ndarray]:
        """This rank's part of every batch to come, without end; the position counts what was handed out."""
        return super().shard(*self._rank_of_ranks(rank, ranks))

    def seek(self, position: int) -> None:
        """Go to a position, in samples from the beginning of the run."""
        super().seek(position)
        self._read_from, self._read_to = None, 0

    def get_state(self) -> dict[str, int | bool]:
        """The cursor, as plain numbers; equal on every rank that has taken as many batches.

        Raises `CallError` when a loader has read from here but no batch was counted: a run that resumed
        would train on the same samples again.
        """
        if self._read_from == self.position:
            raise CallError(
                "sampler: a loader has read batches that nobody counted: iterate with `for batch in sampler.over(loader)`"
            )
        return super().get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. `batch` stays this sampler's own: it may change on resume.

        Raises `CallError`, and changes nothing, when `state` is no state or one of another list of ids.
        """
        judge = sampler.Sampler(self.size, self.batch, seed=self.seed, shuffle=self.shuffle)
        judge.set_state(state)
        self.seek(judge.position)

    def _ahead(self, position: int, start: int, stop: int) -> Iterator[list[int]]:
        """The ids of the rows `[start, stop)` of each batch from `position` on, and a note of what was read."""
        self._read_from = position
        while True:
            ids = self.ids(position + start, stop - start).tolist()
            position += self.batch
            self._read_to = max(self._read_to, position)
            yield ids

    def _rank_of_ranks(self, rank: int | None = None, ranks: int | None = None) -> tuple[int, int]:
        return _both(rank, ranks) or self._place or world()


def _both(rank: int | None, ranks: int | None) -> tuple[int, int] | None:
    if rank is not None and ranks is not None:
        return rank, ranks
    if rank is not None or ranks is not None:
        raise CallError(f"sampler: rank={rank!r}, ranks={ranks!r}: give both, or neither")
    return None


def _started(loader: Iterable[T]) -> Iterator[T]:
    """The loader's iterator. To start one draws a seed from torch's global generator: that is undone."""
    with torch.random.fork_rng(devices=[]):
        return iter(loader)
