"""Leaves kept in memory as a checkpoint would keep them, and slots filled from them: no run, no files.

Values pass through their encoding, arrays are copied, whole; a slot gets the boxes that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from ckptcore import nested, plain, values
from ckptcore.backend import Found
from ckptcore.geometry import Box
from ckptcore.names import Path, array_name, show_path
from ckptcore.records import ArrayLeaf
from torchckpt import leaves as kinds
from torchckpt.slots import Leaf, Slot

Held = Mapping[Path, Any]
"""Path → encoded value, or `(array, memory kind)`."""


def hold(leaves: Iterable[Leaf], component: str = "optimizer") -> dict[Path, Any]:
    """The leaves by path. Raises `UnsupportedLeaf` as a save would."""
    held: dict[Path, Any] = {}
    for leaf in leaves:
        where = show_path(component, leaf.path)
        path, data = (
            ((*leaf.path, nested.BYTES), np.frombuffer(leaf.data, np.uint8))
            if plain.is_long(leaf.data)
            else (leaf.path, leaf.data)
        )
        assert path not in held
        held[path] = (
            (_array(data, where), None if isinstance(data, torch.Tensor) else "numpy")
            if kinds.is_array(data)
            else values.encode(data, where=where)
        )
    return held


def fill(slots: Sequence[Slot], held: Held, component: str = "optimizer") -> None:
    """Restore: everything is prepared, then put in place. All that is held has to be taken by a slot."""
    for action in prepare(slots, held, component):
        action()


def prepare(slots: Sequence[Slot], held: Held, component: str = "optimizer") -> list[Callable[[], None]]:
    """The first half of `fill`."""
    below = [
        {path[len(slot.path) :]: item for path, item in held.items() if path[: len(slot.path)] == slot.path} for slot in slots
    ]
    assert sum(map(len, below)) == len(held), "something is held that no slot takes"
    ready = []
    for slot, items in zip(slots, below, strict=True):
        assert items or slot.optional, f"{show_path(component, slot.path)}: nothing is held"
        found = {path: _found(slot, path, item, component) for path, item in items.items()}
        ready.append(slot.prepare(Found(below=found) if found else None))
    return ready


def _array(data: Any, where: str) -> np.ndarray:
    if not isinstance(data, torch.Tensor):
        return np.array(data)
    kinds.check(data, where)
    whole = data.full_tensor() if isinstance(data, DTensor) else data
    return kinds.to_numpy(whole.detach().clone())


def _found(slot: Slot, path: Path, item: Any, component: str) -> Found:
    if not isinstance(item, tuple):
        return Found(value=values.decode(item, where="held"))
    array, memory_kind = item
    record = ArrayLeaf(
        path=path,
        name=array_name(component, (*slot.path, *path)),
        dtype=array.dtype.name,
        stored_dtype=array.dtype.name,
        shape=array.shape,
        chunk_shape=tuple(max(extent, 1) for extent in array.shape),
        memory_kind=memory_kind,
    )
    boxes = (Box.whole(array.shape),) if slot.boxes_of is None else slot.boxes_of(path, record)
    return Found(boxes={box: np.array(array[box.slices()]) for box in boxes}, memory_kind=memory_kind)
