"""A generation as DCP sees it: which keys a state dict may have, and what lies under each.

The leaves are put together to the nested state dict that they are, with a stand-in for every array, and DCP's own
planner takes it apart again: so the keys are those that it will ask for, whoever wrote the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptcore import nested
from ckptcore.errors import UnsupportedLeaf
from ckptcore.names import Path
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf
from torchckpt import leaves
from torchckpt.backend import NUMPY
from torchckpt.dcp import keys


@dataclass(frozen=True)
class HostArray:
    """A stand-in for a stored array that comes back as a numpy array, or as bytes."""

    leaf: StoredLeaf
    is_bytes: bool


@dataclass(frozen=True)
class Catalogue:
    """The entries of one generation by DCP's keys: a stored tensor, or an object with stand-ins for arrays in it."""

    checkpoint: Checkpoint
    tensors: Mapping[str, StoredLeaf]
    objects: Mapping[str, Any]
    paths: Mapping[str, tuple[str | int, ...]]

    def metadata(self) -> Metadata:
        """What DCP plans a load with. Every tensor is one chunk: what is read of it is up to the reader."""
        entries: dict[str, STORAGE_TYPES] = {key: _tensor(leaf) for key, leaf in self.tensors.items()}
        entries.update({key: BytesStorageMetadata() for key in self.objects})
        return Metadata(entries, planner_data=dict(self.paths), storage_data=str(self.checkpoint.generation))


def catalogue(checkpoint: Checkpoint, root: str | None) -> Catalogue:
    """The global leaves of a generation. The component `root` lies at the top of the state dict. Reads all values."""
    table = _Table(checkpoint)
    state: dict[str, Any] = {}
    for component in checkpoint.names:
        if checkpoint.ranks(component) == [None]:
            tree = table.tree(component)
            state.update(tree if component == root and isinstance(tree, dict) else {component: tree})
    planner = DefaultSavePlanner()
    planner.set_up_planner(state)
    tensors = {key: table.tensors[id(value)] for key, value in planner.state_dict.items() if id(value) in table.tensors}
    objects = {key: value for key, value in planner.state_dict.items() if key not in tensors}
    paths = dict(planner.mappings)
    for path, value in table.flat_groups():
        key = ".".join(path)
        if key not in paths:
            objects[key], paths[key] = value, path
    return Catalogue(checkpoint, tensors, objects, paths)


def filled(value: Any, array_of: Callable[[HostArray], Any]) -> Any:
    """An object with its stand-ins replaced, in containers of its own."""
    if isinstance(value, HostArray):
        return array_of(value)
    if type(value) is dict:
        return {key: filled(child, array_of) for key, child in value.items()}
    return type(value)(filled(child, array_of) for child in value) if type(value) in (list, tuple) else value


def host_arrays(value: Any) -> Iterator[HostArray]:
    """The stand-ins in an object."""
    if isinstance(value, HostArray):
        yield value
    elif type(value) in (dict, list, tuple):
        for child in value.values() if type(value) is dict else value:
            yield from host_arrays(child)


@dataclass
class _Table:
    """Builds the nested state dict; remembers which stand-in is which leaf."""

    checkpoint: Checkpoint
    tensors: dict[int, StoredLeaf] = field(default_factory=dict)
    _groups: dict[str, list[keys.Group]] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def tree(self, component: str) -> Any:
        found: dict[Path, Any] = {}
        groups: list[keys.Group] = []
        for leaf in self.checkpoint.leaves(component).values():
            path = tuple(leaf.record.path)
            value = self._stand_in(leaf, path) if isinstance(leaf.record, ArrayLeaf) else self.checkpoint.value(leaf)
            if keys.is_group(component, path, value):
                groups.append(value)
            else:
                found[path[:-1] if path and path[-1] == nested.BYTES else path] = value
        self._groups[component] = groups
        tree = nested.build(found, where=component)
        return {**tree, keys.GROUPS: [dict(group) for group in groups]} if groups else tree

    def flat_groups(self) -> Iterator[tuple[tuple[str, str], Any]]:
        """The entries of parameter groups in a flat state dict."""
        for component, groups in self._groups.items():
            yield from keys.flat_entries(component, groups)

    def _stand_in(self, leaf: StoredLeaf, path: Path) -> Any:
        record = leaf.record
        if not isinstance(record, ArrayLeaf):
            raise TypeError(f"{leaf.name} is a value")
        is_bytes = bool(path) and path[-1] == nested.BYTES
        if is_bytes or record.memory_kind == NUMPY or not _has_torch_dtype(record.dtype):
            return HostArray(leaf, is_bytes)
        made = torch.empty(record.shape, dtype=leaves.torch_dtype(record.dtype, leaf.name), device="meta")
        self.tensors[id(made)] = leaf
        self._kept.append(made)  # an id is one object's only while that lives
        return made


def _tensor(leaf: StoredLeaf) -> TensorStorageMetadata:
    record = leaf.record
    if not isinstance(record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    size = torch.Size(record.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return TensorStorageMetadata(TensorProperties(dtype=leaves.torch_dtype(record.dtype, leaf.name)), size, [whole])


def _has_torch_dtype(name: str) -> bool:
    try:
        leaves.torch_dtype(name, "")
    except UnsupportedLeaf:
        return False
    return True
