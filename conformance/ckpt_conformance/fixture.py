"""The content of fixtures, by formula (spec: chapter 15): any box of any array, without the whole of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from ckpt_conformance.oracle.digests import digest
from ckpt_conformance.oracle.elements import ELEMENTS, logical_bytes
from ckpt_conformance.oracle.values import encode

__all__ = ["array", "box_digest", "encode", "mix", "unit", "value", "z"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix(y: np.ndarray) -> np.ndarray:
    """The 64-bit finalizer of C-5, of numbers of type uint64."""
    with np.errstate(over="ignore"):  # numpy warns of scalars only: products are modulo 2⁶⁴
        y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return y ^ (y >> np.uint64(31))


def z(name: str, step: int, index: Any) -> np.ndarray:
    """The 64-bit numbers of a stored name and step at the places `index` (X-2)."""
    head = np.frombuffer(blake3(f"ckpt/fixture/1/{name}/{step}".encode()).digest(8), "<u8")
    with np.errstate(over="ignore"):
        return mix(head[0] + (np.asarray(index, np.uint64) + np.uint64(1)) * _GAMMA)


def unit(numbers: np.ndarray) -> np.ndarray:
    """Numbers of 64 bits as binary64 from 0 up to, not including, 1: their 53 highest bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def array(
    name: str,
    dtype: str,
    shape: Sequence[int],
    step: int,
    *,
    start: Sequence[int] | None = None,
    stop: Sequence[int] | None = None,
) -> np.ndarray:
    """The elements of the box from `start` to `stop` of an array of that stored name, in its logical dtype (X-3).

    Without `start` and `stop` it is the whole array.
    """
    first = start or [0] * len(shape)
    last = shape if stop is None else stop
    index = _places(shape, first, last)
    element = ELEMENTS[dtype]
    if element.dtype.kind == "c":
        parts = z(name, step, np.stack([2 * index, 2 * index + np.uint64(1)], axis=-1))
        half = np.dtype(f"<f{element.dtype.itemsize // 2}")
        return _from_bits(parts, half, 8 * half.itemsize).view(element.dtype)[..., 0]
    return _from_bits(z(name, step, index), element.dtype, element.bits)


def _places(shape: Sequence[int], start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
    """The C-order index in the whole array of every element of a box."""
    index = np.zeros((), np.uint64)
    for axis, (first, last) in enumerate(zip(start, stop, strict=True)):
        stride = math.prod(shape[axis + 1 :])
        index = index[..., np.newaxis] + np.arange(first, last, dtype=np.uint64) * np.uint64(stride)
    return index


def _from_bits(numbers: np.ndarray, dtype: np.dtype, bits: int) -> np.ndarray:
    """Elements whose bits are the lowest ones of `numbers`; what is not finite is replaced by zero bits."""
    mask = np.uint64(2**bits - 1)
    found = np.asarray(numbers & mask, f"<u{dtype.itemsize}", order="C").view(dtype)
    if dtype.kind in "biu" or bits < 8:
        return found
    with np.errstate(invalid="ignore"):  # asking whether a NaN is finite
        finite = np.isfinite(found)
    return np.where(finite, found, np.zeros((), dtype))


def box_digest(  # noqa: PLR0917 - a box of an array, in the order of `array`
    name: str, dtype: str, shape: Sequence[int], step: int, start: Sequence[int], stop: Sequence[int]
) -> str:
    """The digest over the elements of a box (D-3)."""
    return digest(logical_bytes(array(name, dtype, shape, step, start=start, stop=stop), dtype))


def value(sort: str, name: str, step: int) -> Any:
    """The value of the leaf of that stored name (X-4). Raises `ValueError` for an unknown sort."""
    if sort not in _SORTS:
        raise ValueError(f"{sort!r} is no sort of value: {', '.join(_SORTS)}")
    return _SORTS[sort](name, step, int(z(name, step, 0)))


def _float(number: int) -> float:
    found = struct.unpack("<d", struct.pack("<Q", number))[0]
    return found if math.isfinite(found) else 0.0


_SORTS: dict[str, Callable[[str, int, int], Any]] = {
    "null": lambda name, step, number: None,  # noqa: ARG005 - every sort is made from the same three
    "bool": lambda name, step, number: bool(number & 1),  # noqa: ARG005
    "int": lambda name, step, number: number % 2**53,  # noqa: ARG005
    "bigint": lambda name, step, number: 2**64 + number,  # noqa: ARG005
    "float": lambda name, step, number: _float(number),  # noqa: ARG005
    "string": lambda name, step, number: f"{name}@{step}",  # noqa: ARG005
    "bytes": lambda name, step, number: number.to_bytes(8, "little"),  # noqa: ARG005
    "empty-dict": lambda name, step, number: {},  # noqa: ARG005
    "empty-list": lambda name, step, number: [],  # noqa: ARG005
}
