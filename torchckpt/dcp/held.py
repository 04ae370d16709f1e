"""What one rank holds of a save through DCP, leaf by leaf: tensors, objects, and state of its own.

Objects are taken from the planner as they are, never in the form that it would serialize them to. One that has no
place in the value encoding is an `UnsupportedLeaf` that names its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from ckptcore import components as parts
from ckptcore import dtypes, nested, plain, values
from ckptcore.backend import Flat, Staged
from ckptcore.components import PerRank
from ckptcore.errors import CallError, UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.names import Path, show_path
from torchckpt import leaves
from torchckpt.backend import NUMPY, TorchBackend
from torchckpt.dcp import keys
from torchckpt.dcp.plans import Local

Part = tuple[Box, np.ndarray]
"""A box of an array in global coordinates, and its content in the stored dtype."""


@dataclass(frozen=True, kw_only=True)
class Held(Flat):
    """Leaves, and what they hold. Nothing is copied when they are staged: whoever made them has seen to that."""

    meshes: Sequence[Any] = ()
    parts: Mapping[str, Sequence[Part]] = field(repr=False)
    encoded: Mapping[str, Any] = field(repr=False)

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:  # noqa: ARG002
        """Cut the boxes out of the parts."""
        chunks = {name: [_cut(self.parts[name], box) for box in boxes] for name, boxes in own.items()}
        whole = {name: self.parts[name][0][1] for name in replicated}
        return Staged(chunks=chunks, whole=whole, nbytes=0)


def of_ranks_own(state: Mapping[str, Any]) -> Held:
    """A snapshot of the components that each rank has for itself."""
    flat = TorchBackend().flatten({name: as_per_rank(value) for name, value in state.items()})
    whole = {array.name: [Box.whole(array.shape)] for array in flat.arrays}
    staged = flat.stage(whole, [], None)
    return Held(
        components=flat.components,
        arrays=flat.arrays,
        values=flat.values,
        parts={name: list(zip(whole[name], staged.chunks[name], strict=True)) for name in whole},
        encoded=_encoded(flat.values),
    )


def as_per_rank(value: Any) -> PerRank:
    """A component that is each rank's own, whether it says so itself or not."""
    return value if isinstance(value, PerRank) else PerRank(value)


def of_objects(local: Local, planner: SavePlanner, keeper_of: Callable[[str | None], int]) -> Held:
    """The leaves of what is no tensor in this rank's state dict. `keeper_of` gives the rank that stores an object for all."""
    arrays: list[ArrayFacts] = []
    found: list[ValueFacts] = []
    held: dict[str, Sequence[Part]] = {}
    for entry in (*_single_objects(local, planner, keeper_of), *_groups(local, planner, keeper_of(None))):
        for path, leaf in _split(entry):
            if leaves.is_array(leaf):
                facts, part = _array(entry.component, path, leaf, entry.keeper)
                arrays.append(facts)
                held[facts.name] = [part]
            else:
                found.append(ValueFacts(component=entry.component, path=path, value=leaf, keeper=entry.keeper))
    components = {leaf.component for leaf in (*arrays, *found)}
    facts = {name: ComponentFacts(kind=parts.kind_of(name), scope="global") for name in components}
    return Held(components=facts, arrays=arrays, values=found, parts=held, encoded=_encoded(found))


def tensor_parts(items: Iterable[WriteItem], planner: SavePlanner, name_of: Callable[[str], str]) -> dict[str, list[Part]]:
    """The content of this rank's tensors and shards by layout name."""
    found: dict[str, list[Part]] = {}
    for item in items:
        if item.tensor_data is not None:
            found.setdefault(name_of(item.index.fqn), []).append(_part(item, planner))
    return found


def box_of(item: WriteItem) -> Box:
    """Where a tensor item lies in its array. Raises `TypeError` for an object."""
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn} is no tensor")
    chunk = item.tensor_data.chunk
    return Box(tuple(chunk.offsets), tuple(map(int.__add__, chunk.offsets, chunk.sizes)))


@dataclass(frozen=True)
class _Object:
    """One object of a state dict: where it is stored, and the rank that stores it for all."""

    component: str
    path: Path
    value: Any
    keeper: int


def _objects(local: Local) -> Iterator[tuple[WriteItem, str, Path, keys.GroupPlace | None]]:
    """The objects among this rank's items, each with its place, and its place in a parameter group if it is stored with that."""
    for item in local.items:
        if item.type == WriteItemType.BYTE_IO:
            component, path = local.place(item.index.fqn)
            group = None if component in local.tensor_groups else keys.group_place(component, path)
            yield item, component, path, group


def _single_objects(local: Local, planner: SavePlanner, keeper_of: Callable[[str | None], int]) -> Iterator[_Object]:
    for item, component, path, group in _objects(local):
        if group is None:
            yield _Object(component, path, _looked_up(planner, item), keeper_of(item.index.fqn))


def _groups(local: Local, planner: SavePlanner, keeper: int) -> Iterator[_Object]:
    """Parameter groups: each as one value; entry by entry where the parameters have no names."""
    found: dict[str, dict[keys.GroupPlace, tuple[Path, Any]]] = {}
    for item, component, path, group in _objects(local):
        if group is not None:
            found.setdefault(component, {})[group] = path, _looked_up(planner, item)
    for component, entries in found.items():
        groups = keys.groups(component, {group: value for group, (_, value) in entries.items()})
        if groups is None:
            yield from (_Object(component, path, value, keeper) for path, value in entries.values())
        else:
            yield from (_Object(component, keys.group_path(group), dict(group), keeper) for group in groups)


def _split(entry: _Object) -> Iterator[tuple[Path, Any]]:
    """The leaves of one object: arrays, and the largest parts without arrays."""
    for below, leaf in nested.split(entry.value, leaves.is_array, where=show_path(entry.component, entry.path)):
        path = (*entry.path, *below)
        yield ((*path, nested.BYTES), np.frombuffer(leaf, np.uint8)) if plain.is_long(leaf) else (path, leaf)


def _looked_up(planner: SavePlanner, item: WriteItem) -> Any:
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise CallError(
            f"{item.index.fqn}: {type(planner).__name__} has no lookup_object, and what resolve_data gives of an object is a"
            " pickle, which is never stored. Derive the planner from DefaultSavePlanner"
        )
    return lookup(item.index)


def _array(component: str, path: Path, leaf: Any, keeper: int) -> tuple[ArrayFacts, Part]:
    where = show_path(component, path)
    leaves.check(leaf, where)
    if isinstance(leaf, torch.Tensor) and type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedLeaf(f"{where}: a {type(leaf).__name__} inside of an object, where DCP does not see it; move it out")
    array = leaves.to_numpy(leaf.detach().cpu()) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
    dtype = dtypes.name_of(array.dtype, where=where)
    whole = Box.whole(array.shape)
    facts = ArrayFacts(
        component=component,
        path=path,
        dtype=dtype,
        stored_dtype=dtypes.stored_name(dtype),
        shape=array.shape,
        itemsize=dtypes.itemsize(dtype),
        shards={whole: (keeper,)},
        memory_kind=None if isinstance(leaf, torch.Tensor) else NUMPY,
        host_replicated=True,
        local=True,
    )
    return facts, (whole, dtypes.to_stored(array, where=where))


def _part(item: WriteItem, planner: SavePlanner) -> Part:
    fqn, told = item.index.fqn, item.tensor_data
    tensor = planner.resolve_data(item)
    if told is None or not isinstance(tensor, torch.Tensor):
        raise CallError(f"{fqn}: {type(planner).__name__}.resolve_data gives {type(tensor).__name__}, expected a tensor")
    leaves.check(tensor, fqn)
    if tensor.dtype != told.properties.dtype or tensor.shape != told.chunk.sizes:
        raise CallError(
            f"{fqn}: the planner gives {tensor.dtype}{list(tensor.shape)}, its plan says"
            f" {told.properties.dtype}{list(told.chunk.sizes)}"
        )
    return box_of(item), dtypes.to_stored(leaves.to_numpy(tensor.detach().cpu()), where=fqn)


def _cut(held: Sequence[Part], box: Box) -> np.ndarray:
    home, array = next(part for part in held if part[0].contains(box))
    return array[(..., *box.slices(home.start))]  # the ellipsis keeps a 0-d array an array


def _encoded(found: Iterable[ValueFacts]) -> dict[str, Any]:
    return {value.name: values.encode(value.value, where=show_path(value.component, value.path)) for value in found}
