"""What a leaf is stored as, and tensors and host arrays as each other, bit for bit."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ckptcore import dtypes, plain
from ckptcore.errors import UnsupportedLeaf
from torchckpt import leaves

pytestmark = pytest.mark.slow

# Every dtype that torch computes with: what is left out is in REFUSED_DTYPES.
DTYPES = {
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
}
REFUSED_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - DTYPES
SHAPES = [(), (0,), (3, 0, 2), (7,), (4, 6), (2, 3, 4)]


class Own(torch.Tensor):
    """A user's subclass."""


def bits(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """`count` elements of random bits, so that all kinds of NaN are among them."""
    if dtype == torch.bool:
        return torch.from_numpy(np.random.default_rng(seed).integers(0, 2, count, np.uint8)).view(torch.bool)
    elements = torch.empty(count, dtype=dtype)
    if count:
        raw_bits = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8)
        elements.view(torch.uint8).copy_(torch.from_numpy(raw_bits))
    return elements


def raw(tensor: torch.Tensor) -> bytes:
    """The elements in order, as bytes, without numpy's or ml_dtypes' help."""
    return bytes(tensor.detach().clone(memory_format=torch.contiguous_format).untyped_storage().tolist())


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def sparse() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(3).to_sparse_csr()


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2)


def of_dtype(dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.empty(2, dtype=dtype)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = bits(dtype, int(np.prod(shape))).reshape(shape)
    array = leaves.to_numpy(tensor)
    assert array.dtype == dtypes.numpy_dtype(leaves.dtype_name(dtype, "x"))
    assert (array.shape, array.tobytes()) == (shape, raw(tensor))
    again = leaves.from_numpy(array)
    assert (again.dtype, again.shape, raw(again)) == (dtype, tensor.shape, raw(tensor))


@pytest.mark.parametrize(
    "dtype", sorted((kind for kind in DTYPES if kind.itemsize <= 2 and kind != torch.bool), key=str), ids=str
)
def test_every_bit_pattern_of_the_small_types(dtype: torch.dtype) -> None:
    every = torch.from_numpy(np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")).view(dtype)
    array = leaves.to_numpy(every)
    assert raw(leaves.from_numpy(array)) == raw(every)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        ours = array.astype(np.float64 if dtype.is_floating_point else np.int64)
    theirs = every.to(torch.float64 if dtype.is_floating_point else torch.int64).numpy()
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_every_dtype_has_a_name_both_ways(dtype: torch.dtype) -> None:
    name = leaves.dtype_name(dtype, "x")
    assert name in dtypes.LOGICAL
    assert leaves.torch_dtype(name, "x") == dtype
    assert dtypes.numpy_dtype(name).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.bool], ids=str)
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.T,
        lambda t: t[1:, ::2],
        lambda t: t[:, 3],
        lambda t: t[2, 2],
        lambda t: t[:1].expand(5, 8),
        lambda t: t.as_strided((3, 3), (1, 1)),
    ],
    ids=["transposed", "stepped", "column", "element", "expanded", "overlapping"],
)
def test_a_view_of_the_same_memory_whatever_the_strides(dtype: torch.dtype, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    base = bits(dtype, 64).reshape(8, 8)
    tensor = view(base)
    array = leaves.to_numpy(tensor)
    assert array.tobytes() == raw(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    before = raw(tensor)
    base.view(torch.uint8).bitwise_xor_(1)
    assert array.tobytes() == raw(tensor) != before


def test_lazy_conjugates_and_negatives_are_resolved() -> None:
    tensor = torch.complex(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.5]))
    conjugate, negative = tensor.conj(), tensor.conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    assert leaves.to_numpy(conjugate).tolist() == [1 - 3j, -2 - 0.5j]
    assert leaves.to_numpy(negative).tolist() == [-3.0, -0.5]


def test_a_parameter_needs_no_detaching() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    array = leaves.to_numpy(parameter)
    array[0] = 3
    assert parameter.tolist() == [3, 1]


def test_host_memory_is_used_as_it_is() -> None:
    for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e8m0fnu)):
        array = np.ones((2, 3), dtype)
        leaves.from_numpy(array)[1, 1] = 2
        assert array.astype(float).sum() == 7


def misaligned() -> np.ndarray:
    array = np.frombuffer(bytearray(b"\0" + np.arange(6, dtype=np.float32).tobytes()), np.float32, offset=1)
    assert not array.flags.aligned
    return array


def read_only(dtype: Any) -> np.ndarray:
    return np.frombuffer(np.arange(6).astype(dtype).tobytes(), dtype)


@pytest.mark.parametrize(
    "array",
    [
        read_only(np.float32),
        read_only(ml_dtypes.bfloat16),
        read_only(ml_dtypes.float8_e4m3fn),
        np.arange(6, dtype=np.int16)[::-1],
        np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4).T,
        np.arange(12, dtype=">i4")[::2],
        np.arange(6, dtype=">c16"),
        np.array(5, dtype=">u8"),
        misaligned(),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_what_torch_cannot_use_as_it_is_gets_copied(array: np.ndarray) -> None:
    tensor = leaves.from_numpy(array)
    assert tensor.shape == array.shape
    assert raw(tensor) == array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert tensor.data_ptr() != array.ctypes.data
    tensor.zero_()
    assert array.any()


def test_a_dtype_that_torch_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedLeaf, match=r"params\['w'\]: torch has no tensors of dtype int4; .*numpy"):
        leaves.from_numpy(np.ones(2, ml_dtypes.int4), "params['w']")


def test_there_are_dtypes_to_refuse() -> None:
    names = {str(dtype).removeprefix("torch.") for dtype in REFUSED_DTYPES}
    assert {"complex32", "qint8", "bits8", "uint4", "int1", "float4_e2m1fn_x2"} <= names


@pytest.mark.parametrize("dtype", sorted(REFUSED_DTYPES, key=str), ids=str)
def test_every_other_dtype_is_refused_with_what_to_do(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"w: a tensor of dtype \w+ cannot be stored: .*save"):
        leaves.dtype_name(dtype, "w")
    with pytest.raises(UnsupportedLeaf, match=r"w: .*save"):
        leaves.check(of_dtype(dtype), "w")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of_dtype(torch.complex32), r"complex32 .*\.to\(torch\.complex64\)"),
        (lambda: of_dtype(torch.float4_e2m1fn_x2), r"\.view\(torch\.uint8\)"),
        (quantized, r"quantized tensor \(torch\.qint8\): save its \.int_repr\(\)"),
        (lambda: torch.eye(3).to_sparse(), r"sparse tensor \(torch\.sparse_coo\): save its indices"),
        (sparse, r"sparse tensor \(torch\.sparse_csr\)"),
        (lambda: torch.eye(3).to_mkldnn(), r"MKL-DNN layout: save \.to_dense\(\)"),
        (lambda: nested(torch.strided), "nested tensor"),
        (lambda: nested(torch.jagged), "nested tensor"),
        (UninitializedParameter, "lazy .*run one forward pass"),
        (UninitializedBuffer, "lazy .*run one forward pass"),
        (lambda: torch.ones(2).as_subclass(Own), r"test_leaves\.Own: save its plain inner tensors"),
        (lambda: torch.nn.Parameter(torch.ones(2).as_subclass(Own)), r"Own: save its plain inner tensors"),
        (fake, r"FakeTensor: save its plain inner tensors"),
        (lambda: torch.ones(2, device="meta"), r"meta device: .*to_empty\(device=…\)"),
        (lambda: torch.nn.Parameter(torch.ones(2, device="meta")), r"meta device"),
        (freed, "memory was freed"),
        (lambda: np.ma.array([1, 2], mask=[True, False]), "masked array .*its data and its mask"),
        (lambda: np.array(["text"]), "dtype <U4 cannot be stored"),
    ],
)
def test_what_has_no_plain_elements_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedLeaf, match=rf"^model\['w'\]: .*{message}"):
        leaves.check(make(), "model['w']")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2),
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Buffer(torch.ones(2)),
        torch.ones(()).expand(3),
        torch.empty(0),
        torch.empty(3, 0),
        np.ones(2),
        np.float32(1),
    ],
)
def test_plain_ones_pass(tensor: Any) -> None:
    leaves.check(tensor, "w")


def test_what_is_an_array_and_what_a_value() -> None:
    long, short = bytes(65_537), bytes(65_536)
    assert [leaf for leaf in (torch.ones(1), np.ones(1), np.float32(1)) if not leaves.is_array(leaf)] == []
    assert (leaves.is_array(long), plain.is_long(long)) == (True, True)
    assert (leaves.is_array(short), plain.is_long(short), plain.is_value(short)) == (False, False, True)
    assert [plain.is_value(leaf) for leaf in (True, 1, 1.0, "a", torch.Size([1]), 1j, np.float64(1))] == [True] * 4 + [False] * 3
    assert [plain.scalar_kind(leaf) for leaf in (True, 1, 1.0, "a", None)] == ["bool", "int", "float", None, None]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_of_a_dtensor_the_local_part_is_looked_at(mesh: DeviceMesh) -> None:
    leaves.check(DTensor.from_local(torch.ones(2), mesh), "w")
    leaves.check(torch.nn.Parameter(DTensor.from_local(torch.ones(2), mesh)), "w")
    with pytest.raises(UnsupportedLeaf, match=r"w: a DTensor whose local part is the tensor subclass .*Own"):
        leaves.check(DTensor.from_local(torch.ones(2).as_subclass(Own), mesh, run_check=False), "w")
    with pytest.raises(UnsupportedLeaf, match=r"w: a tensor on the meta device"):
        leaves.check(DTensor.from_local(torch.ones(2, device="meta"), mesh, run_check=False), "w")


class HalfStateful:
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (HalfStateful(), r"HalfStateful has no place .*lacks load_state_dict\(\)"),
        (torch.float32, r"torch\.dtype has no place .*str\(it\)"),
        (torch.device("cpu"), r"torch\.device has no place .*str\(it\)"),
        (iter([1]), r"list_iterator has no place .*load_state_dict\(state\)"),
        (len, "Functions are code, not state"),
        (1j, "^m: complex has no place in a checkpoint"),
        (deque([1]), r"^m: collections\.deque has no place in a checkpoint"),
    ],
)
def test_anything_else_is_an_error_that_says_what_to_do(leaf: Any, message: str) -> None:
    error = leaves.unsupported(leaf, "m")
    with pytest.raises(UnsupportedLeaf, match=message):
        raise error
