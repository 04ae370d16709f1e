"""From a checkpoint to a restore target, or to nested host arrays (spec: reading)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ckptcore import dtypes, nested
from ckptcore.backend import Found, Target, Wanted
from ckptcore.geometry import Box
from ckptcore.match import Elsewhere, Match, Rules, match
from ckptcore.names import Path, array_name
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf

_AS_STORED = Rules()
"""An object (an optimizer, a loader) knows its own types: its step count must not become a bfloat16 with its weights."""

Ranks = Mapping[str, int | None]
"""Rank-scoped component → the rank whose copy to read; None leaves the component as it is in the target."""


def find(
    source: Readable, target: Target, *, rules: Rules, ranks: Ranks, elsewhere: Collection[Elsewhere] = ()
) -> dict[str, Found]:
    """Read what `target` wants, for `Target.place`; the target is not touched. `elsewhere` is what other ranks take.

    Reads only the boxes wanted. Raises `StructureMismatch` with every difference, `DamageError` for bytes
    that differ from their digests.
    """
    drawn = [leaf for leaf in target.wanted if ranks.get(rules.component(leaf.name), 0) is not None]
    wanted = [leaf for leaf in drawn if not rules.keeps(leaf, source.framework)]
    seen = rules.view(source, wanted, elsewhere)
    stored = table(seen, _sources(wanted, rules, seen), ranks)
    return _find(seen, match(wanted, stored, seen, rules, elsewhere=elsewhere), rules, converted=seen is not source)


def host(source: Readable, components: Sequence[str], *, rules: Rules, ranks: Ranks) -> dict[str, Any]:
    """Restore `components` as nested dicts and lists of numpy arrays and values: needs no framework and no devices.

    Typed random keys come back as their key data.
    """
    drawn = [component for component in components if ranks.get(component, 0) is not None]
    leaves = {component: list(source.leaves(component, ranks.get(component)).values()) for component in drawn}
    arrays = _whole(source, [leaf for some in leaves.values() for leaf in some if _is_array(leaf)], rules)
    return {component: nested.build(_by_path(source, leaves[component], arrays), where=component) for component in drawn}


def table(source: Readable, components: Sequence[str], ranks: Ranks) -> dict[str, StoredLeaf]:
    """The leaves of `components` by layout name."""
    found: dict[str, StoredLeaf] = {}
    for component in components:
        found.update(source.leaves(component, ranks.get(component)))
    return found


def _sources(wanted: Sequence[Wanted], rules: Rules, source: Readable) -> list[str]:
    """The checkpoint's components that the target draws from, renaming considered."""
    names = dict.fromkeys(rules.component(leaf.name) for leaf in wanted)
    return [name for name in names if name in source.names or (rules.missing == "error" and _require(source, name))]


def _require(source: Readable, component: str) -> bool:
    source.leaves(component, 0)  # raises NotFound, naming the components that there are
    return True


def _find(source: Readable, pairs: Match, rules: Rules, *, converted: bool) -> dict[str, Found]:
    found: dict[str, Found] = {leaf.name: Found(value=source.value(stored)) for leaf, stored in pairs.values}
    trees = [(leaf, _relative(leaf, stored, rules)) for leaf, stored in pairs.trees]
    requests = [(stored, _boxes(leaf, stored)) for leaf, stored in pairs.arrays]
    requests += [
        (item, _boxes_below(leaf, path, item)) for leaf, below in trees for path, item in below.items() if _is_array(item)
    ]
    # One call for all of them: a chunk that several leaves need is read once.
    read = zip(requests, source.read(requests), strict=True)

    def next_array(rules: Rules) -> Found:
        (stored, boxes), arrays = next(read)
        return _found(_array_record(stored), boxes, arrays, rules)

    for leaf, _ in pairs.arrays:
        found[leaf.name] = next_array(rules)
    for leaf, below in trees:
        found[leaf.name] = Found(
            below={
                path: next_array(_AS_STORED) if _is_array(item) else Found(value=source.value(item), converted=converted)
                for path, item in below.items()
            }
        )
    return found


def _found(record: ArrayLeaf, boxes: Sequence[Box], arrays: Sequence[np.ndarray], rules: Rules) -> Found:
    converted = [_logical(array, record, rules) for array in arrays]
    return Found(
        boxes=dict(zip(boxes, converted, strict=True)),
        weak_type=record.weak_type,
        prng_impl=record.prng_impl,
        memory_kind=record.memory_kind,
    )


def _relative(leaf: Wanted, stored: Sequence[StoredLeaf], rules: Rules) -> dict[Path, StoredLeaf]:
    """What is stored at and below a wanted tree by the path from its root, whatever the stored root is called."""
    root = rules.stored_name(leaf.name)
    return {_below(root, item.component, tuple(item.record.path)): item for item in stored}


def _boxes_below(leaf: Wanted, path: Path, stored: StoredLeaf) -> Sequence[Box]:
    record = _array_record(stored)
    return (Box.whole(record.shape),) if leaf.boxes_of is None else leaf.boxes_of(path, record)


def _whole(source: Readable, leaves: Sequence[StoredLeaf], rules: Rules) -> dict[str, np.ndarray]:
    """Every array whole, on the host, by layout name. One call for all of them: a chunk that several leaves need is read once."""
    read = source.read([(leaf, [Box.whole(_array_record(leaf).shape)]) for leaf in leaves])
    return {leaf.name: _logical(boxes[0], _array_record(leaf), rules) for leaf, boxes in zip(leaves, read, strict=True)}


def _by_path(source: Readable, leaves: Sequence[StoredLeaf], arrays: Mapping[str, np.ndarray]) -> dict[Path, Any]:
    return {tuple(leaf.record.path): arrays[leaf.name] if _is_array(leaf) else source.value(leaf) for leaf in leaves}


def _is_array(leaf: StoredLeaf) -> bool:
    return isinstance(leaf.record, ArrayLeaf)


def _below(root: str, component: str, path: Path) -> Path:
    """What is left of a stored path below the node called `root`."""
    depth = next(depth for depth in range(len(path) + 1) if array_name(component, path[:depth]) == root)
    return path[depth:]


def _boxes(leaf: Wanted, stored: StoredLeaf) -> Sequence[Box]:
    return list(leaf.boxes) or [Box.whole(_array_record(stored).shape)]


def _array_record(leaf: StoredLeaf) -> ArrayLeaf:
    if not isinstance(leaf.record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    return leaf.record


def _logical(array: np.ndarray, record: ArrayLeaf, rules: Rules) -> np.ndarray:
    logical = dtypes.from_stored(array, record.dtype)
    dtype = rules.dtype(record.dtype)
    return logical if dtype == record.dtype else logical.astype(dtypes.numpy_dtype(dtype))
