"""Which box of a tensor lies on which rank, and the device meshes behind it. Facts only, no bytes.

A `DTensor` says what this rank holds. What the others hold follows from its shape, mesh and placements, so
nobody is asked. That is done here and not by torch, for which it takes milliseconds a tensor, and which is wrong
where FSDP2 and tensor parallelism cut one dimension unevenly: it cuts what remains of the tensor from the outer mesh
dimension inwards, while FSDP2 has cut each tensor-parallel shard by itself. What counts is the tensor in memory:
a rank whose own shard has another shape than it should have refuses to save it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import add
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from ckptcore import canonical, digests, records
from ckptcore.errors import UnsupportedLeaf
from ckptcore.geometry import Box


@dataclass(frozen=True)
class Split:
    """One mesh dimension cuts tensor dimension `dim`, after the mesh dimensions further right have cut it in `factor` parts."""

    dim: int
    factor: int = 1


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor lies.

    `shape` is global. `boxes` maps every distinct box that is not empty to the sorted ranks of the job that hold it; a
    tensor without elements is one whole box. `own` is what this rank holds, perhaps nothing. `local`: a plain tensor, which
    every rank that has it holds whole. `text` is mesh and placements for people, the same on every rank.
    """

    shape: tuple[int, ...]
    boxes: Mapping[Box, tuple[int, ...]]
    own: Box
    local: bool
    text: str | None


@dataclass
class Places:
    """The places of many tensors. Models have many tensors but few shapes and placements: each is worked out once."""

    _plain: dict[tuple[int, ...], Place] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Place] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor | np.ndarray | np.generic, where: str) -> Place:
        """See `place_of`."""
        if isinstance(tensor, DTensor):
            return self._sharded(tensor, where)
        shape = tuple(tensor.shape)
        if shape not in self._plain:
            whole = Box.whole(shape)
            self._plain[shape] = Place(shape=shape, boxes={whole: tuple(range(world_size()))}, own=whole, local=True, text=None)
        return self._plain[shape]

    def _sharded(self, tensor: DTensor, where: str) -> Place:
        key = (tuple(tensor.shape), tensor.device_mesh, tensor.placements, _shard_order(tensor))
        try:
            if key not in self._known:
                self._known[key] = _sharded_place(tensor)
            return _checked(self._known[key], tuple(local(tensor).shape))
        except UnsupportedLeaf as error:
            raise UnsupportedLeaf(f"{where}: {error}") from error


def place_of(tensor: torch.Tensor | np.ndarray | np.generic, where: str) -> Place:
    """The place of one tensor; use `Places` for many.

    Raises `UnsupportedLeaf`, naming the leaf `where`, for placements of which no rank can say what it holds: sums that
    are still to be made, unknown orders of cuts, a mesh without this rank.
    """
    return Places().of(tensor, where)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor that this rank holds, without autograd. Waits for a collective that still fills it."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            tensor = tensor.to_local()
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor.detach()


def boxes(shape: Sequence[int], mesh: Sequence[int], splits: Sequence[Split | None]) -> list[Box]:
    """The box at every place of a mesh of shape `mesh`, in C order, each mesh dimension splitting as `splits` says. Pure.

    A cut gives every part `ceil(extent / parts)` elements until none are left. Raises `UnsupportedLeaf`, without
    a name, if a factor does not say after which cuts its own comes.
    """
    orders = [_order(dim, mesh, splits) for dim in range(len(shape))]
    tables = [_intervals(extent, [mesh[axis] for axis in order]) for extent, order in zip(shape, orders, strict=True)]
    made: dict[tuple[tuple[int, int], ...], Box] = {}
    found: list[Box] = []
    for place in product(*map(range, mesh)):
        bounds = tuple([table[tuple([place[axis] for axis in order])] for table, order in zip(tables, orders, strict=True)])
        if bounds not in made:
            made[bounds] = Box(tuple([start for start, _ in bounds]), tuple([stop for _, stop in bounds]))
        found.append(made[bounds])
    return found


def mesh_records(tensors: Iterable[torch.Tensor]) -> list[records.Mesh]:
    """The distinct meshes, sorted: those of `tensors`, or, of those that leave out ranks, what they are parts of if that has all.

    All ranks of a mesh see it alike; what other ranks know of meshes that leave out this one they tell (`ckptcore.union`).
    """
    every = set(range(world_size()))
    meshes = {tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor)}
    candidates = ((mesh, mesh._get_root_mesh()) for mesh in meshes)  # noqa: SLF001 - nothing public says what a mesh is a part of
    spanning = (next((mesh for mesh in pair if set(_ranks(mesh)) == every), pair[0]) for pair in candidates)
    found = {canonical.encode(_mesh_facts(mesh)): mesh for mesh in spanning}
    return [_mesh_record(facts, found[facts]) for facts in sorted(found)]


def topology(meshes: Sequence[records.Mesh]) -> records.Topology:
    """The running job: its ranks, each with one device, and meshes."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return records.Topology(
        framework="torch",
        platform="cpu" if accelerator is None else accelerator.type,
        participants=world_size(),
        devices=world_size(),
        meshes=list(meshes),
    )


def world_size() -> int:
    """Ranks of the job: 1 without a process group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """This rank of the job: 0 without a process group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def _sharded_place(tensor: DTensor) -> Place:
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UnsupportedLeaf(
            f"rank {rank()} is not in the mesh of this DTensor, {sorted(_ranks(mesh))}: leave it out of what this rank saves"
        )
    splits = _splits(tensor, len(shape))
    sizes = tuple(mesh.shape)
    _check_tellable(shape, sizes, splits)
    text = _describe(mesh, splits)
    held = boxes(shape, sizes, splits)
    own = held[int(np.ravel_multi_index(coordinate, sizes))]
    if all(split is None or split.factor == 1 for split in splits):
        _agree(own, tensor, text)
    return Place(shape=shape, boxes=_holders(shape, held, _ranks(mesh)), own=own, local=False, text=text)


def _holders(shape: tuple[int, ...], held: Sequence[Box], ranks: Sequence[int]) -> dict[Box, tuple[int, ...]]:
    if 0 in shape:
        return {Box.whole(shape): tuple(sorted(ranks))}
    holders: dict[Box, list[int]] = {}
    for box, holder in zip(held, ranks, strict=True):
        holders.setdefault(box, []).append(holder)
    return {box: tuple(sorted(holding)) for box, holding in holders.items() if not box.is_empty}


def _agree(own: Box, tensor: DTensor, text: str) -> None:
    """Hold what was worked out for this rank against what torch says, which is right for splits without a factor."""
    chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.__create_chunk_list__()]
    told = [Box(start, tuple(map(add, start, shape))) for start, shape in chunks]
    if len(told) != 1 or (told[0] != own and not (told[0].is_empty and own.is_empty)):
        raise UnsupportedLeaf(f"{text}: this release takes the shard of rank {rank()} for {own}, torch for {told}; {_ADVICE}")


def _checked(place: Place, shape: tuple[int, ...]) -> Place:
    """`place`, unless this rank's shard has another shape in memory. Of what is empty, torch cuts the shape at will."""
    if place.own.shape != shape and not (place.own.is_empty and 0 in shape):
        raise UnsupportedLeaf(
            f"{place.text}: of shape {place.shape}, rank {rank()} should hold {place.own.shape}, but its shard has"
            f" shape {shape}; {_ADVICE}"
        )
    return place


def _check_tellable(shape: Sequence[int], mesh: Sequence[int], splits: Sequence[Split | None]) -> None:
    """Refuse uneven cuts of one dimension by three or more mesh dimensions in another order than theirs.

    They can be read in two ways that give every rank a shard of the same shape, so that no rank's memory would tell them apart.
    """
    for dim, extent in enumerate(shape):
        order = _order(dim, mesh, splits)
        if len(order) > TELLABLE_CUTS and order != sorted(order) and extent % math.prod(mesh[axis] for axis in order):
            raise UnsupportedLeaf(
                f"mesh dimensions {order} cut dimension {dim}, of {extent} elements, into uneven parts in another order than"
                f" theirs: which rank holds which of them cannot be told for certain; {_ADVICE}"
            )


TELLABLE_CUTS = 2
"""Of so few uneven cuts the shapes of the shards tell in which order they were made (`tests/torchckpt/test_shards.py`)."""

_ADVICE = "save the result of redistribute() to Shard and Replicate placements instead"


def _splits(tensor: DTensor, ndim: int) -> list[Split | None]:
    """The placements as splits. Raises `UnsupportedLeaf` for what is neither a shard nor a replica."""
    for entry in _shard_order(tensor):
        if list(entry.mesh_dims) != sorted(entry.mesh_dims):
            order = list(entry.mesh_dims)
            raise UnsupportedLeaf(
                f"mesh dimensions {order} cut dimension {entry.tensor_dim} in another order than theirs; {_ADVICE}"
            )
    return [_split(placement, ndim) for placement in tensor.placements]


def _shard_order(tensor: DTensor) -> tuple[Any, ...]:
    """In which order mesh dimensions cut a dimension: torch may keep one that is not theirs, of which placements say nothing."""
    return getattr(tensor._spec, "shard_order", None) or ()  # noqa: SLF001 - there is no public way to see it


def _split(placement: Placement, ndim: int) -> Split | None:
    if isinstance(placement, _StridedShard):
        return Split(placement.dim % ndim, int(placement.split_factor))
    if isinstance(placement, Shard):
        return Split(placement.dim % ndim)
    if isinstance(placement, Replicate):
        return None
    what = "a sum that is still to be made" if placement.is_partial() else "not known to this release"
    raise UnsupportedLeaf(f"placement {placement!r} is {what}; {_ADVICE}")


def _order(dim: int, mesh: Sequence[int], splits: Sequence[Split | None]) -> list[int]:
    """The mesh dimensions that cut tensor dimension `dim`, the first cut first."""
    order: list[int] = []
    for axis in reversed(range(len(splits))):
        split = splits[axis]
        if split is not None and split.dim == dim:
            order.insert(_place_in(order, mesh, split.factor), axis)
    return order


def _place_in(order: Sequence[int], mesh: Sequence[int], factor: int) -> int:
    """After which cuts one comes that finds `factor` parts."""
    for place in range(len(order) + 1):
        if math.prod(mesh[axis] for axis in order[:place]) == factor:
            return place
    raise UnsupportedLeaf(
        f"a strided shard takes a piece of each of {factor} parts, which no mesh dimensions to its right have made: "
        f"it is no box; {_ADVICE}"
    )


def _intervals(extent: int, parts: Sequence[int]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Start and stop for every place among cuts into `parts`, the first cut first."""
    found: dict[tuple[int, ...], tuple[int, int]] = {(): (0, extent)}
    for count in parts:
        found = {
            (*place, at): (min(stop, start + at * size), min(stop, start + (at + 1) * size))
            for place, (start, stop) in found.items()
            for size in (-(-(stop - start) // count),)
            for at in range(count)
        }
    return found


def _describe(mesh: DeviceMesh, splits: Sequence[Split | None]) -> str:
    """Placements and mesh, the same on every rank: `(Shard(0), Replicate) over dp=2, tp=4`."""
    axes = ", ".join(f"{name}={size}" for name, size in zip(_axes(mesh), mesh.shape, strict=True))
    return f"({', '.join(map(_show, splits))}) over {axes}"


def _show(split: Split | None) -> str:
    if split is None:
        return "Replicate"
    return f"Shard({split.dim})" if split.factor == 1 else f"StridedShard({split.dim}, {split.factor})"


def _axes(mesh: DeviceMesh) -> list[str]:
    """The names of the mesh's dimensions, or their numbers."""
    return list(mesh.mesh_dim_names or map(str, range(mesh.ndim)))


def _ranks(mesh: DeviceMesh) -> list[int]:
    """The ranks of the job in a mesh, in C order."""
    return mesh.mesh.flatten().tolist()


def _mesh_facts(mesh: DeviceMesh) -> list[object]:
    return ["ckpt/mesh", _axes(mesh), list(mesh.shape), _ranks(mesh)]


def _mesh_record(facts: bytes, mesh: DeviceMesh) -> records.Mesh:
    return records.Mesh(axes=_axes(mesh), shape=list(mesh.shape), devices=digests.digest(facts))
