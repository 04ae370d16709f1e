"""The JAX backend: pytrees and shardings on one side, the core's leaves and boxes on the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from ckptcore import components as parts
from ckptcore import dtypes, nested, plain, records
from ckptcore.backend import Flat, Found, Staged, Target, Wanted
from ckptcore.channel import Channel
from ckptcore.errors import CallError
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.names import Path, show_path
from jaxckpt import leaves, placing, shards, staging, tree
from jaxckpt.channel import open_channel
from jaxckpt.staging import Source

_COMPUTING = ("jax", "jaxlib", "flax", "optax")
_LIBRARIES = ("jaxckpt", *_COMPUTING, "numpy", "tensorstore")

LocalBoxes = Callable[[jax.sharding.Sharding, tuple[int, ...]], tuple[Box, ...]]


@dataclass(frozen=True)
class JaxBackend:
    """`ckptcore.backend.Backend` for JAX. `label` (the run's URL) keeps the channels of two runs apart."""

    label: str = ""
    framework: str = field(default="jax", init=False)
    partial: bool = field(default=False, init=False)

    def channel(self) -> Channel:
        """A new channel over all JAX processes. Every process opens its channels in the same order."""
        return open_channel(self.label)

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that are installed, and of Python."""
        return plain.versions(_LIBRARIES)

    @property
    def computing(self) -> frozenset[str]:
        """JAX, and what makes the functions that it compiles."""
        return frozenset(_COMPUTING)

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:
        """The running job: processes, devices and `meshes`."""
        return shards.topology(meshes)

    def flatten(self, components: Mapping[str, Any]) -> JaxFlat:
        """The leaves of `components`. Raises `UnsupportedLeaf` naming the path and the type."""
        return flatten(components)

    def target(self, like: Mapping[str, Any], components: Collection[str]) -> JaxTarget:
        """What a restore into `components` of `like` needs. Raises `UnsupportedLeaf` naming the path and the type."""
        return target({name: component for name, component in like.items() if name in components})

    def release(self) -> None:
        """Nothing is kept: every snapshot is let go when it is written."""


@dataclass(frozen=True, kw_only=True)
class JaxFlat(Flat):
    """The leaves of a JAX program's state, and the arrays behind them until they are staged."""

    sources: dict[str, Source] = field(repr=False)

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:
        """See `Flat.stage`. Call it before the arrays are donated.

        It succeeds once: then the arrays are let go, so that no device memory is kept while the snapshot is written.
        """
        if self.arrays and not self.sources:
            raise CallError("this state was staged before; flatten it again")
        staged = staging.stage(self.sources, own, replicated, limit)
        self.sources.clear()
        return staged


@dataclass(frozen=True, kw_only=True)
class JaxTarget(Target):
    """A restore target. `slots` are its leaves, `trees` build its components from new ones."""

    like: Mapping[str, Any] = field(repr=False)
    trees: Mapping[str, tree.Tree] = field(repr=False)
    slots: Mapping[str, Sequence[tuple[Wanted, Any]]] = field(repr=False)

    def place(self, found: Mapping[str, Found]) -> Mapping[str, Any]:
        """See `Target.place`. Nothing is changed in place before every array is made."""
        transfers = placing.Transfers()
        ready = {name: [_ready(*slot, found, transfers) for slot in slots] for name, slots in self.slots.items()}
        transfers.start()
        made = {name: [leaf() for leaf in leaves_] for name, leaves_ in ready.items()}
        for wanted, leaf in (slot for slots in self.slots.values() for slot in slots):
            if wanted.kind == "any" and wanted.name in found:
                where = show_path(wanted.component, wanted.path)
                parts.set_state(leaf, found[wanted.name].tree(where=where), where=where)
        return {name: _rewrapped(self.like[name], self.trees[name].build(made[name])) for name in self.like}


def flatten(components: Mapping[str, Any]) -> JaxFlat:
    """Flatten components: trees, or objects with state, each perhaps in a `PerRank` or `RankZero`."""
    facts: dict[str, ComponentFacts] = {}
    arrays: list[ArrayFacts] = []
    values: list[ValueFacts] = []
    sources: dict[str, Source] = {}
    # Many leaves share sharding and shape; on many devices the boxes are what takes time.
    holders = cache(shards.holders)
    for name, component in components.items():
        inner, scope, rank_zero = parts.unwrap(component)
        facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
        for path, leaf in map(_unpacked, _stored_leaves(name, inner)):
            if not leaves.is_array(leaf):
                values.append(ValueFacts(component=name, path=path, value=leaf))
                continue
            array, source = _array(name, path, leaf, facts[name], holders)
            arrays.append(array)
            sources[array.name] = source
    shardings = (source.data.sharding for source in sources.values() if isinstance(source.data, jax.Array) and not source.local)
    return JaxFlat(components=facts, arrays=arrays, values=values, meshes=shards.mesh_records(shardings), sources=sources)


def target(like: Mapping[str, Any]) -> JaxTarget:
    """The restore target that `like` describes: trees of arrays, abstract arrays and values, or objects with state."""
    facts: dict[str, ComponentFacts] = {}
    trees: dict[str, tree.Tree] = {}
    slots: dict[str, list[tuple[Wanted, Any]]] = {}
    boxes = cache(_local_boxes)  # as in `flatten`
    for name, component in like.items():
        inner, scope, rank_zero = parts.unwrap(component)
        facts[name] = ComponentFacts(kind=parts.kind_of(name), scope=scope, rank_zero=rank_zero)
        trees[name] = tree.flatten(name, inner)
        slots[name] = [(_wanted(name, path, leaf, boxes, rank_scoped=scope == "rank"), leaf) for path, leaf in trees[name].leaves]
    wanted = [wanted for component in slots.values() for wanted, _ in component]
    places = (leaf.sharding for component in slots.values() for _, leaf in component if _has_place(leaf))
    return JaxTarget(components=facts, wanted=wanted, meshes=shards.mesh_records(places), like=like, trees=trees, slots=slots)


def _stored_leaves(component: str, inner: Any) -> Iterator[tuple[Path, Any]]:
    """The leaves as they are stored: arrays and values. Empty nodes are values, objects with state give theirs."""
    for path, leaf in tree.flatten(component, inner).leaves:
        if tree.is_empty_node(leaf):
            yield path, plain.empty_node(leaf)
        elif leaves.is_array(leaf) or plain.is_value(leaf):
            yield path, leaf
        elif parts.is_stateful(leaf):
            where = show_path(component, path)
            yield from ((path + below, item) for below, item in nested.split(parts.get_state(leaf), leaves.is_array, where=where))
        else:
            raise leaves.unsupported(leaf, show_path(component, path))


def _unpacked(item: tuple[Path, Any]) -> tuple[Path, Any]:
    """Bytes that are too long for a value become an array, under a path that says so."""
    path, leaf = item
    return ((*path, nested.BYTES), np.frombuffer(leaf, np.uint8)) if plain.is_long(leaf) else item


def _array(
    component: str, path: Path, leaf: Any, facts: ComponentFacts, holders: Callable[..., dict[Box, tuple[int, ...]]]
) -> tuple[ArrayFacts, Source]:
    found = leaves.array_source(leaf, show_path(component, path))
    sharding = found.data.sharding if isinstance(found.data, jax.Array) else None
    local = sharding is None or not shards.spans_processes(sharding) or (facts.scope == "rank" and sharding.is_fully_addressable)
    stored = dtypes.stored_name(found.dtype)
    itemsize = dtypes.itemsize(found.dtype)
    array = ArrayFacts(
        component=component,
        path=path,
        dtype=found.dtype,
        stored_dtype=stored,
        shape=found.shape,
        itemsize=itemsize,
        shards=_local_holders(found.shape, facts) if sharding is None or local else holders(sharding, found.shape),
        weak_type=found.weak_type,
        prng_impl=found.prng_impl,
        memory_kind=None if sharding is None else shards.memory_kind(sharding),
        sharding=None if sharding is None or local else shards.describe(sharding),
        host_replicated=local and facts.scope == "global" and not facts.rank_zero,
    )
    return array, Source(found.data, local, itemsize)


def _local_holders(shape: tuple[int, ...], facts: ComponentFacts) -> dict[Box, tuple[int, ...]]:
    """Who counts as holder of an array that each rank holds whole."""
    if facts.scope == "rank":
        return {}
    return {Box.whole(shape): (0,) if facts.rank_zero else tuple(range(jax.process_count()))}


def _wanted(component: str, path: Path, leaf: Any, boxes: LocalBoxes, *, rank_scoped: bool) -> Wanted:
    """What one leaf of the target needs."""
    where = show_path(component, path)
    make = partial(Wanted, component=component, path=path, rank_scoped=rank_scoped)
    if tree.is_empty_node(leaf):
        return make(kind="empty", value=plain.empty_node(leaf))
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return _wanted_device(make, leaf, where, boxes)
    if plain.is_long(leaf):
        return make(path=(*path, nested.BYTES), kind="array", dtype="uint8")
    if leaves.is_array(leaf):
        shape = tuple(leaf.shape)
        return make(kind="array", dtype=dtypes.name_of(leaf.dtype, where=where), shape=shape, boxes=(Box.whole(shape),))
    if plain.is_value(leaf):
        scalar = plain.scalar_kind(leaf)
        return make(kind="value", value=leaf, scalar=scalar, boxes=() if scalar is None else (Box.whole(()),))
    if parts.is_stateful(leaf):
        return make(kind="any")
    raise leaves.unsupported(leaf, where)


def _wanted_device(make: Callable[..., Wanted], leaf: jax.Array | jax.ShapeDtypeStruct, where: str, boxes: LocalBoxes) -> Wanted:
    facts, impl = leaves.key_data_facts(leaf) if leaves.is_key(leaf) else (leaf, None)
    if jax.dtypes.canonicalize_dtype(facts.dtype) != facts.dtype:
        raise CallError(f"{where}: JAX has no {facts.dtype} arrays unless jax_enable_x64 is set; set it, or restore to numpy")
    shape = tuple(facts.shape)
    sharding = placing.device_sharding(leaf, where)
    return make(
        kind="array",
        dtype=dtypes.name_of(np.dtype(facts.dtype), where=where),
        shape=shape,
        boxes=(Box.whole(shape),) if sharding is None else boxes(sharding, shape),
        prng_impl=impl,
        weak_type=bool(getattr(leaf, "weak_type", False)),
    )


def _local_boxes(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> tuple[Box, ...]:
    local = sharding.addressable_devices
    return tuple(dict.fromkeys(box for device, box in shards.boxes(sharding, shape).items() if device in local))


def _has_place(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and leaf.sharding is not None


def _ready(wanted: Wanted, leaf: Any, found: Mapping[str, Found], transfers: placing.Transfers) -> placing.Ready:
    """What gives the new leaf. Empty nodes and objects with state stay what they are."""
    if wanted.kind in {"any", "empty"}:
        return lambda: leaf
    if wanted.name not in found:
        kept = placing.keep(leaf, wanted)
        return lambda: kept
    return placing.place(leaf, wanted, found[wanted.name], transfers)


def _rewrapped(like: Any, value: Any) -> Any:
    """`value` in the wrapper that the component has in the target, so that it can be saved again as it is."""
    return type(like)(value) if isinstance(like, parts.PerRank | parts.RankZero) else value
