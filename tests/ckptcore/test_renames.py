"""Rename rules as data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError, StructureMismatch
from ckptcore.formats.renames import Renames


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (None, "a.b", "a.b"),
        ({"model.layers.*.mlp": "blocks.*.ffn"}, "model.layers.3.mlp.up.weight", "blocks.3.ffn.up.weight"),
        ({"model.layers.*.mlp": "blocks.*.ffn"}, "model.layers.3.mlp2.up", "model.layers.3.mlp2.up"),
        ({"model.layers.*.mlp": "blocks.*.ffn"}, "model.layers.3", "model.layers.3"),
        ({"*.a.*": "*.*"}, "x.a.y.z", "x.y.z"),
        ({"model": ""}, "model.norm.weight", "norm.weight"),
        ({"": "model"}, "norm.weight", "model.norm.weight"),
        ({"": "model", "lm_head": "lm_head"}, "lm_head.weight", "lm_head.weight"),
        ({"a": "x", "a.b": "y"}, "a.b.c", "y.c"),
        ({"a.*": "x.*", "a.b": "y"}, "a.b.c", "y.c"),
        ({"layers.*.inv_freq": None}, "layers.7.inv_freq", None),
    ],
)
def test_a_rule_renames_a_prefix(rules: Any, name: str, expected: str | None) -> None:
    assert Renames.of(rules)(name) == expected


def test_rules_work_backwards() -> None:
    rules = {"model.layers.*.mlp": "blocks.*.ffn", "model": "", "drop": None, "lm_head": "lm_head"}
    back = Renames.back(rules)
    assert back("blocks.3.ffn.up") == "model.layers.3.mlp.up"
    assert back("norm.weight") == "model.norm.weight"
    assert back("lm_head.weight") == "lm_head.weight"
    assert back("drop.x") is None


@given(st.lists(st.sampled_from(["a", "b", "c", "0", "1"]), min_size=1, max_size=5))
def test_what_is_renamed_and_renamed_back_is_the_same(elements: list[str]) -> None:
    rules = {"a.*.b": "x.*", "a": "y.z", "b.*.*": "w.*.*"}
    name = ".".join(elements)
    assert Renames.back(rules)(Renames.of(rules)(name) or "") == name


def test_two_names_that_become_one_are_an_error() -> None:
    with pytest.raises(StructureMismatch, match=r"'a\.w' and 'b\.w' both become 'x\.w'"):
        Renames.of({"a": "x", "b": "x"}).table(["a.w", "b.w", "c"], where="here")
    many = [f"{letter}.{number}" for number in range(20) for letter in "ab"]
    with pytest.raises(StructureMismatch, match="and 12 more"):
        Renames.of({"a": "x", "b": "x"}).table(many, where="here")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"a.*": "b"}, "same number of"),
        ({"a": 3}, "a rule maps a text to a text"),
        ([("a", "b")], "expected a mapping"),
    ],
)
def test_what_is_no_rule(rules: Any, message: str) -> None:
    with pytest.raises(CallError, match=message):
        Renames.of(rules)
