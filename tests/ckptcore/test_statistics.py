"""Statistics of every element type, against numpy on the whole array."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ckptcore import dtypes
from ckptcore.inspect import statistics
from ckptcore.inspect.statistics import Apart, Statistics, Tally


def of(array: np.ndarray, parts: int = 1) -> Statistics:
    tally = Tally()
    for part in np.array_split(array.reshape(-1), parts):
        tally.add(part)
    return tally.result()


@pytest.mark.parametrize("name", sorted(dtypes.LOGICAL))
def test_every_dtype(name: str) -> None:
    dtype = dtypes.numpy_dtype(name)
    numbers = [0, 1, 1, 0] if name in ("bool", "uint1") else [0, -1, 0, -1] if name == "int1" else [1, 1, 0, 1]
    if name == "float8_e8m0fnu":
        numbers = [1, 2, 4, 2]
    array = np.array(numbers).astype(dtype)
    found = of(array)
    assert (found.count, found.nan, found.inf) == (4, 0, 0)
    assert (found.minimum, found.maximum, found.zeros) == (min(numbers), max(numbers), numbers.count(0))
    assert found.mean == pytest.approx(np.mean(numbers))
    assert found.std == pytest.approx(np.std(numbers))


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    array = np.array([math.nan, math.inf, -math.inf, 1.0, 3.0, 0.0], ml_dtypes.bfloat16)
    found = of(array)
    assert (found.count, found.nan, found.inf, found.zeros, found.minimum, found.maximum) == (6, 1, 2, 1, 0.0, 3.0)
    assert (found.mean, found.std) == (pytest.approx(4 / 3), pytest.approx(1.2472191))


def test_nothing_at_all() -> None:
    nothing = Statistics(count=0, minimum=None, maximum=None, mean=None, std=None, nan=0, inf=0, zeros=0)
    assert of(np.zeros((0, 3))) == nothing
    assert of(np.array([math.nan])).mean is None


def test_integers_are_exact() -> None:
    found = of(np.array([2**63 - 1, -(2**63)], np.int64))
    assert (found.minimum, found.maximum) == (-(2**63), 2**63 - 1)
    assert of(np.array([2**64 - 1], np.uint64)).maximum == 2**64 - 1


def test_complex_numbers_count_by_their_modulus() -> None:
    found = of(np.array([3 + 4j, 0, complex(math.nan, 1)], np.complex64))
    assert (found.minimum, found.maximum, found.zeros, found.nan) == (0.0, 5.0, 1, 1)


def test_parts_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(1).normal(1e6, 1.0, 10_007)
    monkeypatch.setattr(statistics, "PIECE", 100)
    found = of(array, 7)
    assert found.mean == pytest.approx(array.mean(), rel=1e-12)
    assert found.std == pytest.approx(array.std(), rel=1e-6)
    assert (found.minimum, found.maximum) == (array.min(), array.max())


def test_what_no_double_can_hold_is_not_told() -> None:
    found = of(np.array([1.7e308, 1.7e308, -1.7e308]))
    assert found.std is None
    assert found.maximum == 1.7e308


def apart(left: np.ndarray, right: np.ndarray) -> Apart:
    found = Apart()
    found.add(left, right)
    return found


def test_how_far_two_arrays_are_apart() -> None:
    found = apart(np.array([1.0, 2.0, math.nan, 4.0]), np.array([1.0, 2.5, math.nan, 2.0]))
    assert (found.count, found.differing, found.largest, found.relative) == (4, 2, 2.0, 0.5)
    assert not found.identical


def test_what_only_one_side_has_is_infinitely_far() -> None:
    for other in (math.nan, math.inf):
        found = apart(np.array([1.0]), np.array([other]))
        assert (found.differing, found.largest, found.relative) == (1, math.inf, math.inf)
    assert apart(np.array([math.inf]), np.array([math.inf])).differing == 0


def test_zeros_of_two_signs_are_equal_and_not_identical() -> None:
    found = apart(np.array([0.0]), np.array([-0.0]))
    assert (found.differing, found.identical) == (0, False)


@pytest.mark.parametrize(
    "name", ["bool", "int4", "bfloat16", "float8_e4m3fn", "complex64", "uint64", "int64", "float16", "uint8"]
)
def test_apart_in_every_kind_of_dtype(name: str) -> None:
    dtype = dtypes.numpy_dtype(name)
    found = apart(np.array([0, 1, 1]).astype(dtype), np.array([0, 0, 1]).astype(dtype))
    assert (found.differing, found.largest, found.relative) == (1, 1.0, 1.0)


def test_large_integers_are_apart_by_one() -> None:
    found = apart(np.array([2**62], np.int64), np.array([2**62 + 1], np.int64))
    assert (found.differing, found.largest) == (1, 1.0)
