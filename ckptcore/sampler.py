"""A data cursor that is independent of the topology: which sample ids come next.

`(size, seed, shuffle)` fix one endless list of sample ids: epoch after epoch, each a
permutation of `0 … size-1` of its own. The cursor is one number, the position in that list.
Every rank holds the same one and takes its part of each global batch, so any number of
processes reads the same list, and a run that resumes on other processes repeats and skips
nothing (spec: guarantees, `coverage`).

The permutation is a keyed Feistel network with cycle walking: the id at any position is
computed alone, so seeking is O(1) and no list is ever held. It is part of the format: a
checkpoint's cursor means the same ids for ever, so a change needs another `ALGORITHM`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from ckptcore.errors import CallError

ALGORITHM = 1
"""The version of the permutation, kept in the state."""
ROUNDS = 8

_MAX = 2**53 - 1
_FIXED = ("size", "seed", "shuffle", "algorithm")


class Sampler:
    """The ids of the samples to train on, in order, from a position that can be saved.

    `size` is the number of samples in the data set, `batch` the rows of a global batch (over
    all ranks). Batches run across the ends of epochs: no sample is dropped or padded. The
    state is the same on every rank: save it as the `data` component, a global one.

    Raises `CallError` for numbers out of range, and for a batch larger than the data set.
    """

    def __init__(self, size: int, batch: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self.size = _integer("size", size, 1)
        self.batch = _integer("batch", batch, 1)
        if self.batch > self.size:
            raise CallError(f"sampler: batch {self.batch} is larger than the data set of {self.size}: it would repeat samples")
        self.seed = _integer("seed", seed, 0)
        self.shuffle = bool(shuffle)
        self._position = 0

    @property
    def position(self) -> int:
        """The number of samples handed out so far, over all ranks and epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the next sample."""
        return self._position // self.size

    def seek(self, position: int) -> None:
        """Go to a position, in samples from the beginning of the run."""
        self._position = _integer("position", position, 0)

    def ids(self, position: int, count: int) -> np.ndarray:
        """The `count` ids from `position` on: int64, shape `(count,)`. Moves nothing."""
        position, count = _integer("position", position, 0), _integer("count", count, 0)
        parts = [np.empty(0, np.int64)]
        while count > 0:
            epoch, offset = divmod(position, self.size)
            length = min(count, self.size - offset)
            parts.append(self._within(epoch, np.arange(offset, offset + length, dtype=np.int64)))
            position, count = position + length, count - length
        return np.concatenate(parts)

    def next(self, rank: int = 0, ranks: int = 1) -> np.ndarray:
        """The ids of this rank's part of the next global batch; then the whole batch is behind.

        The parts are contiguous, and the parts of all ranks in order are the batch. If `ranks` does not divide
        `batch`, their sizes differ by one row at most. int64, shape `(rows of this rank,)`.
        """
        start, stop = rows(self.batch, rank, ranks)
        part = self.ids(self._position + start, stop - start)
        self._position += self.batch
        return part

    def shard(self, rank: int = 0, ranks: int = 1) -> Iterator[np.ndarray]:
        """This rank's part of every batch to come, without end, from the sampler's own position.

        The position counts what the iterator has handed out. A loader that reads ahead must
        save the position of what was trained on, not of what was fetched.
        """
        while True:
            yield self.next(rank, ranks)

    def get_state(self) -> dict[str, int | bool]:
        """The cursor, as plain numbers; equal on every rank that has taken as many batches."""
        return {
            "algorithm": ALGORITHM,
            "batch": self.batch,
            "position": self._position,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "size": self.size,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. `batch` stays this sampler's own: it may change on resume.

        Raises `CallError`, and changes nothing, when `state` is no state or one of another list of ids.
        """
        own = self.get_state()
        if set(state) != set(own):
            raise CallError(f"sampler: the state has {sorted(map(str, state))}, expected {sorted(own)}")
        different = [f"{name} is {own[name]!r}, saved was {state[name]!r}" for name in _FIXED if state[name] != own[name]]
        if different:
            raise CallError(f"sampler: the state belongs to another order of samples ({'; '.join(different)})")
        self.seek(state["position"])

    def _within(self, epoch: int, offsets: np.ndarray) -> np.ndarray:
        if not self.shuffle or self.size == 1:
            return offsets
        return _permute(offsets, self.size, _round_keys(self.seed, epoch))


def rows(batch: int, rank: int, ranks: int) -> tuple[int, int]:
    """The rows `[start, stop)` of a global batch that belong to `rank` of `ranks`."""
    ranks = _integer("ranks", ranks, 1)
    if not 0 <= operator.index(rank) < ranks:
        raise CallError(f"sampler: rank {rank} of {ranks} ranks")
    return batch * rank // ranks, batch * (rank + 1) // ranks


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    material = blake3(f"ckpt/sampler/{ALGORITHM}/{seed}/{epoch}".encode()).digest(length=8 * ROUNDS)
    return np.frombuffer(material, "<u8").astype(np.uint64)


def _permute(offsets: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Cycle walking: the network permutes a power of two below `2 * size`; step until inside `size`."""
    bits = (size - 1).bit_length()
    result = _feistel(offsets.astype(np.uint64), max(bits, 2), keys)
    while (outside := np.flatnonzero(result >= size)).size:
        result[outside] = _feistel(result[outside], max(bits, 2), keys)
    return result.astype(np.int64)


def _feistel(numbers: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """A permutation of `0 … 2**bits - 1`: each round adds a hash of one half onto the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = numbers >> low_bits, numbers & low_mask
    for first, second in keys.reshape(-1, 2):
        high = high ^ (_mix(low ^ first) & high_mask)
        low = low ^ (_mix(high ^ second) & low_mask)
    return (high << low_bits) | low


def _mix(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _integer(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise CallError(f"sampler: {name} is {value!r}, expected an integer") from None
    if isinstance(value, bool) or not least <= number <= _MAX:
        raise CallError(f"sampler: {name} is {value!r}, expected {least} to 2**53 - 1")
    return number
