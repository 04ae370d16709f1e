"""Element types: the logical name of a leaf, and how its elements are stored (spec: arrays, "dtypes").

A dtype's name is that of numpy or ml_dtypes. What TensorStore's zarr3 driver can hold is stored
as it is; other types of at most eight bits are stored as `uint8`, the same bits.

Bytes are those of numpy in little endian. A type narrower than eight bits (int4, uint2,
float6_e2m3fn, …) takes one byte an element, its bits the lowest, the unused ones zero; a bool
is 0 or 1. Digests are over these bytes, so `to_stored` sets the unused bits to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ckptcore.errors import CallError, UnsupportedFormat, UnsupportedLeaf

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    *("int2", "int4", "bfloat16", "float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_AS_BYTES = ("int1", "uint1", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
_BITS = {
    **dict.fromkeys(("bool", "int1", "uint1"), 1),
    **dict.fromkeys(("int2", "uint2"), 2),
    **dict.fromkeys(("int4", "uint4", "float4_e2m1fn"), 4),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), 6),
}


@dataclass(frozen=True)
class _Element:
    logical: np.dtype
    stored: np.dtype
    stored_name: str
    bits: int


def _table() -> dict[str, _Element]:
    natural = {name: np.dtype(name).newbyteorder("<") for name in _NUMPY}
    natural |= {name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES}
    table = {name: _Element(dtype, dtype, name, _BITS.get(name, 8 * dtype.itemsize)) for name, dtype in natural.items()}
    for name in _AS_BYTES:
        table[name] = _Element(np.dtype(getattr(ml_dtypes, name)), np.dtype(np.uint8), "uint8", _BITS.get(name, 8))
    return table


_ELEMENTS = _table()
# By dtype, in either byte order: numpy works out `dtype.name` anew each time, which shows in saves of many leaves.
_NAMES = {dtype: name for name, element in _ELEMENTS.items() for dtype in (element.logical, element.logical.newbyteorder(">"))}

LOGICAL = frozenset(_ELEMENTS)
"""The names of all dtypes that a leaf can have."""

STORED = frozenset(element.stored_name for element in _ELEMENTS.values())
"""The names of the dtypes that arrays have in storage."""


def name_of(dtype: np.dtype, *, where: str) -> str:
    """The logical name of `dtype`. Raises `UnsupportedLeaf`, naming the leaf `where`, if the format has none."""
    name = _NAMES.get(dtype)
    if name is None:
        raise UnsupportedLeaf(
            f"{where}: an array of dtype {dtype} cannot be stored; convert it to one of {', '.join(sorted(LOGICAL))}"
        )
    return name


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of a logical or stored name. Raises `UnsupportedFormat` for an unknown one."""
    return _element(name).logical


def stored_name(name: str) -> str:
    """The name of the dtype in which elements of the logical dtype `name` are stored."""
    return _element(name).stored_name


def itemsize(name: str) -> int:
    """Bytes an element of the logical dtype `name` takes, in memory and in storage."""
    return _element(name).stored.itemsize


def to_stored(array: np.ndarray, *, where: str = "array") -> np.ndarray:
    """`array` in its stored dtype: a view of the same memory unless bytes have to be set right.

    It is copied when it is big-endian, or of a narrow type with unused bits set. Raises
    `UnsupportedLeaf` as `name_of` does.
    """
    element = _ELEMENTS[name_of(array.dtype, where=where)]
    little = array if array.dtype.isbuiltin == 2 else array.astype(array.dtype.newbyteorder("<"), copy=False)
    if element.bits < 8:
        raw = little.view(np.uint8)
        mask = np.uint8((1 << element.bits) - 1)
        if raw.size and raw.max() > mask:
            raw = (raw != 0).astype(np.uint8) if element.logical == np.bool_ else raw & mask
        return raw.view(element.stored)
    return little.view(element.stored)


def from_stored(array: np.ndarray, name: str) -> np.ndarray:
    """A view of a stored array in its logical dtype `name`. Raises `CallError` if `array` is not in its stored dtype."""
    element = _element(name)
    if array.dtype != element.stored:
        raise CallError(f"an array of {array.dtype} is not the stored form of {name}, which is {element.stored}")
    return array.view(element.logical)


def _element(name: str) -> _Element:
    element = _ELEMENTS.get(name)
    if element is None:
        raise UnsupportedFormat(f"dtype {name[:80]!r} is not known to this release; use a newer one")
    return element
