"""Names of modules, rules, and hyper-parameters: what is data."""

from __future__ import annotations

import pytest

from ckptcore.convert import SGD, Adam, AdamW, Rule
from ckptcore.convert.naming import Names, capture, render
from ckptcore.convert.rules import conv_transpose
from ckptcore.errors import CallError


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("Dense_0", "fc1"),
        ("Dense_01", "Dense_01"),
        ("Dense_0.inner", "fc1.inner"),
        ("blocks_3.attn.query", "blocks.3.attention.query"),
        ("blocks_3.mlp", "blocks.3.mlp"),
        ("params.head", "head"),
        ("encoder.Dense_0", "encoder.Dense_0"),
        ("", ""),
    ],
)
def test_the_prefix_with_most_parts_counts(module: str, expected: str) -> None:
    names = {"Dense_0": "fc1", "blocks_*": "blocks.*", "blocks_*.attn": "blocks.*.attention", "params": ""}
    assert Names(names).torch(module) == expected


def test_a_star_is_text_without_a_dot() -> None:
    assert capture("up_*.kernel", "up_1.x.kernel") is None
    assert capture("up_*.kernel", "up_1.kernel") == (None, ("1",))
    assert render("ups.*.weight", *(None, ("1",))) == "ups.1.weight"


def test_a_leading_star_is_the_path_of_a_module() -> None:
    assert capture("*.query.kernel", "a.b.query.kernel") == ("a.b", ())
    assert capture("*.kernel", "kernel") == ("", ())
    assert capture("*.kernel", "a.xkernel") is None
    assert render("*.weight", "", ()) == "weight"
    assert render("*.q_proj.weight", "a.b", ()) == "a.b.q_proj.weight"


def test_names_and_rules_with_other_stars_on_each_side_are_refused() -> None:
    with pytest.raises(CallError, match="as many"):
        Names({"blocks_*": "blocks"})
    with pytest.raises(CallError, match="same stars"):
        Rule(flax="*.kernel", torch="weight", axes="i o -> o i")
    with pytest.raises(CallError, match="sizes"):
        Rule(flax="*.kernel", torch="*.weight", axes="i o -> o i", sizes={"h": 2})
    with pytest.raises(CallError, match="dimensions"):
        conv_transpose("up", "up", dimensions=4)


def test_parameters_with_equal_options_are_one_group() -> None:
    hyper = AdamW(lr=0.1, weight_decay=0.01, groups={"*.bias": {"weight_decay": 0.0}, "head.*": {"lr": 1.0}})
    groups = hyper.param_groups(["a.weight", "a.bias", "b.weight", "head.bias"])
    assert [(group["params"], group["lr"], group["weight_decay"]) for group in groups] == [
        (["a.weight", "b.weight"], 0.1, 0.01),
        (["a.bias"], 0.1, 0.0),
        (["head.bias"], 1.0, 0.0),
    ]


@pytest.mark.parametrize("option", ["amsgrad", "momentum", "groups"])
def test_an_option_that_adam_does_not_take_is_refused(option: str) -> None:
    with pytest.raises(CallError, match=option):
        Adam(lr=0.1, groups={"*": {option: True}})


def test_sgd_has_no_dampening() -> None:
    assert SGD(lr=0.1).options["dampening"] == 0
    with pytest.raises(CallError, match="dampening"):
        SGD(lr=0.1, groups={"*": {"dampening": 0.5}})


def test_weight_decay_of_adamw_is_given_and_never_assumed() -> None:
    with pytest.raises(TypeError, match="weight_decay"):
        AdamW(lr=0.1)  # pyright: ignore[reportCallIssue]
