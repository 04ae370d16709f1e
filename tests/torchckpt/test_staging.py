"""Snapshots: what is staged, that nothing leaks into it afterwards, and that the memory is used again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Shard

from ckptcore.backend import Staged
from ckptcore.errors import CallError, StagingLimit, UnsupportedLeaf
from ckptcore.geometry import Box
from tests.torchckpt.fake_job import as_rank, mesh
from torchckpt import leaves, staging
from torchckpt.staging import CudaCopier, Slab, Source, stage

DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}


def source(data: Any) -> Source:
    return Source(data=data, own=Box.whole(data.shape), itemsize=data.itemsize)


def staged(data: Any, *boxes: Box, slab: Slab | None = None) -> list[np.ndarray]:
    """The chunks of one leaf; by default one, which is all of it."""
    own = {"x": boxes or (Box.whole(data.shape),)}
    return list(stage(slab or Slab(), {"x": source(data)}, own, [], None).chunks["x"])


def bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Every byte pattern that a test of this size can hold."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.arange(7, 7 + count).to(torch.uint8)
    return ((raw & 1) if dtype == torch.bool else raw).view(dtype).reshape(shape)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 6)])
def test_every_dtype_keeps_its_bits(name: str, shape: tuple[int, ...]) -> None:
    tensor = bits(shape, DTYPES[name])
    (chunk,) = staged(tensor)
    assert chunk.dtype == (getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else np.dtype(name))
    assert chunk.shape == shape
    assert chunk.flags.c_contiguous
    assert chunk.tobytes() == bytes(tensor.reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", DTYPES)
def test_no_layout_in_memory_matters(name: str) -> None:
    tensor = bits((6, 8), DTYPES[name])
    for view in (
        tensor.t(),
        tensor[::2, 1:7:3],
        tensor[:1].expand(4, 8),
        tensor[3],
        tensor[2, 3],
        tensor.reshape(2, 3, 8).permute(2, 0, 1),
    ):
        (chunk,) = staged(view)
        assert chunk.tobytes() == leaves.to_numpy(view).tobytes()


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """torch's threads: with one of them, large tensors are copied in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", DTYPES)
def test_large_tensors_keep_their_bits(name: str) -> None:
    tensor = bits((2, 1 << 19), DTYPES[name])
    cut = Box((1, 0), (2, 1 << 19))
    for view in (tensor, tensor.t(), tensor.conj()):
        found, half = staged(view, Box.whole(view.shape), cut if view.shape == tensor.shape else Box.whole(view.shape))
        assert found.tobytes() == leaves.to_numpy(view).tobytes()
        assert half.tobytes() == found[: half.shape[0]][-1:].tobytes() if half.shape != found.shape else found.tobytes()


def test_lazy_conjugates_and_negatives_are_what_they_stand_for() -> None:
    value = np.array([1 + 2j, 3 - 4j], np.complex64)
    tensor = torch.from_numpy(value.copy())
    np.testing.assert_array_equal(staged(tensor.conj())[0], value.conj())
    np.testing.assert_array_equal(staged(tensor.conj().imag)[0], -value.imag)


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray, list[Box]]:
    """A view of any strides, and boxes in it."""
    base = np.arange(draw(st.integers(1, 3)) * 240, dtype=draw(st.sampled_from([np.int8, np.float32, np.complex128])))
    shape = draw(st.sampled_from([(240,), (12, 20), (4, 6, 10), (2, 3, 5, 8)]))
    view = base[:240].reshape(shape).transpose(draw(st.permutations(range(len(shape)))))
    view = view[tuple(slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 2))) for _ in shape)]
    corners = st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in view.shape))
    boxes = [Box(tuple(map(min, corner)), tuple(map(max, corner))) for corner in draw(st.lists(corners, max_size=4))]
    return view, boxes


@given(views(), st.booleans(), st.booleans())
def test_chunks_are_their_boxes(drawn: tuple[np.ndarray, list[Box]], as_tensor: bool, replicated: bool) -> None:  # noqa: FBT001 - drawn
    view, boxes = drawn
    sources = {"x": source(torch.from_numpy(view) if as_tensor else view)}
    found = stage(Slab(), sources, {"x": boxes}, ["x"] if replicated else [], None)
    for box, chunk in zip(boxes, found.chunks["x"], strict=True):
        np.testing.assert_array_equal(chunk, view[box.slices()])
    assert list(found.whole) == ["x"] * replicated
    for whole in found.whole.values():
        np.testing.assert_array_equal(whole, view)


def test_nothing_that_is_changed_later_gets_in() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    host, plain = np.arange(4), torch.arange(5, dtype=torch.bfloat16)
    sources = {"p": source(parameter), "h": source(host), "t": source(plain), "s": source(np.float64(3))}
    own = {name: [one.own] for name, one in sources.items()}
    found = stage(Slab(), sources, own, ["t", "h"], None)
    with torch.no_grad():
        parameter.fill_(-1)
        plain.fill_(-1)
    host[:] = -1
    np.testing.assert_array_equal(found.chunks["p"][0], np.arange(6.0).reshape(2, 3))
    for arrays in (found.chunks["h"], [found.whole["h"]]):
        np.testing.assert_array_equal(arrays[0], np.arange(4))
    for arrays in (found.chunks["t"], [found.whole["t"]]):
        np.testing.assert_array_equal(arrays[0].astype(np.float32), np.arange(5.0))
    assert found.chunks["s"][0] == 3


def test_boxes_are_global() -> None:
    with as_rank(1, 2):
        part = DTensor.from_local(
            torch.arange(6.0).reshape(2, 3), mesh(dp=2), [Shard(0)], run_check=False, shape=torch.Size((5, 3)), stride=(3, 1)
        )
        sources = {"x": Source(data=torch.nn.Parameter(part), own=Box((3, 0), (5, 3)), itemsize=4)}
        boxes = [Box((3, 0), (5, 2)), Box((4, 2), (5, 3)), Box((3, 0), (5, 3))]
        found = stage(Slab(), sources, {"x": boxes}, [], None)
    np.testing.assert_array_equal(found.chunks["x"][0], [[0, 1], [3, 4]])
    np.testing.assert_array_equal(found.chunks["x"][1], [[5]])
    np.testing.assert_array_equal(found.chunks["x"][2], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("box", [Box((0, 0), (2, 4)), Box((2, 0), (5, 3)), Box((1, 0), (3, 3))])
def test_a_box_that_is_not_held_is_refused(box: Box) -> None:
    sources = {"x": Source(data=torch.zeros(2, 3), own=Box((2, 0), (4, 3)), itemsize=4)}
    with pytest.raises(CallError, match=r"x: rank 0 holds .* no part"):
        stage(Slab(), sources, {"x": [box]}, [], None)


def test_a_tensor_of_another_shape_than_its_box_is_not_repeated_to_fit() -> None:
    with pytest.raises(CallError, match=r"x: rank 0 has shape \(1, 3\), which is not that of"):
        stage(
            Slab(),
            {"x": Source(data=torch.zeros(1, 3), own=Box((0, 0), (2, 3)), itemsize=4)},
            {"x": [Box((0, 0), (2, 3))]},
            [],
            None,
        )


def test_the_whole_of_a_replicated_leaf_is_copied_once() -> None:
    boxes = [Box((0,), (60,)), Box((60,), (100,))]
    found = stage(Slab(), {"x": source(torch.arange(100))}, {"x": boxes}, ["x"], None)
    assert found.nbytes == 800
    assert all(np.shares_memory(chunk, found.whole["x"]) for chunk in found.chunks["x"])
    np.testing.assert_array_equal(np.concatenate(found.chunks["x"]), np.arange(100))


def test_a_replicated_leaf_that_another_rank_writes_is_whole_alone() -> None:
    found = stage(Slab(), {"x": source(torch.arange(3)), "y": source(np.arange(2))}, {}, ["x", "y"], None)
    assert (found.chunks, sorted(found.whole), found.nbytes) == ({}, ["x", "y"], 40)


def test_the_metadata_of_an_array_without_chunks_is_owned() -> None:
    found = stage(Slab(), {"x": source(torch.zeros(0, 3)), "y": source(torch.zeros(4))}, {"x": []}, [], None)
    assert (found.chunks, found.nbytes) == ({"x": []}, 0)


def test_only_what_is_written_counts() -> None:
    sources = {"x": source(torch.zeros(4, 8)), "unwritten": source(torch.zeros(1000))}
    assert stage(Slab(), sources, {"x": [Box((0, 0), (1, 8)), Box((3, 0), (4, 4))]}, [], None).nbytes == 48


def test_the_limit_names_both_sides_and_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"x": source(torch.zeros(64)), "y": source(np.zeros(10, np.int8))}
    own = {name: [one.own] for name, one in sources.items()}
    slab = Slab()
    with monkeypatch.context() as patch:
        patch.setattr(slab, "reserve", None)
        with pytest.raises(StagingLimit, match="rank 0: the snapshot takes 266 bytes, max_staging_bytes allows 265"):
            stage(slab, sources, own, ["y"], 265)
    assert stage(slab, sources, own, ["y"], 266).nbytes == 266


def test_bool_bytes_are_normalized() -> None:
    raw = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    for data in (raw.view(torch.bool), raw.numpy().view(np.bool_)):
        found = stage(Slab(), {"x": source(data)}, {"x": [Box((0,), (2,)), Box((2,), (4,))]}, ["x"], None)
        np.testing.assert_array_equal(np.concatenate(found.chunks["x"]).view(np.uint8), [0, 1, 1, 1])
        np.testing.assert_array_equal(found.whole["x"].view(np.uint8), [0, 1, 1, 1])
    assert raw.tolist() == [0, 1, 2, 255]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4, ">i4", "<c16"])
def test_numpy_arrays_are_staged_in_their_stored_dtype(dtype: Any) -> None:
    value = np.arange(6).astype(dtype).reshape(2, 3)
    (chunk,) = staged(value.T)
    stored = np.uint8 if dtype is ml_dtypes.uint4 else np.dtype(dtype).newbyteorder("<") if dtype == ">i4" else dtype
    assert chunk.dtype == stored
    np.testing.assert_array_equal(chunk.astype(complex), np.arange(6).reshape(2, 3).T)


def test_a_dtype_without_a_place_names_the_leaf() -> None:
    with pytest.raises(UnsupportedLeaf, match=r"x: .*bits8"):
        staged(torch.zeros(2, dtype=torch.uint8).view(torch.bits8))


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again() -> None:
    slab, tensor = Slab(), torch.arange(3_000_000, dtype=torch.float32)
    first = address(staged(tensor, slab=slab)[0])
    tensor.add_(1)
    again = staged(tensor, slab=slab)[0]
    assert address(again) == first
    np.testing.assert_array_equal(again, tensor.numpy())
    assert address(staged(torch.ones(5), slab=slab)[0]) == first


def test_memory_grows_and_is_given_back() -> None:
    slab = Slab()
    staged(torch.zeros(5), slab=slab)
    small = slab.reserve(0)
    large = torch.arange(1_000_000.0)
    (chunk,) = staged(large, slab=slab)
    assert slab.reserve(0).numel() >= 4_000_000 > small.numel()
    slab.release()
    gc.collect()
    np.testing.assert_array_equal(chunk, large.numpy())  # what was staged still holds on to it
    np.testing.assert_array_equal(staged(torch.ones(2), slab=slab)[0], [1, 1])


def test_chunks_do_not_touch_each_other() -> None:
    tensors = {f"x{n}": source(bits((n,), torch.uint8)) for n in (0, 1, 63, 64, 65, 3)}
    found = stage(Slab(), tensors, {name: [one.own] for name, one in tensors.items()}, [], None)
    spans = sorted((address(chunk), chunk.nbytes) for (chunk,) in found.chunks.values() if chunk.nbytes)
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    for name, one in tensors.items():
        np.testing.assert_array_equal(found.chunks[name][0], one.data)


def test_memory_that_was_made_in_inference_mode_serves_outside_of_it() -> None:
    slab = Slab()
    with torch.inference_mode():
        staged(torch.ones(3), slab=slab)
    np.testing.assert_array_equal(staged(torch.arange(3), slab=slab)[0], [0, 1, 2])
    with torch.inference_mode():
        np.testing.assert_array_equal(staged(torch.arange(4), slab=slab)[0], [0, 1, 2, 3])


class LateCopier:
    """Copies nothing before `finish`, as a device may."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._copies: list[Callable[[], object]] = []

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._events.append("copy")
        self._copies.append(lambda: target.copy_(source))

    def finish(self) -> None:
        self._events.append("finish")
        for copy in self._copies:
            copy()


def three(own: Mapping[str, Sequence[Box]] | None = None) -> Staged:
    """A snapshot of a replicated bool tensor, of two chunks, and of a numpy array."""
    sources = {
        "b": source(torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool)),
        "x": source(torch.arange(4)),
        "n": source(np.ones(2)),
    }
    chunks = {"x": [Box((0,), (1,)), Box((1,), (4,))], "n": [Box((0,), (2,))]}
    return stage(Slab(), sources, own or chunks, ["b"], None)


def test_all_copies_start_before_the_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(staging, "_copiers", lambda: {"cpu": LateCopier(events)})
    found = three()
    assert events == ["copy"] * 3 + ["finish"]
    assert found.whole["b"].view(np.uint8).tolist() == [1, 0]
    np.testing.assert_array_equal(np.concatenate(found.chunks["x"]), np.arange(4))


def test_after_an_error_no_copy_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Failing(LateCopier):
        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            super().copy(target, source)
            if len(events) == 2:
                raise torch.OutOfMemoryError("no room for a temporary")

    monkeypatch.setattr(staging, "_copiers", lambda: {"cpu": Failing(events)})
    with pytest.raises(torch.OutOfMemoryError):
        three()
    assert events == ["copy", "copy", "finish"]


class FakeStream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self._events = name, events

    def wait_stream(self, other: FakeStream) -> None:
        self._events.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._events.append(f"{self.name} is waited for")


class FakeCuda:
    """As much of `torch.cuda` as staging uses. It notes what is asked of it."""

    def __init__(self, status: int = 0) -> None:
        self.events: list[str] = []
        self.pinned: dict[int, int] = {}
        self._status = status

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802 - torch's name
        return FakeStream(f"copies of {device}", self.events)

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(f"work of {device}", self.events)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.events.append(f"enter {stream.name}")
        yield
        self.events.append(f"leave {stream.name}")

    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert flags == 1
        self.pinned[address] = nbytes
        return self._status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.pinned[address]
        return 0


def test_cuda_copies_follow_the_work_on_a_stream_of_their_own() -> None:
    cuda = FakeCuda()
    copier = CudaCopier(cuda)
    targets = [torch.zeros(2), torch.zeros(2)]
    for target in targets:
        copier.copy(target, torch.ones(2))
    side = "copies of cpu"
    assert cuda.events == [f"{side} waits for work of cpu", *[f"enter {side}", f"leave {side}"] * 2]
    copier.finish()
    assert cuda.events[-1] == f"{side} is waited for"
    assert [target.tolist() for target in targets] == [[1, 1], [1, 1]]


class FakeTarget:
    """Pinned memory. torch conjugates and negates there, before a transfer that it does not wait for is over."""

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        assert not source.is_conj()
        assert not source.is_neg()
        self.found = source.tolist()


def test_what_cuda_copies_is_never_lazy() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    for source, expected in ((values.conj(), [1 - 2j, 3 + 4j]), (values.conj().imag, [-2.0, 4.0])):
        assert source.is_conj() or source.is_neg()
        target: Any = FakeTarget()
        CudaCopier(FakeCuda()).copy(target, source)
        assert target.found == expected


def test_each_cuda_device_has_its_own_stream() -> None:
    cuda = FakeCuda()
    copier = CudaCopier(cuda)
    for index in (0, 1, 0):
        copier._stream(torch.device("cuda", index))
    copier.finish()
    assert cuda.events == [
        "copies of cuda:0 waits for work of cuda:0",
        "copies of cuda:1 waits for work of cuda:1",
        "copies of cuda:0 is waited for",
        "copies of cuda:1 is waited for",
    ]


def test_pinned_memory_is_pinned_once_and_let_go() -> None:
    cuda, slab = FakeCuda(), Slab()
    memory = slab.reserve(100, pinned_by=cuda)
    assert cuda.pinned == {memory.data_ptr(): memory.numel()}
    assert slab.reserve(50, pinned_by=cuda).data_ptr() == slab.reserve(100).data_ptr() == memory.data_ptr()
    larger = slab.reserve(memory.numel() + 1, pinned_by=cuda)
    assert cuda.pinned == {larger.data_ptr(): larger.numel()}
    slab.release()
    assert cuda.pinned == {}


def test_memory_is_pinned_when_the_first_device_needs_it() -> None:
    cuda, slab = FakeCuda(), Slab()
    memory = slab.reserve(100)
    assert slab.reserve(100, pinned_by=cuda).data_ptr() == memory.data_ptr()
    assert list(cuda.pinned) == [memory.data_ptr()]
    del slab
    gc.collect()
    assert cuda.pinned == {}


def test_memory_that_cannot_be_pinned_is_an_error() -> None:
    with pytest.raises(CallError, match=r"rank 0: 1048576 bytes .* cannot be pinned .*CUDA error 2.*ulimit -l"):
        Slab().reserve(100, pinned_by=FakeCuda(status=2))
