"""Two checkpoints beside each other: what they promise, which leaves they have, and how far their arrays are apart.

`compare` is pure: it looks at manifests, leaf tables and leaf digests. `measure` reads the arrays that the digests leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from ckptcore import dtypes
from ckptcore.inspect.leaves import as_text, path_of
from ckptcore.inspect.statistics import Apart
from ckptcore.inspect.streaming import batches, logical
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf, Manifest

Change = Literal["only-left", "only-right", "kind", "dtype", "shape", "keys", "value", "elements", "unknown", "equal"]
"""`keys`: random keys of another implementation; `unknown`: the digests cannot tell, since the arrays are cut differently."""

READ = ("elements", "unknown")
"""What the elements of arrays are read for."""
MEASURED = (*READ, "value")


@dataclass(frozen=True)
class Facts:
    """A leaf as the comparison sees it. `grid` is part of what an array's digest is over."""

    leaf: StoredLeaf
    digest: str
    grid: Any

    @property
    def type(self) -> tuple[str, str, tuple[int, ...], str | None]:
        """What has to be equal for two leaves to be comparable: kind, dtype, shape, implementation of random keys."""
        record = self.leaf.record
        if not isinstance(record, ArrayLeaf):
            return "value", "", (), None
        return "array", record.dtype, record.shape, record.prng_impl


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    """Something that the two manifests say differently; None where one says nothing."""

    name: str
    left: Any
    right: Any


@dataclass(frozen=True, kw_only=True)
class LeafChange:
    """A leaf that is not the same in both. `left` and `right` describe it there; the last four are of elements, if measured.

    `largest` is the greatest absolute difference, `relative` the greatest one in proportion to the larger of both elements.
    """

    leaf: str
    path: str
    component: str
    rank: int | None
    change: Change
    left: str | None = None
    right: str | None = None
    differing: int | None = None
    count: int | None = None
    largest: float | None = None
    relative: float | None = None


Table = Mapping[tuple[int | None, str], Facts]
"""The leaves of a checkpoint by rank (None for a global one) and name."""


def table(checkpoint: Checkpoint) -> Table:
    """The leaves of a checkpoint, with their digests."""
    found = {}
    for component in checkpoint.names:
        for rank in checkpoint.ranks(component):
            for leaf in checkpoint.leaves(component, rank).values():
                grid = checkpoint.array(leaf)[0].grid if isinstance(leaf.record, ArrayLeaf) else None
                found[rank, leaf.name] = Facts(leaf, checkpoint.digest(leaf), grid)
    return found


def compare_fields(left: Manifest, right: Manifest) -> list[FieldChange]:
    """What differs in the promise, the topology, the versions, the metadata and the components."""
    one, other = _fields(left), _fields(right)
    names = sorted(one.keys() | other.keys())
    return [
        FieldChange(name=n, left=one.get(n), right=other.get(n)) for n in names if one.get(n, _ABSENT) != other.get(n, _ABSENT)
    ]


_ABSENT = object()


def _fields(manifest: Manifest) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name in ("guarantee", "topology", "versions"):
        named |= _flat(name, msgspec.to_builtins(getattr(manifest, name)))
    for name, entry in manifest.components.items():
        named |= {f"components.{name}.kind": entry.kind, f"components.{name}.scope": entry.scope}
    return named | _flat("metadata", manifest.metadata)


def _flat(name: str, content: Any) -> dict[str, Any]:
    """Entries of nested mappings under dotted names; an encoded value (`{"$float": …}`) is one."""
    if not isinstance(content, dict) or not content or any(key.startswith("$") for key in content):
        return {name: content}
    return {at: found for key, below in content.items() for at, found in _flat(f"{name}.{key}", below).items()}


def compare(left: Table, right: Table) -> list[LeafChange]:
    """The leaves that are not the same, as far as their tables and digests tell. Those that are `equal` are left out."""
    order = sorted(left.keys() | right.keys(), key=lambda key: (key[1], key[0] if key[0] is not None else -1))
    changes = [_compare(left.get(key), right.get(key)) for key in order]
    return [change for change in changes if change is not None]


def _compare(left: Facts | None, right: Facts | None) -> LeafChange | None:
    if left is None or right is None:
        known = left or right
        return None if known is None else _change(known.leaf, "only-left" if right is None else "only-right", left, right)
    for one, other, what in zip(left.type, right.type, ("kind", "dtype", "shape", "keys"), strict=True):
        if one != other:
            return _change(left.leaf, what, left, right)  # pyright: ignore[reportArgumentType]
    if left.digest == right.digest:
        return None
    what = "value" if left.grid is None else "elements" if left.grid == right.grid else "unknown"
    return _change(left.leaf, what, left, right)


def _change(leaf: StoredLeaf, change: Change, left: Facts | None, right: Facts | None) -> LeafChange:
    return LeafChange(
        leaf=leaf.name,
        path=path_of(leaf),
        component=leaf.component,
        rank=leaf.rank,
        change=change,
        left=left and describe(left),
        right=right and describe(right),
    )


def describe(facts: Facts) -> str:
    """A leaf's type for people: `float32[8, 96]`."""
    kind, dtype, shape, keys = facts.type
    return kind if kind == "value" else f"{dtype}[{', '.join(map(str, shape))}]" + (f" ({keys} keys)" if keys else "")


def bytes_to_read(changes: Sequence[LeafChange], left: Table) -> int:
    """The bytes of the left checkpoint that `measure` reads."""
    return sum(nbytes(left[change.rank, change.leaf].leaf) for change in changes if change.change in READ)


def nbytes(leaf: StoredLeaf) -> int:
    """Bytes of a leaf's elements, 0 for a value."""
    record = leaf.record
    return math.prod(record.shape) * dtypes.itemsize(record.dtype) if isinstance(record, ArrayLeaf) else 0


def measure(
    change: LeafChange,
    left: tuple[Checkpoint, Table],
    right: tuple[Checkpoint, Table],
    progress: Callable[[int], object] = lambda _: None,
) -> LeafChange | None:
    """How far the arrays of a change are apart, or which values it has; None if the two are equal after all.

    `progress` is told of the left checkpoint's bytes as they are read. Raises a `DamageError` for what cannot be read.
    """
    one, other = (read[change.rank, change.leaf].leaf for _, read in (left, right)) if change.change in MEASURED else (None, None)
    if one is None or other is None:
        return change
    if change.change == "value":
        told = [as_text(checkpoint.value(leaf)) for checkpoint, leaf in ((left[0], one), (right[0], other))]
        return replace(change, left=told[0], right=told[1])
    apart = _apart(left[0], one, right[0], other, progress)
    if apart.identical:
        return None
    found = {"differing": apart.differing, "count": apart.count, "largest": apart.largest, "relative": apart.relative}
    return replace(change, change="elements", **found)


def _apart(left: Checkpoint, one: StoredLeaf, right: Checkpoint, other: StoredLeaf, progress: Callable[[int], object]) -> Apart:
    apart = Apart()
    for boxes in batches(left.array(one)[0]):
        for mine, theirs in zip(left.read([(one, boxes)])[0], right.read([(other, boxes)])[0], strict=True):
            apart.add(logical(one, mine), logical(other, theirs))
            progress(mine.nbytes)
    return apart
