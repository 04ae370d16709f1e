"""The PyTorch backend: modules, optimizers and tensors on one side, the core's leaves and boxes on the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ckptcore import components as parts
from ckptcore import dtypes, nested, plain, records
from ckptcore.backend import Flat, Staged
from ckptcore.channel import Channel
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.names import Path, array_name, show_path
from torchckpt import gradients, leaves, modules, nodes, objects, optimizers, shards, staging, tree
from torchckpt.channel import open_channel
from torchckpt.gradients import Gradients
from torchckpt.objects import NUMPY
from torchckpt.shards import Places
from torchckpt.slots import Leaf
from torchckpt.staging import Slab, Source
from torchckpt.target import TorchTarget, target

_COMPUTING = ("torch",)
_LIBRARIES = ("jaxckpt", *_COMPUTING, "numpy", "tensorstore")


@dataclass(frozen=True)
class TorchBackend:
    """`ckptcore.backend.Backend` for PyTorch. `label` (the run's URL) keeps the channels of two runs apart.

    It owns the host memory that snapshots are copied to, which every save uses again.
    """

    label: str = ""
    framework: str = field(default="torch", init=False)
    _slab: Slab = field(default_factory=Slab, init=False, repr=False)
    _places: Places = field(default_factory=Places, init=False, repr=False)

    @property
    def partial(self) -> bool:
        """In a job of several ranks each knows its own leaves and meshes only."""
        return shards.world_size() > 1

    def channel(self) -> Channel:
        """A new channel over all ranks of the process group. Every rank opens its channels in the same order."""
        return open_channel(self.label)

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that are installed, and of Python."""
        return plain.versions(_LIBRARIES)

    @property
    def computing(self) -> frozenset[str]:
        """PyTorch alone computes a step."""
        return frozenset(_COMPUTING)

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:
        """The running job: ranks, their devices and `meshes`."""
        return shards.topology(meshes)

    def flatten(self, components: Mapping[str, Any]) -> TorchFlat:
        """The leaves of `components`. Raises `UnsupportedLeaf` naming the path and the type."""
        return flatten(components, self._slab, self._places)

    def target(self, like: Mapping[str, Any], components: Collection[str]) -> TorchTarget:
        """What a restore into `components` of `like` needs. Raises `UnsupportedLeaf` naming the path and the type."""
        return target(like, components, self._places)

    def release(self) -> None:
        """Give the snapshot's memory back."""
        self._slab.release()


@dataclass(frozen=True, kw_only=True)
class TorchFlat(Flat):
    """The leaves of a torch program's state, and the tensors behind them until they are staged."""

    sources: dict[str, Source] = field(repr=False)
    slab: Slab = field(repr=False)

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:
        """See `Flat.stage`. The snapshot lies in the slab: it holds until the next one is taken."""
        staged = staging.stage(self.slab, self.sources, own, replicated, limit)
        self.sources.clear()
        return staged


def flatten(components: Mapping[str, Any], slab: Slab, places: Places) -> TorchFlat:
    """Flatten components: trees of tensors, modules, optimizers and objects, each perhaps in a `PerRank` or `RankZero`."""
    facts: dict[str, ComponentFacts] = {}
    arrays: list[ArrayFacts] = []
    values: list[ValueFacts] = []
    sources: dict[str, Source] = {}
    names = nodes.ParameterNames(components)
    for name, component in components.items():
        inner, scope, rank_zero = parts.unwrap(component)
        inexact = next(filter(None, (objects.inexact(node) for _, node in tree.walk(name, inner))), None)
        facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero, inexact=inexact)
        for leaf in _tied(map(_unpacked, _leaves(name, inner, names))):
            if not leaves.is_array(leaf.data):
                values.append(ValueFacts(component=name, path=leaf.path, value=leaf.data))
                continue
            array, source = _array(name, leaf, facts[name], places)
            arrays.append(array)
            sources[array.name] = source
    tensors = [source.data for source in sources.values() if isinstance(source.data, torch.Tensor)]
    meshes = shards.mesh_records(tensors)
    return TorchFlat(components=facts, arrays=arrays, values=values, meshes=meshes, sources=sources, slab=slab)


def _leaves(component: str, inner: Any, names: nodes.ParameterNames) -> Iterator[Leaf]:
    """The leaves as they are stored: arrays and values. Empty containers are values, objects give theirs."""
    for path, node in tree.walk(component, inner):
        if isinstance(node, torch.nn.Module):
            yield from modules.leaves(node, path, component)
        elif isinstance(node, torch.optim.Optimizer):
            yield from optimizers.leaves(node, names.of(node), path, component)
        elif isinstance(node, Gradients):
            yield from gradients.leaves(node, path, component)
        elif nodes.is_empty(node) or leaves.is_array(node) or plain.is_value(node):
            yield Leaf(path=path, data=node)
        elif parts.is_stateful(node):
            yield from objects.leaves(node, path, component)
        else:
            raise leaves.unsupported(node, show_path(component, path))


def _unpacked(leaf: Leaf) -> Leaf:
    """Bytes that are too long for a value become an array, under a path that says so."""
    if not plain.is_long(leaf.data):
        return leaf
    return Leaf(path=(*leaf.path, nested.BYTES), data=np.frombuffer(leaf.data, np.uint8), lowest_counts=leaf.lowest_counts)


def _tied(found: Iterator[Leaf]) -> Iterator[Leaf]:
    """Let every further name of one tensor object be an alias of its first."""
    first: dict[int, Path] = {}
    for leaf in found:
        if leaf.tied_to is None and isinstance(leaf.data, torch.Tensor) and id(leaf.data) in first:
            yield Leaf(path=leaf.path, data=leaf.data, tied_to=first[id(leaf.data)], lowest_counts=leaf.lowest_counts)
            continue
        if isinstance(leaf.data, torch.Tensor):
            first.setdefault(id(leaf.data), leaf.path)
        yield leaf


def _array(component: str, leaf: Leaf, facts: ComponentFacts, places: Places) -> tuple[ArrayFacts, Source]:
    where, data = show_path(component, leaf.path), leaf.data
    if isinstance(data, torch.Tensor):
        leaves.check(data, where)
        dtype = leaves.dtype_name(data.dtype, where)
    else:
        dtype = dtypes.name_of(np.asarray(data).dtype, where=where)
    place = places.of(data, where)
    one_counts = leaf.lowest_counts or facts.rank_zero
    itemsize = dtypes.itemsize(dtype)
    array = ArrayFacts(
        component=component,
        path=leaf.path,
        dtype=dtype,
        stored_dtype=dtypes.stored_name(dtype),
        shape=place.shape,
        itemsize=itemsize,
        shards=_holders(place, facts, one_counts=one_counts),
        memory_kind=None if isinstance(data, torch.Tensor) else NUMPY,
        sharding=place.text,
        alias=None if leaf.tied_to is None else array_name(component, leaf.tied_to),
        host_replicated=place.local and facts.scope == "global" and not one_counts,
        local=place.local and facts.scope == "global",
    )
    return array, Source(data=data, own=place.own, itemsize=itemsize)


def _holders(place: shards.Place, facts: ComponentFacts, *, one_counts: bool) -> Mapping[Box, tuple[int, ...]]:
    """Who counts as holder: of what each rank holds whole, those of one component all ranks, or the lowest."""
    if facts.scope == "rank" and place.local:
        return {}
    return {box: ranks[:1] for box, ranks in place.boxes.items()} if place.local and one_counts else place.boxes
