"""Which array is which: by name, number of axes, and shape."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ckptcore.convert import Rule, conv_transpose
from ckptcore.convert.optax_state import parse
from ckptcore.convert.pairing import Pairing, hint, pair
from ckptcore.names import Path

Shapes = Mapping[str, tuple[int, ...]]


def paired(flax: Shapes, torch: Mapping[str, tuple[int, ...] | None], *rules: Rule, **names: str) -> Pairing:
    return pair(flax, torch, rules=rules, names=names)


def only(flax: str, shape: tuple[int, ...], torch: str, result: tuple[int, ...], *rules: Rule) -> Pairing:
    return paired({flax: shape}, {torch: result}, *rules)


@pytest.mark.parametrize(
    ("flax", "shape", "torch", "result"),
    [
        ("fc.kernel", (3, 4), "fc.weight", (4, 3)),
        ("fc.bias", (4,), "fc.bias", (4,)),
        ("kernel", (3, 4), "weight", (4, 3)),
        ("conv.kernel", (5, 3, 4), "conv.weight", (4, 3, 5)),
        ("conv.kernel", (5, 6, 3, 4), "conv.weight", (4, 3, 5, 6)),
        ("conv.kernel", (5, 6, 7, 3, 4), "conv.weight", (4, 3, 5, 6, 7)),
        ("heads.kernel", (8, 2, 3), "heads.weight", (6, 8)),
        ("merge.kernel", (2, 3, 8), "merge.weight", (8, 6)),
        ("heads.bias", (2, 3), "heads.bias", (6,)),
        ("a.query.kernel", (8, 2, 4), "a.q_proj.weight", (8, 8)),
        ("a.out.kernel", (2, 4, 8), "a.out_proj.weight", (8, 8)),
        ("e.embedding", (9, 4), "e.weight", (9, 4)),
        ("n.scale", (4,), "n.weight", (4,)),
        ("n.mean", (4,), "n.running_mean", (4,)),
        ("n.var", (4,), "n.running_var", (4,)),
    ],
)
def test_standard_rules(flax: str, shape: tuple[int, ...], torch: str, result: tuple[int, ...]) -> None:
    found = only(flax, shape, torch, result)
    assert found.problems == {}
    assert (found.pairs[torch].flax, found.pairs[torch].shape) == ((flax,), result)


def test_fused_projections_lie_one_after_another() -> None:
    flax = {f"a.{name}.kernel": (8, 2, 3) for name in ("value", "key", "query")}
    found = paired(flax, {"a.in_proj_weight": (18, 8)}).pairs["a.in_proj_weight"]
    assert found.flax == ("a.query.kernel", "a.key.kernel", "a.value.kernel")
    assert found.starts == (0, 6, 12)


def test_a_projection_that_lacks_a_part_is_not_made() -> None:
    found = paired({"a.query.kernel": (8, 2, 3), "a.key.kernel": (8, 2, 3)}, {"a.in_proj_weight": (18, 8)})
    assert list(found.problems) == ["a.in_proj_weight"]


def test_names_reach_below_a_rule_of_several_parts() -> None:
    """`names` may rename the projection itself: the general rule takes it then, by its shape."""
    found = paired({"b_0.query.kernel": (8, 2, 4)}, {"b.0.wq.weight": (8, 8)}, **{"b_*.query": "b.*.wq"})
    assert found.pairs["b.0.wq.weight"].layouts[0].target == (("h", "k"), ("d",))


def test_a_rule_of_the_users_goes_first() -> None:
    rule = Rule(flax="head.kernel", torch="head.weight", axes="(h w c) o -> o (c h w)", sizes={"h": 2, "w": 2})
    assert only("head.kernel", (12, 5), "head.weight", (5, 12)).pairs["head.weight"].layouts[0].sizes == {"i": 12, "o": 5}
    assert only("head.kernel", (12, 5), "head.weight", (5, 12), rule).pairs["head.weight"].layouts[0].sizes["c"] == 3


def test_an_unknown_shape_is_ambiguous_only_where_it_decides() -> None:
    assert paired({"fc.kernel": (3, 4)}, {"fc.weight": None}).pairs["fc.weight"].shape == (4, 3)
    assert paired({"a.query.kernel": (8, 2, 4)}, {"a.q_proj.weight": None}).pairs["a.q_proj.weight"].shape == (8, 8)
    problem = paired({"x.kernel": (8, 2, 4)}, {"x.weight": None}).problems["x.weight"]
    assert problem.startswith("ambiguous")
    assert "restore the parameters too" in problem


def test_two_sources_of_one_array_are_ambiguous() -> None:
    found = paired({"n.scale": (4,), "m.scale": (4,)}, {"n.weight": (4,)}, m="n")
    assert "'n.scale'" in found.problems["n.weight"]
    assert "'m.scale'" in found.problems["n.weight"]


def test_one_source_of_two_arrays_is_ambiguous_unless_a_rule_says_so() -> None:
    torch = {"a.query.weight": (8, 8), "a.q_proj.weight": (8, 8)}
    flax = {"a.query.kernel": (8, 2, 4)}
    assert set(paired(flax, torch).problems) == set(torch)
    rule = Rule(flax="*.query.kernel", torch="*.query.weight", axes="d h k -> (h k) d")
    assert set(paired(flax, torch, rule).pairs) == set(torch)


def test_axes_that_do_not_fit_are_shown() -> None:
    problem = only("fc.kernel", (3, 4), "fc.weight", (3, 4)).problems["fc.weight"]
    assert "'fc.kernel' [3, 4] by 'i o -> o i'" in problem
    assert "[3, 4]" in problem


def test_what_has_no_counterpart_says_which_rule_is_near() -> None:
    found = paired({"Dense_0.kernel": (3, 4), "odd": (1,)}, {"fc1.weight": (4, 3), "fc1.weird": (1,)})
    assert "'*.kernel'" in found.problems["fc1.weight"]
    assert "names=" in found.problems["fc1.weight"]
    assert "no rule makes a 'weird'" in found.problems["fc1.weird"]
    assert "it is 'Dense_0.weight' in torch" in hint("Dense_0.kernel", found)
    assert "rules=" in hint("odd", found)


def test_only_torch_counts_batches() -> None:
    assert paired({}, {"bn.num_batches_tracked": ()}).pairs["bn.num_batches_tracked"].flax == ()


def test_a_transposed_convolution_is_asked_about() -> None:
    """With as many inputs as outputs its shape is that of a convolution: taken for one, it would be silently wrong."""
    found = only("ConvTranspose_0.kernel", (3, 3, 4, 4), "ConvTranspose_0.weight", (4, 4, 3, 3))
    assert list(found.problems) == ["ConvTranspose_0.weight"]
    assert "conv_transpose(" in hint("ConvTranspose_0.kernel", found)
    rules = conv_transpose("ConvTranspose_*", "ups.*")
    assert only("ConvTranspose_0.kernel", (3, 3, 4, 5), "ups.0.weight", (4, 5, 3, 3), *rules).problems == {}


def state(*paths: str) -> list[tuple[Path, str]]:
    """Paths such as `0.mu.w`, as those of an optax state."""
    return [(tuple(("index", int(k)) if k.isdigit() else ("attr", k) for k in text.split(".")), text) for text in paths]


def test_an_adam_is_found_wherever_it_lies() -> None:
    found = parse(state("1.0.count", "1.0.mu.a.w", "1.0.nu.a.w", "1.2.count", "step"))
    assert (found.count, found.counters, found.strange) == ("1.0.count", ["1.2.count", "step"], [])
    assert found.moments == {"mu": {"a.w": "1.0.mu.a.w"}, "nu": {"a.w": "1.0.nu.a.w"}}


def test_a_parameter_may_be_called_like_a_moment() -> None:
    assert parse(state("0.trace.mu", "0.trace.count")).moments == {"trace": {"mu": "0.trace.mu", "count": "0.trace.count"}}


@pytest.mark.parametrize(
    "paths",
    [
        ("mini_step", "gradient_step", "inner_opt_state.0.count", "acc_grads.w"),
        ("0.inner_state.0.count", "0.inner_state.0.mu.w", "0.inner_state.0.nu.w"),
        ("count", "hyperparams.lr", "inner_state.0.trace.w"),
        ("0.count", "0.mu.w"),
        ("0.nu.w",),
        ("0.count", "0.ema.w"),
        ("0.count", "0.mu.w", "0.nu.w", "0.nu_max.w"),
        ("0.count", "0.mu.w", "0.nu.v"),
        ("0.trace.w", "1.trace.w"),
        ("0.count.w",),
    ],
)
def test_states_that_are_not_understood(paths: tuple[str, ...]) -> None:
    assert parse(state(*paths)).strange
