"""A restore target of torch: tensors and objects that are filled in place.

Everything is prepared before anything is changed, so a restore that does not fit leaves the
target as it was. Tensors keep their identity and memory; plain values come back in new containers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from ckptcore import components as parts
from ckptcore import dtypes, nested, plain
from ckptcore.backend import Found, Target, Wanted
from ckptcore.errors import StructureMismatch, UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.layout import ComponentFacts
from ckptcore.names import Path, array_name, show_path
from torchckpt import gradients, leaves, memory, modules, nodes, objects, optimizers, shards, tree
from torchckpt.gradients import Gradients
from torchckpt.shards import Places
from torchckpt.slots import Slot

Action = Callable[[], Any]
"""Puts what was prepared in place, and returns the leaf that takes the old one's place."""


class _Part(Protocol):
    """One node of the target: what it wants, and how it is filled."""

    @property
    def wanted(self) -> Sequence[Wanted]: ...

    def prepare(self, found: Mapping[str, Found]) -> Action:
        """Make ready what was found under the wanted names, and change nothing. What is absent there stays as it is."""
        ...


@dataclass(frozen=True, kw_only=True)
class TorchTarget(Target):
    """A restore target. `filled` are its nodes in the order of `tree.walk`."""

    like: Mapping[str, Any] = field(repr=False)
    filled: Mapping[str, Sequence[_Part]] = field(repr=False)

    def place(self, found: Mapping[str, Found]) -> Mapping[str, Any]:
        """See `Target.place`."""
        ready = {name: [part.prepare(found) for part in parts_] for name, parts_ in self.filled.items()}
        with torch.no_grad():
            # Random generators last: an object may draw from them when it takes its state.
            order = sorted(ready, key=lambda name: self.components[name].kind == "rng")
            made = {name: iter([action() for action in ready[name]]) for name in order}
        return {name: _rewrapped(component, made[name]) for name, component in self.like.items()}


def target(like: Mapping[str, Any], components: Collection[str], places: Places) -> TorchTarget:
    """The restore target that `components` of `like` describe; optimizers know their parameters by all of it.

    Raises `UnsupportedLeaf` naming the path and the type.
    """
    facts: dict[str, ComponentFacts] = {}
    filled: dict[str, list[_Part]] = {}
    names = nodes.ParameterNames(like)
    chosen = {name: component for name, component in like.items() if name in components}
    for name, component in chosen.items():
        inner, scope, rank_zero = parts.unwrap(component)
        facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
        make = _Maker(name, names, places, rank_scoped=scope == "rank")
        filled[name] = _once([make.part(path, node) for path, node in tree.walk(name, inner)])
    every = [part for parts_ in filled.values() for part in parts_]
    wanted = [leaf for part in every for leaf in part.wanted]
    _check_names(wanted)
    meshes = shards.mesh_records([tensor.node for part in every for tensor in _tensor_parts(part)])
    return TorchTarget(components=facts, wanted=wanted, meshes=meshes, like=chosen, filled=filled)


@dataclass(frozen=True)
class _Maker:
    """Makes the parts of one component."""

    component: str
    names: nodes.ParameterNames
    places: Places
    rank_scoped: bool

    def part(self, path: Path, node: Any) -> _Part:
        """The part for one node of `tree.walk`."""
        if isinstance(node, torch.nn.Module):
            return _Object(
                node, [*self._module_tensors(path, node), *self._slots(modules.extra_slots(node, path, self.component))]
            )
        if isinstance(node, torch.optim.Optimizer):
            return _Object(node, self._slots(optimizers.slots(node, self.names.of(node), path, self.component)))
        if isinstance(node, Gradients):
            return _Object(node, self._slots(gradients.slots(node, path, self.component, self.places)))
        if isinstance(node, torch.Tensor):
            return self._tensor(path, node)
        if nodes.is_empty(node):
            return _Value(node, self._wanted(path, kind="empty", value=plain.empty_node(node)))
        if plain.is_long(node):
            return _Value(node, self._wanted((*path, nested.BYTES), kind="array", dtype="uint8"))
        if leaves.is_array(node):
            return self._host_array(path, node)
        if plain.is_value(node):
            scalar = plain.scalar_kind(node)
            boxes = () if scalar is None else (Box.whole(()),)
            return _Value(node, self._wanted(path, kind="value", value=node, scalar=scalar, boxes=boxes))
        if parts.is_stateful(node):
            return _Object(node, self._slots([objects.slot(node, path, self.component)]))
        raise leaves.unsupported(node, show_path(self.component, path))

    def _wanted(self, path: Path, **facts: Any) -> Wanted:
        return Wanted(component=self.component, path=path, rank_scoped=self.rank_scoped, **facts)

    def _slots(self, slots: Sequence[Slot]) -> list[_Part]:
        return [
            _Taker(slot, self._wanted(slot.path, kind="any", optional=slot.optional, boxes_of=slot.boxes_of)) for slot in slots
        ]

    def _module_tensors(self, path: Path, module: torch.nn.Module) -> Iterator[_Part]:
        for held in modules.tensors(module, self.component, path):
            tied = tuple(array_name(self.component, (*path, ("key", name))) for name in held.tied)
            yield self._tensor((*path, ("key", held.name)), held.tensor, tied)

    def _tensor(self, path: Path, tensor: torch.Tensor, tied: tuple[str, ...] = ()) -> _Part:
        where = show_path(self.component, path)
        if tensor.is_meta and type(tensor) is torch.Tensor:
            shape = tuple(tensor.shape)
            dtype = leaves.dtype_name(tensor.dtype, where)
            return _Abstract(where, self._wanted(path, kind="array", dtype=dtype, shape=shape, boxes=(Box.whole(shape),)))
        leaves.check(tensor, where)
        if memory.overlaps_itself(tensor):
            raise UnsupportedLeaf(
                f"{where}: an expanded tensor cannot be filled in place (elements of it share memory); restore into its .clone()"
            )
        place = self.places.of(tensor, where)
        dtype = leaves.dtype_name(tensor.dtype, where)
        boxes = (place.own,)
        return _Tensor(tensor, self._wanted(path, kind="array", dtype=dtype, shape=place.shape, boxes=boxes, tied=tied))

    def _host_array(self, path: Path, array: Any) -> _Part:
        where, shape = show_path(self.component, path), tuple(array.shape)
        dtype = dtypes.name_of(array.dtype, where=where)
        return _Host(array, self._wanted(path, kind="array", dtype=dtype, shape=shape, boxes=(Box.whole(shape),)))


@dataclass(frozen=True)
class _Single:
    """A part that wants one leaf."""

    node: Any
    leaf: Wanted

    @property
    def wanted(self) -> Sequence[Wanted]:
        return (self.leaf,)

    def prepare(self, found: Mapping[str, Found]) -> Action:
        if self.leaf.name not in found:
            return self.keep
        return self.ready(found[self.leaf.name])

    def keep(self) -> Any:
        return self.node

    def ready(self, found: Found) -> Action:
        raise NotImplementedError


class _Tensor(_Single):
    """A tensor, plain or sharded, whose local part is filled."""

    def ready(self, found: Found) -> Action:
        source = leaves.from_numpy(_array(self.leaf, found))
        local = shards.local(self.node)

        def fill() -> torch.Tensor:
            local.copy_(source.reshape(local.shape))
            return self.node

        return fill


@dataclass(frozen=True)
class _Filled:
    """A tensor that is filled under another of its names."""

    node: torch.Tensor
    wanted: Sequence[Wanted] = ()

    def prepare(self, found: Mapping[str, Found]) -> Action:  # noqa: ARG002 -- the other name has it
        return lambda: self.node


class _Abstract(_Single):
    """A meta tensor: a new tensor on the CPU takes its place. The node is what it is called in errors."""

    def ready(self, found: Found) -> Action:
        made = leaves.from_numpy(_array(self.leaf, found))
        return lambda: made

    def keep(self) -> Any:
        raise StructureMismatch(
            "the target cannot fill what the checkpoint lacks", [f"{self.node}: only a meta tensor; give a real one to keep"]
        )

    def prepare(self, found: Mapping[str, Found]) -> Action:
        return self.keep() if self.leaf.name not in found else super().prepare(found)


class _Host(_Single):
    """A numpy array, filled in place if it can be written to; a numpy scalar is replaced."""

    def ready(self, found: Found) -> Action:
        array = _array(self.leaf, found)
        if isinstance(self.node, np.generic):
            return lambda: array.astype(self.node.dtype)[()]
        if not self.node.flags.writeable:
            return lambda: array.astype(self.node.dtype)

        def fill() -> np.ndarray:
            self.node[...] = array
            return self.node

        return fill


class _Value(_Single):
    """A JSON value, an empty node, or long bytes."""

    def ready(self, found: Found) -> Action:
        if self.leaf.kind == "empty":
            return lambda: self.node
        if found.boxes is None:
            return lambda: found.value
        value = next(iter(found.boxes.values()))
        made = value.tobytes() if isinstance(self.node, bytes) else type(self.node)(value[()])
        return lambda: made


@dataclass(frozen=True)
class _Taker:
    """A slot: it takes whatever lies below its path."""

    slot: Slot
    leaf: Wanted

    @property
    def wanted(self) -> Sequence[Wanted]:
        return (self.leaf,)

    def prepare(self, found: Mapping[str, Found]) -> Action:
        there = found.get(self.leaf.name)
        if there is None and not self.slot.optional:
            return lambda: None  # the checkpoint lacks it, and the caller has allowed that
        return self.slot.prepare(there)


@dataclass(frozen=True)
class _Object:
    """A module, an optimizer or another object: filled through the parts that it has."""

    node: Any
    parts: Sequence[_Part]

    @property
    def wanted(self) -> Sequence[Wanted]:
        return [leaf for part in self.parts for leaf in part.wanted]

    def prepare(self, found: Mapping[str, Found]) -> Action:
        actions = [part.prepare(found) for part in self.parts]

        def fill() -> Any:
            for action in actions:
                action()
            return self.node

        return fill


def _once(found: Sequence[_Part]) -> list[_Part]:
    """The parts of a component, everything in memory wanted once, under all names that it has there."""
    names: dict[memory.Place, list[str]] = {}
    firsts: list[tuple[str, torch.Tensor]] = []
    for tensor in (tensor for part in found for tensor in _tensor_parts(part)):
        known = names.setdefault(memory.place(tensor.node), [])
        if not known:
            firsts.append((show_path(tensor.leaf.component, tensor.leaf.path), tensor.node))
        known.extend((tensor.leaf.name, *tensor.leaf.tied))
    memory.check_apart(firsts)

    def once(part: _Part) -> _Part:
        if isinstance(part, _Object):
            return _Object(part.node, [once(below) for below in part.parts])
        if not isinstance(part, _Tensor):
            return part
        known = names.pop(memory.place(part.node), None)
        return _Filled(part.node) if known is None else _Tensor(part.node, replace(part.leaf, tied=tuple(known[1:])))

    return [once(part) for part in found]


def _check_names(wanted: Sequence[Wanted]) -> None:
    """Parts of one name space (`Merged`) have to differ in their names. (What takes whatever is stored may be there twice.)"""
    count = Counter(leaf.name for leaf in wanted if leaf.kind != "any")
    for name, times in count.items():
        if times > 1:
            raise UnsupportedLeaf(f"{name}: {times} tensors of the target have this name; give each a name of its own")


def _tensor_parts(part: _Part) -> Iterator[_Tensor]:
    if isinstance(part, _Tensor):
        yield part
    for below in part.parts if isinstance(part, _Object) else ():
        yield from _tensor_parts(below)


def _array(wanted: Wanted, found: Found) -> np.ndarray:
    """The one box that a leaf wanted; a stored Python number as a 0-d array of the target's dtype, which holds it."""
    if found.boxes is not None:
        return next(iter(found.boxes.values()))
    with np.errstate(over="ignore"):  # a cast that the caller asked for
        return np.array(found.value).astype(dtypes.numpy_dtype(wanted.dtype or ""))


def _rewrapped(like: Any, made: Iterator[Any]) -> Any:
    """The component with its filled nodes, in the wrapper that it has in the target."""
    built = tree.build(parts.unwrap(like)[0], lambda _: next(made))
    return type(like)(built) if isinstance(like, parts.PerRank | parts.RankZero) else built
