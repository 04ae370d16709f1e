"""The state: its sizes, the same values each time, and that nothing compresses it."""

import zlib

import numpy as np
import pytest

from benchmarks import state


@pytest.mark.parametrize(
    ("size", "count", "nbytes"),
    [("smoke", 22, 1_638_912), ("small", 42, 59_904_000), ("reference", 122, 1_493_038_080), ("large", 242, 4_257_263_616)],
)
def test_sizes(size: str, count: int, nbytes: int) -> None:
    assert (len(state.shapes(size)), state.nbytes(size)) == (count, nbytes)


def test_arrays_are_what_each_gives_and_as_many_bytes_as_is_said() -> None:
    arrays = state.arrays("smoke")
    assert list(arrays) == list(state.COMPONENTS)
    assert sum(values.nbytes for named in arrays.values() for values in named.values()) == state.nbytes("smoke")
    for component, name, values in state.each("smoke"):
        state.compare(component, name, values, arrays[component][name])


def test_values_are_finite_and_differ_between_arrays() -> None:
    arrays = state.arrays("smoke")
    assert all(np.isfinite(values).all() for named in arrays.values() for values in named.values())
    assert len({values.tobytes() for named in arrays.values() for values in named.values()}) == 3 * 22


def test_nothing_makes_it_smaller() -> None:
    data = state.array("params", "wte", (512, 64)).tobytes()
    assert len(zlib.compress(data, 9)) > 0.96 * len(data)


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7)])
def test_odd_counts(shape: tuple[int, ...]) -> None:
    assert state.array("mu", "odd", shape).shape == shape


def test_one_other_bit_is_seen() -> None:
    expected = state.array("nu", "x", (4, 4))
    found = expected.copy()
    found.view(np.uint32)[3, 3] ^= 1
    with pytest.raises(state.Different, match="nu/x: other values"):
        state.compare("nu", "x", expected, found)


@pytest.mark.parametrize("found", [np.zeros(3, np.float32), np.zeros((2, 2), np.int32)])
def test_another_shape_or_type_is_seen(found: np.ndarray) -> None:
    with pytest.raises(state.Different, match="not float32"):
        state.compare("mu", "x", np.zeros((2, 2), np.float32), found)


def test_negative_zero_is_not_zero() -> None:
    with pytest.raises(state.Different):
        state.compare("mu", "x", np.zeros(1, np.float32), -np.zeros(1, np.float32))
