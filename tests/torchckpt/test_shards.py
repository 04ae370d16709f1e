"""Boxes: what is worked out for every rank against what torch says and, since it is not always right, what it really does."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from ckptcore.errors import UnsupportedLeaf
from ckptcore.geometry import Box
from tests.torchckpt.fake_job import as_rank, mesh, placed
from tests.torchckpt.procs import run_job
from torchckpt import shards
from torchckpt.shards import Places, Split, place_of

pytestmark = pytest.mark.slow

Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[Split | None, ...]]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Shapes, meshes and splits without factors: what `Shard` and `Replicate` can say."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    split = st.none() if not shape else st.none() | st.builds(Split, st.integers(0, len(shape) - 1))
    return shape, sizes, tuple(draw(split) for _ in sizes)


@st.composite
def ordered_cuts(draw: st.DrawFn) -> tuple[int, tuple[int, ...], list[int]]:
    """An extent, a mesh, and the order in which mesh dimensions cut it."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    order = draw(st.permutations(range(len(sizes))))
    return draw(st.integers(0, 30)), sizes, order[: draw(st.integers(1, len(sizes)))]


def placements(splits: tuple[Split | None, ...]) -> list[Placement]:
    return [
        Replicate()
        if split is None
        else Shard(split.dim)
        if split.factor == 1
        else _StridedShard(split.dim, split_factor=split.factor)
        for split in splits
    ]


def splits_for(order: list[int], sizes: tuple[int, ...]) -> tuple[Split | None, ...]:
    """How placements say that `order` is the order: each by how many parts those to its right have made before."""
    before = {axis: [other for other in order[:at] if other > axis] for at, axis in enumerate(order)}
    return tuple(
        Split(0, math.prod(sizes[other] for other in before[axis])) if axis in before else None for axis in range(len(sizes))
    )


def chunk(indices: np.ndarray, parts: int, at: int) -> np.ndarray:
    """`torch.chunk`, with empty parts at the end."""
    size = math.ceil(len(indices) / parts)
    return indices[at * size : (at + 1) * size]


def by_torch(shape: tuple[int, ...], sizes: tuple[int, ...], splits: tuple[Split | None, ...], place: tuple[int, ...]) -> Box:
    local, offset = _compute_local_shape_and_global_offset(shape, sizes, list(place), placements(splits))
    return Box(tuple(offset), tuple(a + n for a, n in zip(offset, local, strict=True)))


@given(layouts())
def test_boxes_are_those_of_torch(layout: Layout) -> None:
    shape, sizes, splits = layout
    for place, box in zip(product(*map(range, sizes)), shards.boxes(shape, sizes, splits), strict=True):
        told = by_torch(shape, sizes, splits, place)
        assert box.shape == told.shape
        assert box == told or box.is_empty


@given(layouts())
def test_boxes_tile_the_tensor(layout: Layout) -> None:
    """Every element is in as many boxes as mesh dimensions that do not cut make copies."""
    shape, sizes, splits = layout
    held = np.zeros(shape, int)
    for box in shards.boxes(shape, sizes, splits):
        held[box.slices()] += 1
    copies = math.prod(size for size, split in zip(sizes, splits, strict=True) if split is None)
    assert (held == copies).all()


@given(ordered_cuts())
def test_strided_splits_are_cuts_in_another_order(cuts: tuple[int, tuple[int, ...], list[int]]) -> None:
    extent, sizes, order = cuts
    for place, box in zip(product(*map(range, sizes)), shards.boxes((extent,), sizes, splits_for(order, sizes)), strict=True):
        indices = np.arange(extent)
        for axis in order:
            indices = chunk(indices, sizes[axis], place[axis])
        assert list(range(box.start[0], box.stop[0])) == list(indices)


def ways_to_read(extent: int, sizes: tuple[int, ...], order: list[int]) -> tuple[list[Box], list[Box]]:
    """As cuts in that order, and as torch itself reads strided placements."""
    splits = splits_for(order, sizes)
    told = [by_torch((extent,), sizes, splits, place) for place in product(*map(range, sizes))]
    return shards.boxes((extent,), sizes, splits), told


def check_tellable(extent: int, sizes: tuple[int, ...], order: list[int]) -> None:
    """Where no shard's size tells the two apart, no box does, or it is refused."""
    ours, told = ways_to_read(extent, sizes, order)
    differ = any(box != other and not box.is_empty for box, other in zip(ours, told, strict=True))
    if differ and [box.shape for box in ours] == [box.shape for box in told]:
        with pytest.raises(UnsupportedLeaf, match="cannot be told for certain"):
            shards._check_tellable((extent,), sizes, splits_for(order, sizes))


@given(ordered_cuts())
def test_a_shard_of_another_kind_shows_on_some_rank(cuts: tuple[int, tuple[int, ...], list[int]]) -> None:
    check_tellable(*cuts)


def test_two_ways_to_read_that_no_size_tells_apart_are_refused() -> None:
    extent, sizes, order = 15, (2, 2, 3), [1, 2, 0]
    ours, told = ways_to_read(extent, sizes, order)
    assert [box.shape for box in ours] == [box.shape for box in told]
    assert ours != told
    check_tellable(extent, sizes, order)


@pytest.mark.parametrize("sizes", list(product((2, 3, 4), repeat=2)))
def test_two_uneven_cuts_are_told_apart(sizes: tuple[int, int]) -> None:
    for extent in range(1, 31):
        ours, told = ways_to_read(extent, sizes, [1, 0])
        if [box.shape for box in ours] == [box.shape for box in told]:
            assert all(box == other or box.is_empty for box, other in zip(ours, told, strict=True))


@pytest.mark.parametrize("splits", [(Split(0, 2),), (Split(0, 2), None), (Split(0, 3), Split(0)), (Split(0, 2), Split(1))])
def test_a_factor_that_no_cut_explains_is_refused(splits: tuple[Split | None, ...]) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"a piece of each of . parts.*redistribute"):
        shards.boxes((12, 12), (2,) * len(splits), splits)


KINDS = [("fsdp", 2), ("fsdp", 4), ("tp", 2), ("tp", 4), ("fsdp+tp", 4), ("fsdp+tp", 6), ("hsdp", 4), ("hsdp", 6), ("hsdp+tp", 8)]
SIZES = [(8, 8), (5, 3), (7, 4), (1, 1), (13, 6)]


@pytest.mark.parametrize(("kind", "size"), KINDS)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_every_rank_holds_what_its_box_says(kind: str, size: int, rows: int, columns: int) -> None:
    """FSDP2 with tensor parallelism over seven rows and six ranks is where torch's own boxes are wrong."""
    seen: dict[str, list[dict[Box, tuple[int, ...]]]] = {}
    held: dict[tuple[str, Box], list[int]] = {}
    for rank in range(size):
        with as_rank(rank, size):
            for name, parameter in placed(kind, rows, columns).named_parameters():
                place = place_of(parameter, name)
                check_place(parameter, place)
                seen.setdefault(name, []).append(dict(place.boxes))
                held.setdefault((name, place.own), []).append(rank)
    for name, boxes in seen.items():
        assert all(other == boxes[0] for other in boxes)
        assert boxes[0] == {box: tuple(ranks) for (of, box), ranks in held.items() if of == name and not box.is_empty}


def check_place(parameter: torch.Tensor, place: shards.Place) -> None:
    """The shard is that part of a tensor that counts up, and the boxes of all ranks tile it."""
    shape = tuple(parameter.shape)
    counted = np.arange(float(math.prod(shape)), dtype=np.float32).reshape(shape)
    if not place.own.is_empty:
        np.testing.assert_array_equal(shards.local(parameter).numpy(), counted[place.own.slices()])
    assert place.shape == shape
    covered = Counter(index for box in place.boxes for index in product(*map(range, box.start, box.stop)))
    assert set(covered) == set(product(*map(range, shape)))
    assert set(covered.values()) == {1}


def sharded(local: torch.Tensor, ranks: DeviceMesh, to: list[Any], shape: tuple[int, ...]) -> DTensor:
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, ranks, to, run_check=False, shape=torch.Size(shape), stride=stride)


def test_a_plain_tensor_is_whole_on_all_ranks() -> None:
    place = place_of(torch.zeros(2, 3), "x")
    assert place == shards.Place(shape=(2, 3), boxes={Box((0, 0), (2, 3)): (0,)}, own=Box((0, 0), (2, 3)), local=True, text=None)
    with as_rank(1, 3):
        assert place_of(np.zeros((2, 0)), "x").boxes == {Box((0, 0), (2, 0)): (0, 1, 2)}
        assert place_of(nn.Parameter(torch.tensor(1.0)), "x").boxes == {Box((), ()): (0, 1, 2)}
        assert place_of(np.float32(1), "x").own == Box((), ())


def test_a_replicated_dtensor_is_not_local() -> None:
    with as_rank(2, 4):
        place = place_of(sharded(torch.zeros(3), mesh(dp=4), [Replicate()], (3,)), "x")
    assert (place.local, place.boxes) == (False, {Box((0,), (3,)): (0, 1, 2, 3)})
    assert place.text == "(Replicate) over dp=4"


def test_a_tensor_without_elements_is_one_box() -> None:
    with as_rank(1, 4):
        place = place_of(sharded(torch.zeros(0, 1), mesh(dp=2, tp=2), [Replicate(), Shard(1)], (0, 3)), "x")
    assert place.boxes == {Box((0, 0), (0, 3)): (0, 1, 2, 3)}


def test_a_rank_may_hold_nothing() -> None:
    with as_rank(3, 4):
        place = place_of(sharded(torch.zeros(0, 3), mesh(dp=4), [Shard(0)], (5, 3)), "x")
    assert place.own.is_empty
    assert place.boxes == {Box((0, 0), (2, 3)): (0,), Box((2, 0), (4, 3)): (1,), Box((4, 0), (5, 3)): (2,)}


def test_the_ranks_are_those_of_the_job() -> None:
    with as_rank(6, 8):
        part = mesh(pp=2, dp=2, tp=2)["dp", "tp"]
        place = place_of(sharded(torch.zeros(2), part, [Replicate(), Shard(0)], (4,)), "x")
        permuted = DeviceMesh("cpu", [[6, 1], [0, 7]])
        other = place_of(sharded(torch.zeros(2), permuted, [Shard(0), Replicate()], (4,)), "x")
    assert place.boxes == {Box((0,), (2,)): (4, 6), Box((2,), (4,)): (5, 7)}
    assert place.text == "(Replicate, Shard(0)) over dp=2, tp=2"
    assert other.boxes == {Box((0,), (2,)): (1, 6), Box((2,), (4,)): (0, 7)}
    assert other.text == "(Shard(0), Replicate) over 0=2, 1=2"


def test_sums_to_be_made_are_refused() -> None:
    with as_rank(0, 2), pytest.raises(UnsupportedLeaf, match=r"model\.x: placement Partial\(sum\) is a sum .*redistribute"):
        place_of(sharded(torch.zeros(2), mesh(tp=2), [Partial()], (2,)), "model.x")


def test_a_rank_outside_the_mesh_is_told_to_leave_it_out() -> None:
    with as_rank(2, 3):
        tensor = sharded(torch.zeros(0), DeviceMesh("cpu", [0, 1]), [Shard(0)], (4,))
        with pytest.raises(UnsupportedLeaf, match=r"model\.x: rank 2 is not in the mesh .*\[0, 1\].*leave it out"):
            place_of(tensor, "model.x")


def test_another_order_than_that_of_the_placements_is_refused() -> None:
    with as_rank(1, 4):
        tensor = sharded(torch.zeros(2), mesh(dp=2, tp=2), [Shard(0), Shard(0)], (8,))
        spec = tensor._spec
        order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
        other = DTensor(tensor.to_local(), DTensorSpec(spec.mesh, spec.placements, spec.tensor_meta, order), requires_grad=False)
        places = Places()
        assert places.of(tensor, "x").own == Box((2,), (4,))
        with pytest.raises(UnsupportedLeaf, match=r"x: mesh dimensions \[1, 0\] cut dimension 0 in another order"):
            places.of(other, "x")


def test_a_shard_of_another_shape_than_its_box_is_refused() -> None:
    """Also if another tensor of the same kind was right."""
    with as_rank(1, 2):
        ranks, places = mesh(dp=2), Places()
        assert places.of(sharded(torch.zeros(2), ranks, [Shard(0)], (5,)), "x").own == Box((3,), (5,))
        wrong = sharded(torch.zeros(3), ranks, [Shard(0)], (5,))
        with pytest.raises(UnsupportedLeaf, match=r"y: \(Shard\(0\)\) over dp=2: .* rank 1 should hold \(2,\).* shape \(3,\)"):
            places.of(wrong, "y")


def test_a_box_that_torch_sees_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later torch may read placements in another way."""
    with as_rank(1, 2):
        tensor = sharded(torch.zeros(2), mesh(dp=2), [Shard(0)], (4,))
        monkeypatch.setattr(shards, "boxes", lambda *_: [Box((2,), (4,)), Box((0,), (2,))])
        with pytest.raises(
            UnsupportedLeaf, match=r"x: \(Shard\(0\)\) over dp=2: this release takes the shard of rank 1 for .*, torch"
        ):
            place_of(tensor, "x")


def test_each_sharding_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    boxes = shards.boxes
    monkeypatch.setattr(shards, "boxes", lambda shape, *rest: (made.append(shape), boxes(shape, *rest))[1])
    with as_rank(9, 1024):
        ranks, places = mesh(dp=128, tp=8), Places()
        for _ in range(100):
            for shape in ((128, 8), (256, 8)):
                local = torch.zeros(shape[0] // 128, 1)
                assert len(places.of(sharded(local, ranks, [Shard(0), Shard(1)], shape), "x").boxes) == 1024
    assert made == [(128, 8), (256, 8)]


def test_local_is_plain_memory_without_autograd() -> None:
    parameter = nn.Parameter(torch.ones(3))
    assert type(shards.local(parameter)) is torch.Tensor
    assert not shards.local(parameter).requires_grad
    assert shards.local(parameter).data_ptr() == parameter.data_ptr()
    with as_rank(0, 2):
        inner = torch.ones(3)
        part = nn.Parameter(sharded(inner, mesh(dp=2), [Shard(0)], (6,)))
        assert type(shards.local(part)) is torch.Tensor
        assert not shards.local(part).requires_grad
        assert shards.local(part).data_ptr() == inner.data_ptr()


def test_local_waits_for_a_collective() -> None:
    with as_rank(0, 2):
        waiting = AsyncCollectiveTensor(torch.ones(3))
        part = sharded(waiting, mesh(dp=2), [Replicate()], (3,))
        assert type(shards.local(part)) is torch.Tensor
        np.testing.assert_array_equal(shards.local(part).numpy(), [1, 1, 1])


def test_meshes_are_recorded_alike_on_all_their_ranks() -> None:
    """A part of a mesh stands for all of it; one that is no part of a mesh with all ranks stands for itself."""
    found = []
    for rank in range(8):
        with as_rank(rank, 8):
            whole = mesh(pp=2, dp=2, tp=2)
            own = DeviceMesh("cpu", [0, 1, 2, 3] if rank < 4 else [4, 5, 6, 7])
            tensors = [sharded(torch.zeros(1), ranks, [Shard(0)], (ranks.size(),)) for ranks in (whole["tp"], whole["dp"], own)]
            tensors.append(sharded(torch.zeros(1), DeviceMesh("cpu", list(range(8))), [Shard(0)], (8,)))
            found.append(shards.mesh_records([*tensors, torch.zeros(1)]))
    assert all(records == found[4 * (rank // 4)] for rank, records in enumerate(found))
    assert [(record.axes, record.shape) for record in found[0]] == [(["0"], [4]), (["0"], [8]), (["pp", "dp", "tp"], [2, 2, 2])]
    assert found[0][1:] == found[4][1:]
    assert found[0][0].devices != found[4][0].devices


def test_the_order_of_ranks_is_part_of_a_mesh() -> None:
    with as_rank(0, 4):
        meshes = [DeviceMesh("cpu", order, mesh_dim_names=("a", "b")) for order in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])]
        tensors = [sharded(torch.zeros(2), ranks, [Shard(0), Replicate()], (4,)) for ranks in meshes]
        assert len({record.devices for record in shards.mesh_records(tensors * 2)}) == 2


def test_the_topology_counts_ranks() -> None:
    alone = shards.topology(())
    assert (alone.framework, alone.platform, alone.participants, alone.devices, alone.meshes) == ("torch", "cpu", 1, 1, [])
    with as_rank(1, 4):
        tensor = sharded(torch.zeros(1), mesh(dp=4), [Shard(0)], (4,))
        job = shards.topology(shards.mesh_records([tensor]))
    assert (job.participants, job.devices, [mesh.shape for mesh in job.meshes]) == (4, 4, [[4]])


SCRIPT = """
    import json
    from torch import distributed
    from tests.torchckpt.fake_job import placed
    from tests.torchckpt.test_shards import check_place
    from torchckpt import shards
    for kind in ARGS:
        for rows, columns in ((8, 8), (5, 3), (7, 4)):
            tensors = dict(placed(kind, rows, columns).named_parameters())
            for name, tensor in tensors.items():
                place = shards.place_of(tensor, name)
                check_place(tensor, place)
                boxes = [[box.start, box.stop, ranks] for box, ranks in place.boxes.items()]
                print("place", json.dumps([kind, rows, name, place.text, boxes]))
            print("mesh", [(mesh.axes, mesh.shape, mesh.devices) for mesh in shards.mesh_records(tensors.values())])
    distributed.barrier()  # A rank that ends breaks the connections that others may still be making.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size", "kinds"), [(2, ["fsdp", "tp"]), (4, ["fsdp", "tp", "fsdp+tp", "hsdp"])])
def test_real_ranks_agree(size: int, kinds: list[str]) -> None:
    outputs = run_job(SCRIPT, size=size, args=kinds)
    told = [[line for line in output.splitlines() if line.startswith(("place", "mesh"))] for output in outputs]
    assert all(lines == told[0] for lines in told)
    assert len([line for line in told[0] if line.startswith("place")]) == 9 * len(kinds)
    texts = {json.loads(line.removeprefix("place "))[3] for line in told[0] if line.startswith("place")}
    assert size == 2 or "(StridedShard(0, 2), Shard(0)) over fsdp=2, tp=2" in texts
