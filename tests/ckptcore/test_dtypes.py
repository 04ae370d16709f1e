"""Element types: names, stored forms, and that no bit is lost on the way."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from ckptcore import dtypes
from ckptcore.errors import CallError, UnsupportedFormat, UnsupportedLeaf

NARROW = {
    "int1": 1,
    "uint1": 1,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}


def every_bit_pattern(name: str) -> np.ndarray:
    """All values of types up to eight bits, random bytes of wider ones."""
    dtype = dtypes.numpy_dtype(name)
    if name == "bool":
        return np.array([False, True])
    if name in NARROW:
        return np.arange(1 << NARROW[name], dtype=np.uint8).view(dtype)
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    return np.frombuffer(np.random.default_rng(1).bytes(64 * dtype.itemsize), dtype)


@pytest.mark.parametrize("name", sorted(dtypes.LOGICAL))
def test_every_bit_survives_without_a_copy(name: str) -> None:
    array = every_bit_pattern(name)
    assert dtypes.name_of(array.dtype, where="x") == name
    stored = dtypes.to_stored(array)
    assert np.shares_memory(stored, array)
    assert stored.dtype == dtypes.numpy_dtype(dtypes.stored_name(name))
    back = dtypes.from_stored(stored, name)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()
    assert dtypes.itemsize(name) == array.itemsize == stored.itemsize


def test_all_that_ml_dtypes_has_is_covered_or_refused() -> None:
    named = {name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type) and name not in ("finfo", "iinfo")}
    assert named - dtypes.LOGICAL == {"complex32", "bcomplex32"}


@pytest.mark.parametrize("name", sorted(dtypes.STORED))
def test_the_zarr3_driver_takes_every_stored_dtype(name: str) -> None:
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"shape": [2], "data_type": name}, "create": True}
    assert ts.open(spec).result().dtype.numpy_dtype == dtypes.numpy_dtype(name)


@pytest.mark.parametrize("name", sorted(dtypes.LOGICAL - dtypes.STORED))
def test_what_is_stored_as_bytes_is_what_the_driver_lacks(name: str) -> None:
    assert dtypes.stored_name(name) == "uint8"
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"shape": [2], "data_type": name}, "create": True}
    with pytest.raises(ValueError, match="not one of the supported data types"):
        ts.open(spec).result()


@pytest.mark.parametrize("name", sorted(NARROW))
def test_unused_bits_are_cleared(name: str) -> None:
    dirty = np.arange(256, dtype=np.uint8).view(dtypes.numpy_dtype(name))
    stored = dtypes.to_stored(dirty)
    assert stored.view(np.uint8).tolist() == [value % (1 << NARROW[name]) for value in range(256)]
    assert dirty.view(np.uint8)[255] == 255, "the caller's array stays as it is"


def test_a_bool_is_zero_or_one() -> None:
    assert dtypes.to_stored(np.array([0, 1, 2, 255], np.uint8).view(np.bool_)).view(np.uint8).tolist() == [0, 1, 1, 1]


def test_equal_dtypes_have_one_name() -> None:
    assert {dtypes.name_of(np.dtype(code), where="x") for code in "lq"} == {"int64"}


def test_bytes_are_little_endian() -> None:
    array = np.array([1.5, -2.0], ">f4")
    stored = dtypes.to_stored(array)
    assert dtypes.name_of(array.dtype, where="x") == "float32"
    assert stored.tobytes() == np.array([1.5, -2.0], "<f4").tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("name", ["float32", "int4", "uint4", "bool", "bfloat16"])
def test_shapes_stay(name: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtypes.numpy_dtype(name))
    assert dtypes.to_stored(array).shape == shape
    assert dtypes.from_stored(dtypes.to_stored(array), name).shape == shape


def test_views_that_are_not_contiguous() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 6).view(ml_dtypes.uint4)[:, ::2]
    assert dtypes.to_stored(array).tolist() == (np.arange(24).reshape(4, 6)[:, ::2] % 16).tolist()


@pytest.mark.parametrize(
    "dtype", ["O", "U3", "S4", "M8[ns]", "m8[s]", "V8", np.dtype([("a", "f4")]), ml_dtypes.complex32, np.longdouble]
)
def test_other_dtypes_are_refused_by_the_name_of_the_leaf(dtype: Any) -> None:
    with pytest.raises(UnsupportedLeaf, match=r"params\.w"):
        dtypes.to_stored(np.zeros(2, dtype), where="params.w")


def test_unknown_names_in_records_are_refused() -> None:
    for call in (dtypes.numpy_dtype, dtypes.stored_name, dtypes.itemsize):
        with pytest.raises(UnsupportedFormat, match="float128"):
            call("float128")


def test_the_wrong_stored_form_is_refused() -> None:
    with pytest.raises(CallError, match="uint8"):
        dtypes.from_stored(np.zeros(2, np.int8), "uint4")
