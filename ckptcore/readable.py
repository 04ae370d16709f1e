"""What a restore reads from: leaves by name, and boxes of their arrays (spec: reading).

A commit is one (`ckptcore.reader.Checkpoint`), so is a foreign checkpoint
(`ckptcore.formats.foreign`), and so is either of them seen under another framework's names
(`ckptcore.convert`). Matching and restoring know only this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ckptcore import dtypes, names
from ckptcore.geometry import Box
from ckptcore.names import Path
from ckptcore.records import ArrayLeaf, ValueLeaf


@dataclass(frozen=True)
class StoredLeaf:
    """One leaf of a checkpoint. `rank` is None for a global leaf."""

    component: str
    record: ArrayLeaf | ValueLeaf
    rank: int | None = None

    @property
    def name(self) -> str:
        """The layout name."""
        return self.record.name

    @property
    def stored_name(self) -> str:
        """The name in indexes and in the array database."""
        return self._stored(self.record.name)

    @property
    def stored_target(self) -> str:
        """The stored name of the array that holds the bytes: the alias's target for a tied leaf."""
        return self._stored((self.record.alias if isinstance(self.record, ArrayLeaf) else None) or self.record.name)

    def _stored(self, name: str) -> str:
        return name if self.rank is None else names.rank_array_name(self.rank, name)


class Readable(Protocol):
    """Leaves that can be read, box by box."""

    @property
    def title(self) -> str:
        """What it is called in errors, such as `generation 000001-000000000050-1`."""
        ...

    @property
    def framework(self) -> str:
        """The framework whose names and shapes its leaves have: `jax`, `torch`, …"""
        ...

    @property
    def names(self) -> Collection[str]:
        """The names of its components."""
        ...

    def leaves(self, component: str, rank: int | None = None) -> Mapping[str, StoredLeaf]:
        """The leaves of a component by layout name; of `rank`'s own copy when it is rank-scoped. Raises `NotFound`."""
        ...

    def value(self, leaf: StoredLeaf) -> Any:
        """The decoded value of a JSON leaf."""
        ...

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        """Boxes of array leaves: for each request its boxes, in order, in the stored dtype and in memory of their own."""
        ...

    def digest(self, leaf: StoredLeaf) -> str | None:
        """A digest that two leaves of this checkpoint share only if their content is the same; None where there is none."""
        ...


def array_leaf(component: str, path: Path, dtype: str, shape: Sequence[int], *, prng_impl: str | None = None) -> StoredLeaf:
    """An array leaf that no layout describes. `dtype` is logical."""
    record = ArrayLeaf(
        path=path,
        name=names.array_name(component, path),
        dtype=dtype,
        stored_dtype=dtypes.stored_name(dtype),
        shape=tuple(shape),
        chunk_shape=tuple(max(extent, 1) for extent in shape),
        prng_impl=prng_impl,
    )
    return StoredLeaf(component, record)


def value_leaf(component: str, path: Path) -> StoredLeaf:
    """A value leaf that no layout describes."""
    return StoredLeaf(component, ValueLeaf(path=path, name=names.array_name(component, path)))
