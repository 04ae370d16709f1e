"""Databases of arrays for tests: write numpy arrays as one or several ranks, merge, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ckptcore import dtypes
from ckptcore.arrays import ArrayReader, DatabaseWriter, StoredArray, check_merged, merge
from ckptcore.geometry import Box, Grid
from ckptcore.names import GenerationId, database_prefix, state_prefix
from ckptcore.store import Storage, Store, open_store

GENERATION = GenerationId(1, 10, 1)
STATE = state_prefix(GENERATION)


@dataclass
class Database:
    """What was written: arrays by stored name, and their chunk digests in grid order."""

    store: Store
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    digests: dict[str, list[str]] = field(default_factory=dict)
    prefixes: list[str] = field(default_factory=list)

    def read(self, name: str, boxes: Sequence[Box] | None = None) -> list[np.ndarray]:
        """Read boxes of an array, or all of it, with a new reader."""
        array = self.arrays[name]
        return ArrayReader(self.store, STATE).read(array, boxes or [Box.whole(array.shape)], self.digests[name])

    def problems(self) -> list[str]:
        """What `check_merged` says."""
        return check_merged(self.store, STATE, self.arrays)


def write(
    path: Path | str,
    arrays: Mapping[str, tuple[np.ndarray, Grid]],
    ranks: int = 1,
    *,
    merged: bool = True,
    storage: Storage | None = None,
) -> Database:
    """Write arrays in their stored dtype; chunk `i` is written by rank `i % ranks`."""
    database = Database(open_store(str(path), storage))
    found: dict[str, dict[int, str]] = {name: {} for name in arrays}
    for rank in range(ranks):
        database.prefixes.append(database_prefix(GENERATION, rank, f"{rank:08x}"))
        writer = DatabaseWriter(database.store, database.prefixes[-1])
        writing = {}
        for name, (data, grid) in arrays.items():
            array = database.arrays.setdefault(name, stored(name, data, grid))
            own = range(rank, grid.size, ranks)
            writing[name] = writer.add(array, {chunk: data[(..., *grid.cell(chunk).slices())] for chunk in own})
        writer.finish()
        for name, chunks in writing.items():
            found[name] |= {chunk: digest.result() for chunk, digest in chunks.items()}
    database.digests = {name: [chunks[chunk] for chunk in sorted(chunks)] for name, chunks in found.items()}
    if merged:
        merge(database.store, STATE, database.prefixes)
    return database


def stored(name: str, data: np.ndarray, grid: Grid) -> StoredArray:
    """The record of an array that is in its stored dtype already."""
    return StoredArray(name, dtypes.name_of(data.dtype, where=name), data.shape, grid)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bit for bit, dtype and shape included."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
