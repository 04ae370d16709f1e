"""Fixtures: what numpy computes is what the formula of chapter 15 says, element by element."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt_conformance import fixture
from ckpt_conformance.oracle.digests import digest
from ckpt_conformance.oracle.elements import ELEMENTS, logical_bytes
from tests.conformance import slow_fixture

CHAPTER = (Path(__file__).parents[2] / "spec" / "v1" / "15-fixture.md").read_text(encoding="utf-8")


def _block(tag: str) -> list[dict[str, Any]]:
    (block,) = re.findall(rf"^```{tag}\n(.*?)^```$", CHAPTER, re.MULTILINE | re.DOTALL)
    return [json.loads(line) for line in block.splitlines()]


def test_the_chapter_has_the_vectors_of_the_slow_formula() -> None:
    made = slow_fixture.vectors()
    assert {tag: _block(tag) for tag in made} == made
    assert {vector["dtype"] for vector in made["vectors-fixture"]} == set(ELEMENTS)


def test_numbers() -> None:
    for vector in _block("vectors-z"):
        assert f"{int(fixture.z(vector['name'], vector['step'], vector['i'])):016x}" == vector["z"]


@pytest.mark.parametrize("vector", _block("vectors-fixture"), ids=lambda vector: f"{vector['name']}-{vector['dtype']}")
def test_boxes(vector: dict[str, Any]) -> None:
    given = {key: vector[key] for key in ("name", "dtype", "shape", "step", "start", "stop")}
    assert logical_bytes(fixture.array(**given), vector["dtype"]).hex() == vector["hex"]
    assert fixture.box_digest(**given) == digest(bytes.fromhex(vector["hex"]))


def test_values() -> None:
    for vector in _block("vectors-fixture-value"):
        value = fixture.value(vector["sort"], vector["name"], vector["step"])
        assert fixture.encode(value) == vector["encoded"]
    with pytest.raises(ValueError, match="no sort"):
        fixture.value("set", "x", 1)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_a_box_is_a_part_of_the_whole(dtype: str) -> None:
    whole = fixture.array("params.w", dtype, (5, 3, 7), 9)
    part = fixture.array("params.w", dtype, (5, 3, 7), 9, start=(1, 0, 2), stop=(5, 2, 7))
    assert whole.dtype == part.dtype == ELEMENTS[dtype].dtype
    assert logical_bytes(whole[1:5, 0:2, 2:7], dtype) == logical_bytes(part, dtype)
    assert logical_bytes(whole, dtype) == slow_fixture.box("params.w", dtype, (5, 3, 7), 9, (0, 0, 0), (5, 3, 7))


@pytest.mark.parametrize("dtype", [name for name in ELEMENTS if "float" in name or "complex" in name])
def test_nothing_is_infinite_or_no_number(dtype: str) -> None:
    found = fixture.array("params.w", dtype, (100_000,), 2)
    bits = np.frombuffer(logical_bytes(found, dtype), f"<u{min(8, found.dtype.itemsize)}")
    assert np.isfinite(found).all()
    assert len(set(bits[:1000].tolist())) > 5, "it is not all zeros"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int4", "complex64", "bool"])
def test_shapes_without_and_with_one_element(shape: tuple[int, ...], dtype: str) -> None:
    assert fixture.array("x", dtype, shape, 1).shape == shape


def test_a_box_of_a_huge_array_costs_no_more_than_the_box() -> None:
    shape, start, stop = (2**26, 2**26), (2**25, 5), (2**25 + 2, 8)
    found = fixture.array("x", "uint64", shape, 1, start=start, stop=stop)
    assert found.tobytes() == slow_fixture.box("x", "uint64", shape, 1, start, stop)


def test_names_and_steps_matter() -> None:
    heads = {fixture.box_digest(name, "uint8", (64,), step, (0,), (64,)) for name in ("a", "b") for step in (1, 2)}
    assert len(heads) == 4


def test_unit_numbers_are_below_one() -> None:
    edges = np.array([0, 2**11 - 1, 2**11, 2**64 - 1], np.uint64)
    assert fixture.unit(edges).tolist() == [0.0, 0.0, 2.0**-53, 1 - 2.0**-53]
