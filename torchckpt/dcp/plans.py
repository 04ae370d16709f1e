"""From DCP's plan to this project's: the leaf table of all tensors, and what each rank needs to know. Pure.

DCP's planner has decided which rank writes which box. The chunk grid of an array is chosen so that every box is a
union of its cells, so a rank's chunks are those of its own boxes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from ckptcore import components as parts
from ckptcore import dtypes, records
from ckptcore.errors import CallError, UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, ComponentFacts, make_plan
from ckptcore.names import Path, array_name
from ckptcore.writer import Identity
from torchckpt import leaves
from torchckpt.dcp import keys


@dataclass(frozen=True, kw_only=True)
class Local:
    """What one rank has: its items before DCP leaves out replicas, the paths of their keys, and components of its own.

    `root` is the component of what lies at the top of the state dict.
    """

    items: Sequence[WriteItem]
    paths: Mapping[str, keys.DcpPath]
    root: str | None
    per_rank: Mapping[str, ComponentFacts]

    def place(self, fqn: str) -> tuple[str, Path]:
        """The component and the path of an entry."""
        return keys.place(self.paths.get(fqn, (fqn,)), self.root)

    def name(self, fqn: str) -> str:
        """The layout name of a tensor."""
        return array_name(*self.place(fqn))

    @cached_property
    def tensor_groups(self) -> frozenset[str]:
        """The components with tensors among their hyper-parameters: their groups are stored entry by entry."""
        places = (self.place(item.index.fqn) for item in self.items if item.tensor_data is not None)
        return frozenset(component for component, path in places if keys.group_place(component, path) is not None)


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What the coordinator tells one rank.

    `layout` is that of the tensors of all ranks, `compared` names those that several ranks hold whole by themselves, `bare` those
    without elements of which this rank writes the metadata. `keepers` gives for each object the lowest rank that has
    it; `alike` says that all ranks have the same keys.
    """

    identity: Identity
    guarantee: records.Guarantee
    topology: records.Topology
    lead: records.Lead | None
    layout: records.Layout
    compared: frozenset[str]
    bare: frozenset[str]
    keepers: Mapping[str, int]
    alike: bool
    chunk_bytes: int

    def keeper_of(self, fqn: str | None) -> int:
        """The rank that stores an object for all; of a parameter group (None) this one, if others have other groups."""
        if fqn is not None:
            return self.keepers[fqn]
        return 0 if self.alike else self.identity.rank


@dataclass(frozen=True, kw_only=True)
class Plans:
    """The plans of all ranks, by rank: what each has, and what DCP gives each to write."""

    local: Sequence[Local]
    final: Sequence[SavePlan]
    chunk_bytes: int

    @cached_property
    def arrays(self) -> list[ArrayFacts]:
        """Every tensor with its boxes and who writes each. Raises `UnsupportedLeaf` for one that ranks see differently."""
        found: dict[str, _Tensor] = {}
        for rank, plan in enumerate(self.final):
            for item in plan.items:
                if item.tensor_data is not None:
                    fqn = item.index.fqn
                    known = found.setdefault(fqn, _Tensor(*self.local[rank].place(fqn), item.tensor_data))
                    known.add(item.tensor_data, rank)
        return [tensor.facts() for tensor in found.values()]

    @cached_property
    def components(self) -> dict[str, ComponentFacts]:
        """All components. Raises `CallError` where the ranks' own ones differ, or are in the state dict too."""
        per_rank = self.local[0].per_rank
        for rank, local in enumerate(self.local):
            if local.per_rank.keys() != per_rank.keys():
                raise CallError(
                    f"per_rank: rank {rank} has {sorted(local.per_rank)}, rank 0 {sorted(per_rank)};"
                    " all ranks give the same names"
                )
        named = {local.place(item.index.fqn)[0] for local in self.local for item in local.items}
        twice = sorted(named & per_rank.keys())
        if twice:
            raise CallError(f"component {twice[0]!r} is in the state dict and in per_rank; rename one of them")
        return {**{name: ComponentFacts(kind=parts.kind_of(name), scope="global") for name in sorted(named)}, **per_rank}

    def tickets(
        self, identity: Identity, guarantee: records.Guarantee, topology: records.Topology, lead: records.Lead
    ) -> list[Ticket]:
        """One for each rank."""
        layout, bare = self._layout(), self._bare()
        told = [self._objects(local) for local in self.local]
        lowest = {fqn: rank for rank in reversed(range(len(told))) for fqn in told[rank]}
        holders = Counter(name for rank in range(len(self.local)) for name in self._whole(rank))
        compared = frozenset(name for name, count in holders.items() if count > 1)
        alike = len({frozenset(item.index.fqn for item in local.items) for local in self.local}) == 1
        return [
            Ticket(
                identity=replace(identity, rank=rank),
                guarantee=guarantee,
                topology=topology,
                lead=lead if rank == 0 else None,
                layout=layout,
                compared=compared & self._whole(rank),
                bare=frozenset(name for name, owner in bare.items() if owner == rank),
                keepers={fqn: lowest[fqn] for fqn in told[rank]},
                alike=alike,
                chunk_bytes=self.chunk_bytes,
            )
            for rank in range(len(self.local))
        ]

    def _layout(self) -> records.Layout:
        named = {array.component for array in self.arrays}
        facts = {name: component for name, component in self.components.items() if name in named}
        return make_plan(facts, self.arrays, (), rank=0, chunk_bytes=self.chunk_bytes).layout

    def _bare(self) -> dict[str, int]:
        return {array.name: next(iter(array.shards.values()))[0] for array in self.arrays if 0 in array.shape}

    def _whole(self, rank: int) -> set[str]:
        """The tensors that a rank holds whole by itself."""
        local = self.local[rank]
        return {local.name(item.index.fqn) for item in local.items if item.type == WriteItemType.TENSOR}

    def _objects(self, local: Local) -> set[str]:
        return {item.index.fqn for item in local.items if item.type == WriteItemType.BYTE_IO}


@dataclass
class _Tensor:
    component: str
    path: Path
    told: TensorWriteData
    shards: dict[Box, tuple[int, ...]] = field(default_factory=dict)

    def add(self, told: TensorWriteData, rank: int) -> None:
        if (told.size, told.properties.dtype) != (self.told.size, self.told.properties.dtype):
            raise UnsupportedLeaf(
                f"{array_name(self.component, self.path)}: rank {rank} has it as {told.properties.dtype}{list(told.size)},"
                f" another rank as {self.told.properties.dtype}{list(self.told.size)}"
            )
        start = tuple(told.chunk.offsets)
        box = Box(start, tuple(a + b for a, b in zip(start, told.chunk.sizes, strict=True)))
        if 0 in told.size:
            self.shards.setdefault(Box.whole(told.size), (rank,))
        elif not box.is_empty:
            self.shards[box] = tuple(sorted({*self.shards.get(box, ()), rank}))

    def facts(self) -> ArrayFacts:
        dtype = leaves.dtype_name(self.told.properties.dtype, array_name(self.component, self.path))
        return ArrayFacts(
            component=self.component,
            path=self.path,
            dtype=dtype,
            stored_dtype=dtypes.stored_name(dtype),
            shape=tuple(self.told.size),
            itemsize=dtypes.itemsize(dtype),
            shards=self.shards,
        )
