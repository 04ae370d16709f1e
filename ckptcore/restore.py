"""From a checkpoint to a restore target, or to nested host arrays (spec: reading)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckptcore import dtypes, nested
from ckptcore.backend import Found, Target, Wanted
from ckptcore.geometry import Box
from ckptcore.match import Match, Rules, match
from ckptcore.names import Path, array_name
from ckptcore.reader import Checkpoint, StoredLeaf
from ckptcore.records import ArrayLeaf

Ranks = Mapping[str, int | None]
"""Rank-scoped component → the rank whose copy to read; None leaves the component as it is in the target."""


def find(checkpoint: Checkpoint, target: Target, *, rules: Rules, ranks: Ranks) -> dict[str, Found]:
    """Read what `target` wants, for `Target.place`; the target is not touched.

    Reads only the boxes wanted. Raises `StructureMismatch` with every difference, `DamageError` for bytes
    that differ from their digests.
    """
    wanted = [leaf for leaf in target.wanted if ranks.get(rules.component(leaf.name), 0) is not None]
    stored = table(checkpoint, _sources(wanted, rules, checkpoint), ranks)
    pairs = match(wanted, stored, checkpoint.value, rules, where=f"generation {checkpoint.generation}")
    return _find(checkpoint, pairs, rules)


def host(checkpoint: Checkpoint, components: Sequence[str], *, rules: Rules, ranks: Ranks) -> dict[str, Any]:
    """Restore `components` as nested dicts and lists of numpy arrays and values: needs no framework and no devices.

    Typed random keys come back as their key data.
    """
    result: dict[str, Any] = {}
    for component in components:
        if ranks.get(component, 0) is not None:
            leaves = list(checkpoint.leaves(component, ranks.get(component)).values())
            result[component] = nested.build(_whole(checkpoint, leaves, rules), where=component)
    return result


def table(checkpoint: Checkpoint, components: Sequence[str], ranks: Ranks) -> dict[str, StoredLeaf]:
    """The leaves of `components` by layout name."""
    found: dict[str, StoredLeaf] = {}
    for component in components:
        found.update(checkpoint.leaves(component, ranks.get(component)))
    return found


def _sources(wanted: Sequence[Wanted], rules: Rules, checkpoint: Checkpoint) -> list[str]:
    """The checkpoint's components that the target draws from, renaming considered."""
    names = dict.fromkeys(rules.component(leaf.name) for leaf in wanted)
    known = checkpoint.manifest.components
    return [name for name in names if name in known or (rules.missing == "error" and _require(checkpoint, name))]


def _require(checkpoint: Checkpoint, component: str) -> bool:
    checkpoint.leaves(component, 0)  # raises NotFound, naming the components that there are
    return True


def _find(checkpoint: Checkpoint, pairs: Match, rules: Rules) -> dict[str, Found]:
    found: dict[str, Found] = {}
    requests = [(stored, _boxes(leaf, stored)) for leaf, stored in pairs.arrays]
    for (leaf, stored), arrays in zip(pairs.arrays, checkpoint.read(requests), strict=True):
        record = _array_record(stored)
        converted = [_logical(array, record, rules) for array in arrays]
        found[leaf.name] = Found(
            boxes=dict(zip(_boxes(leaf, stored), converted, strict=True)),
            weak_type=record.weak_type,
            prng_impl=record.prng_impl,
            memory_kind=record.memory_kind,
        )
    for leaf, stored in pairs.values:
        found[leaf.name] = Found(value=checkpoint.value(stored))
    for leaf, below in pairs.trees:
        # The tree hangs at the wanted path, whatever the stored one is called.
        root = rules.stored_name(leaf.name)
        whole = {_below(root, below[0].component, path): value for path, value in _whole(checkpoint, below, rules).items()}
        found[leaf.name] = Found(value=nested.build(whole, where=leaf.component))
    return found


def _whole(checkpoint: Checkpoint, leaves: Sequence[StoredLeaf], rules: Rules) -> dict[Path, Any]:
    """Every leaf whole, on the host, by path."""
    arrays = [leaf for leaf in leaves if isinstance(leaf.record, ArrayLeaf)]
    read = checkpoint.read([(leaf, [Box.whole(_array_record(leaf).shape)]) for leaf in arrays])
    by_name = {leaf.name: _logical(boxes[0], _array_record(leaf), rules) for leaf, boxes in zip(arrays, read, strict=True)}
    return {tuple(leaf.record.path): by_name[leaf.name] if leaf.name in by_name else checkpoint.value(leaf) for leaf in leaves}


def _below(root: str, component: str, path: Path) -> Path:
    """What is left of a stored path below the node called `root`."""
    depth = next(depth for depth in range(len(path) + 1) if array_name(component, path[:depth]) == root)
    return path[depth:]


def _boxes(leaf: Wanted, stored: StoredLeaf) -> list[Box]:
    return list(leaf.boxes) or [Box.whole(_array_record(stored).shape)]


def _array_record(leaf: StoredLeaf) -> ArrayLeaf:
    if not isinstance(leaf.record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    return leaf.record


def _logical(array: np.ndarray, record: ArrayLeaf, rules: Rules) -> np.ndarray:
    logical = dtypes.from_stored(array, record.dtype)
    dtype = rules.dtype(record.dtype)
    return logical if dtype == record.dtype else logical.astype(dtypes.numpy_dtype(dtype))
