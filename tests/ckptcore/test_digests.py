from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptcore import digests, records
from ckptcore.errors import CallError, Damaged, InvalidRecord
from ckptcore.geometry import Grid

EMPTY = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
A, B = "blake3:" + "a" * 64, "blake3:" + "b" * 64
TOPOLOGY = records.Topology(framework="jax", platform="cpu", participants=2, devices=4)


def test_worked_vectors_of_bytes() -> None:
    assert digests.digest(b"") == EMPTY
    assert digests.digest(b"abc") == "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"


def test_worked_vectors_of_arrays_are_those_of_their_little_endian_bytes() -> None:
    assert digests.digest(np.array([1, 2], np.uint16)) == digests.digest(b"\x01\x00\x02\x00")
    assert digests.digest(np.array([1, 2], ">u2")) == digests.digest(b"\x01\x00\x02\x00")
    assert digests.digest(np.array(1.0, ml_dtypes.bfloat16)) == digests.digest(b"\x80\x3f")
    assert digests.digest(np.zeros((0, 3), np.float32)) == EMPTY
    assert digests.digest(np.array([True, False])) == digests.digest(b"\x01\x00")


def structure(text: str) -> str:
    return f"blake3:{blake3(text.encode()).hexdigest()}"


def test_worked_vectors_of_structures() -> None:
    regular = digests.leaf_digest("float32", (3, 4), Grid.regular((3, 4), (2, 4)), [A, B])
    assert regular == structure(f'["ckpt/leaf","float32",[3,4],[2,4],["{A}","{B}"]]')
    irregular = digests.leaf_digest("float32", (3,), Grid.irregular((3,), ((0, 1, 3),)), [A, B])
    assert irregular == structure(f'["ckpt/leaf","float32",[3],[[0,1,3]],["{A}","{B}"]]')
    scalar = digests.leaf_digest("int32", (), Grid.regular((), ()), [A])
    assert scalar == structure(f'["ckpt/leaf","int32",[],[],["{A}"]]')
    assert digests.value_digest({"$float": "0.1"}) == structure('["ckpt/value",{"$float":"0.1"}]')
    assert digests.component_digest("rng", {"rng.b": B, "rng.a": A}) == structure(
        f'["ckpt/component","rng",{{"rng.a":"{A}","rng.b":"{B}"}}]'
    )
    assert digests.topology_digest(TOPOLOGY) == structure(
        '["ckpt/topology",{"devices":4,"framework":"jax","meshes":[],"participants":2,"platform":"cpu"}]'
    )


def test_worked_vectors_as_numbers() -> None:
    assert digests.value_digest(None) == "blake3:d9ee4e0a52f9d250b2a28a3f47ce3acec3fbcd83323de5c0a193d612d7a4bf3b"
    assert digests.component_digest("params", {}) == "blake3:dab9583a1d8a4743fdbd1fb1118dbf5b5e9122a5dc867d16802114f19e17e97b"


ARRAYS = hnp.arrays(
    hnp.floating_dtypes() | hnp.integer_dtypes(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
)


@given(ARRAYS)
def test_an_array_has_the_digest_of_its_logical_bytes_however_it_lies_in_memory(array: np.ndarray) -> None:
    little = array.astype(array.dtype.newbyteorder("<"))
    expected = digests.digest(little.tobytes())
    assert digests.digest(array) == expected
    assert digests.digest(np.asfortranarray(array)) == expected
    assert digests.digest(np.repeat(array[..., None], 2, axis=-1)[..., 0]) == expected


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.complex64, np.bool_])
def test_every_dtype_is_hashed_by_its_bytes(dtype: type) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    assert digests.digest(array.T[::-1]) == digests.digest(array.T[::-1].tobytes())


def test_memory_views_and_read_only_arrays_are_hashed() -> None:
    array: Any = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    expected = digests.digest(array.tobytes())
    assert digests.digest(array) == digests.digest(memoryview(array)) == digests.digest(bytearray(array.tobytes())) == expected
    assert digests.digest(memoryview(array)[::-1]) == digests.digest(array[::-1])


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert np.shares_memory(digests._buffer(array), array)
    assert np.shares_memory(digests._buffer(array[1]), array)


def test_python_objects_have_no_bytes() -> None:
    with pytest.raises(CallError, match="object"):
        digests.digest(np.array([object()]))


@given(st.binary(max_size=64))
def test_check_accepts_the_digest_of_either_algorithm(data: bytes) -> None:
    digests.check(data, digests.digest(data), what="x")
    digests.check(data, "sha256:" + hashlib.sha256(data).hexdigest(), what="x")


@given(st.binary(min_size=1, max_size=64), st.data())
def test_check_sees_one_flipped_bit(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(Damaged, match=r"chunk 3 of params\.w"):
        digests.check(damaged, digests.digest(data), what="chunk 3 of params.w")
    with pytest.raises(Damaged):
        digests.check(damaged, "sha256:" + hashlib.sha256(data).hexdigest(), what="x")


@pytest.mark.parametrize(
    "expected", ["", "blake3:", EMPTY.upper(), EMPTY + "\n", "md5:" + "0" * 32, "blake3:" + "0" * 63, "0" * 64]
)
def test_check_refuses_what_is_no_digest(expected: str) -> None:
    with pytest.raises(InvalidRecord, match="not a digest"):
        digests.check(b"", expected, what="x")


def test_every_part_of_a_leaf_enters_its_digest() -> None:
    grid = Grid.regular((4, 4), (2, 4))
    found = {
        digests.leaf_digest("float32", (4, 4), grid, [A, B]),
        digests.leaf_digest("int32", (4, 4), grid, [A, B]),
        digests.leaf_digest("float32", (4, 4), grid, [B, A]),
        digests.leaf_digest("float32", (4, 4), grid, [A]),
        digests.leaf_digest("float32", (4, 4), Grid.regular((4, 4), (4, 2)), [A, B]),
        digests.leaf_digest("float32", (4, 4), Grid.irregular((4, 4), ((0, 2, 4), (0, 4))), [A, B]),
        digests.leaf_digest("float32", (16,), Grid.regular((16,), (8,)), [A, B]),
    }
    assert len(found) == 7


def test_every_part_of_a_topology_enters_its_digest() -> None:
    mesh = records.Mesh(axes=["x"], shape=[4], devices=A)
    others = [
        records.Topology(framework="torch", platform="cpu", participants=2, devices=4),
        records.Topology(framework="jax", platform="gpu", participants=2, devices=4),
        records.Topology(framework="jax", platform="cpu", participants=4, devices=4),
        records.Topology(framework="jax", platform="cpu", participants=2, devices=8),
        records.Topology(framework="jax", platform="cpu", participants=2, devices=4, meshes=[mesh]),
    ]
    assert len({digests.topology_digest(topology) for topology in [TOPOLOGY, *others]}) == 6


def test_a_component_is_told_by_its_name_and_its_leaves_names() -> None:
    found = {
        digests.component_digest("a", {"a.x": A}),
        digests.component_digest("b", {"a.x": A}),
        digests.component_digest("a", {"a.y": A}),
        digests.component_digest("a", {"a.x": B}),
        digests.component_digest("a", {}),
    }
    assert len(found) == 5
