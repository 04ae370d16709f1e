"""Which part of an array each device of a mesh holds (ADAPTER.md, `sharding`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The first place along each dimension, and the one after the last."""
Sharding = Sequence[str | Sequence[str] | None]


def whole_box(shape: Sequence[int]) -> Box:
    """All of the array."""
    return tuple(0 for _ in shape), tuple(shape)


def axes_of(leaf: Mapping[str, Any]) -> set[str]:
    """The mesh axes that a leaf's sharding names."""
    return {axis for entry in leaf.get("sharding") or () for axis in _axes(entry)}


def process_boxes(
    shape: Sequence[int], sharding: Sharding | None, mesh: Mapping[str, int], rank: int, processes: int
) -> list[Box]:
    """The boxes that the devices of one process hold, each once; of a host array (no sharding) the whole."""
    if sharding is None:
        return [whole_box(shape)]
    held = math.prod(mesh.values()) // processes
    return list(dict.fromkeys(device_boxes(shape, sharding, mesh)[rank * held : (rank + 1) * held]))


def device_boxes(shape: Sequence[int], sharding: Sharding, mesh: Mapping[str, int]) -> list[Box]:
    """The box of each device, in C order of the mesh. An axis cuts a dimension into pieces of ⌈n/size⌉, the last ones smaller."""
    found = []
    for places in itertools.product(*(range(size) for size in mesh.values())):
        at = dict(zip(mesh, places, strict=True))
        parts = [_part(extent, _axes(entry), mesh, at) for extent, entry in zip(shape, sharding, strict=True)]
        found.append((tuple(start for start, _ in parts), tuple(stop for _, stop in parts)))
    return found


def divides(shape: Sequence[int], sharding: Sharding, mesh: Mapping[str, int]) -> bool:
    """Whether the axes cut every dimension into equal pieces."""
    return all(
        extent % math.prod(mesh[axis] for axis in _axes(entry)) == 0 for extent, entry in zip(shape, sharding, strict=True)
    )


def _axes(entry: str | Sequence[str] | None) -> Sequence[str]:
    return [] if entry is None else [entry] if isinstance(entry, str) else entry


def _part(extent: int, axes: Sequence[str], mesh: Mapping[str, int], at: Mapping[str, int]) -> tuple[int, int]:
    """What is left of one dimension after each axis has cut what the one before left."""
    start, stop = 0, extent
    for axis in axes:
        piece = math.ceil((stop - start) / mesh[axis])
        start, stop = min(start + at[axis] * piece, stop), min(start + (at[axis] + 1) * piece, stop)
    return start, stop
