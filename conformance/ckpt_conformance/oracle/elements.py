"""Elements of arrays: dtypes, and their logical bytes (spec: A-8, A-9, D-3)."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    *("bfloat16", "int2", "int4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_AS_BYTES = ("int1", "uint1", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
_NARROW = {"bool": 1, "int1": 1, "uint1": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
_NARROW |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}


@dataclass(frozen=True)
class Element:
    """A logical dtype: numpy's object for it, the name of the stored dtype, and the bits of an element."""

    dtype: np.dtype
    stored: str
    bits: int


def _element(name: str) -> Element:
    dtype = np.dtype(name).newbyteorder("<") if name in _NUMPY else np.dtype(getattr(ml_dtypes, name))
    return Element(dtype, "uint8" if name in _AS_BYTES else name, _NARROW.get(name, 8 * dtype.itemsize))


ELEMENTS = {name: _element(name) for name in (*_NUMPY, *_ML_DTYPES, *_AS_BYTES)}
"""Every logical dtype by name (A-9)."""


def logical_bytes(array: np.ndarray, dtype: str) -> bytes:
    """The elements of `array`, whose logical dtype is `dtype`, in C order as they are digested (D-3).

    `array` has the logical or the stored dtype.
    """
    data = np.ascontiguousarray(array)
    bits = ELEMENTS[dtype].bits
    if dtype == "bool":
        return (data.view(np.uint8) != 0).tobytes()
    if bits < 8:
        return (data.view(np.uint8) & np.uint8(2**bits - 1)).tobytes()
    return data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
