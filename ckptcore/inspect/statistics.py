"""Statistics of arrays of any element type, piece by piece, in bounded memory. Pure.

Least, greatest, mean and standard deviation are over the finite elements, in double precision (integers' extremes
are exact); of complex numbers they are over the moduli. NaN and infinities are counted, and so are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

PIECE = 1 << 20
"""How many elements are looked at a time."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of an array. The four numbers are None where no finite element is, or where a double cannot hold them."""

    count: int
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    zeros: int


@dataclass
class Tally:
    """Statistics under construction."""

    count: int = 0
    finite: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squares of the distances from the mean."""
    extremes: list[float | int] = field(default_factory=list)

    def add(self, array: np.ndarray) -> None:
        """Take in some elements, in their logical dtype."""
        flat = array.reshape(-1)
        for start in range(0, flat.size, PIECE):
            self._add(numbers(flat[start : start + PIECE]))

    def result(self) -> Statistics:
        """What has come together."""
        variance = self.squares / self.finite if self.finite else math.nan
        return Statistics(
            count=self.count,
            minimum=min(self.extremes, default=None),
            maximum=max(self.extremes, default=None),
            mean=_held(self.mean) if self.finite else None,
            std=_held(math.sqrt(variance)) if variance >= 0 else None,
            nan=self.nan,
            inf=self.inf,
            zeros=self.zeros,
        )

    def _add(self, values: np.ndarray) -> None:
        self.count += values.size
        self.zeros += values.size - int(np.count_nonzero(values))
        if values.dtype.kind == "f":
            nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
            self.nan, self.inf = self.nan + nan, self.inf + inf
            values = values[np.isfinite(values)] if nan or inf else values
        if values.size:
            self.extremes = [f([*self.extremes, v]) for f, v in ((min, values.min().item()), (max, values.max().item()))]
            self._merge(values.astype(np.float64, copy=False))

    def _merge(self, values: np.ndarray) -> None:
        """The parallel form of Welford's algorithm (Chan et al.)."""
        with np.errstate(all="ignore"):
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
            total, apart = self.finite + values.size, mean - self.mean
            self.squares += squares + apart * apart * self.finite * values.size / total
            self.mean += apart * values.size / total
            self.finite = total


def numbers(array: np.ndarray) -> np.ndarray:
    """Elements as numbers that numpy computes with: the same values, of complex ones the moduli, of booleans 0 and 1."""
    if array.dtype.isbuiltin == 2:
        exact = array.astype(np.float64)  # one of ml_dtypes: none has more than 16 bits
        return exact.astype(np.int64) if is_integer(array.dtype) else exact
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    return np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array


def is_integer(dtype: np.dtype) -> bool:
    """Whether a dtype, of numpy or of ml_dtypes, is one of integers."""
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


@dataclass
class Apart:
    """How far two arrays are apart, under construction. NaN in both places counts as equal, as do equal infinities.

    `identical`: whether the bits are the same, too.
    """

    differing: int = 0
    count: int = 0
    largest: float = 0.0
    relative: float = 0.0
    identical: bool = True

    def add(self, left: np.ndarray, right: np.ndarray) -> None:
        """Take in the same elements of both, in their logical dtype."""
        self.identical = self.identical and left.tobytes() == right.tobytes()
        for one, other in _pieces(left, right):
            self.count += one.size
            changed = ~((one == other) | ((one != one) & (other != other)))  # noqa: PLR0124 - NaN
            self.differing += int(changed.sum())
            if changed.any():
                self._measure(wide(one[changed]), wide(other[changed]))

    def _measure(self, one: np.ndarray, other: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            apart = np.abs(one - other).astype(np.float64)
            scale = np.maximum(np.abs(one), np.abs(other)).astype(np.float64)
            ratio = np.where(np.isfinite(apart), apart / scale, np.inf)
        self.largest = max(self.largest, _most(apart))
        self.relative = max(self.relative, _most(ratio))


def _pieces(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    one, other = left.reshape(-1), right.reshape(-1)
    for start in range(0, one.size, PIECE):
        yield one[start : start + PIECE], other[start : start + PIECE]


def wide(array: np.ndarray) -> np.ndarray:
    """Elements in a type in which their differences can be computed."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    large = array.dtype.kind in "iu" and array.dtype.itemsize == 8
    return numbers(array).astype(np.longdouble if large else np.float64)  # a long double holds 64 bits, where there is one


def _most(values: np.ndarray) -> float:
    """The greatest; of what is not finite, infinity."""
    return math.inf if not np.isfinite(values).all() else float(values.max())


def _held(value: float) -> float | None:
    return value if math.isfinite(value) else None
