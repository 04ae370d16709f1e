"""A checkpoint seen under the other framework's names: boxes, what is refused, and what is left as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import records
from ckptcore.backend import Found, Target, Wanted
from ckptcore.convert import SGD, Adam, AdamW, Conversion, Rule, flax_to_torch, torch_to_flax
from ckptcore.errors import CallError, NotFound, StructureMismatch
from ckptcore.geometry import Box
from ckptcore.match import Rules
from ckptcore.names import Path
from ckptcore.readable import StoredLeaf, array_leaf, value_leaf
from ckptcore.restore import find

LR = Adam(lr=0.1)


@dataclass
class Memory:
    """A readable of arrays and values by component and path; it keeps what was read."""

    framework: str
    content: Mapping[str, Mapping[Path, Any]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    reads: list[tuple[str, Box]] = field(default_factory=list)
    title: str = "memory"

    @property
    def names(self) -> Collection[str]:
        return list(self.content)

    def leaves(self, component: str, rank: int | None = None) -> Mapping[str, StoredLeaf]:  # noqa: ARG002 - all are global
        leaves = [self._leaf(component, path, item) for path, item in self.content[component].items()]
        return {leaf.name: leaf for leaf in leaves}

    def _leaf(self, component: str, path: Path, item: Any) -> StoredLeaf:
        if not isinstance(item, np.ndarray):
            return value_leaf(component, path)
        leaf = array_leaf(component, path, item.dtype.name, item.shape)
        if leaf.name not in self.aliases:
            return leaf
        record = records.ArrayLeaf(
            path=path,
            name=leaf.name,
            dtype=item.dtype.name,
            stored_dtype=item.dtype.name,
            shape=item.shape,
            alias=self.aliases[leaf.name],
        )
        return StoredLeaf(component, record)

    def value(self, leaf: StoredLeaf) -> Any:
        return self.content[leaf.component][leaf.record.path]

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        self.reads += [(leaf.name, box) for leaf, boxes in wanted for box in boxes]
        return [[self.value(leaf)[box.slices()].copy() for box in boxes] for leaf, boxes in wanted]

    def digest(self, leaf: StoredLeaf) -> str | None:
        return str(hash(self.value(leaf).tobytes()))


@dataclass(frozen=True, kw_only=True)
class Bare(Target):
    def place(self, found: Mapping[str, Found]) -> Mapping[str, Any]:
        return found


def keys(text: str) -> Path:
    """A path of Flax's, such as `0.mu.fc.kernel`."""
    return tuple(("index", int(k)) if k.isdigit() else ("key", k) for k in text.split(".") if k)


def flax(**content: Mapping[str, Any]) -> Memory:
    return Memory("jax", {name: {keys(path): item for path, item in leaves.items()} for name, leaves in content.items()})


def module(**content: Any) -> dict[Path, Any]:
    return {(("key", name),): item for name, item in content.items()}


def of_torch(model: Mapping[str, Any], state: Mapping[str, Mapping[str, Any]] | None = None, *groups: dict[str, Any]) -> Memory:
    optimizer: dict[Path, Any] = {
        (("key", "state"), ("key", fqn), ("key", key)): item
        for fqn, items in (state or {}).items()
        for key, item in items.items()
    }
    optimizer |= {(("key", "param_groups"), ("key", group["params"][0])): group for group in groups}
    return Memory("torch", {"model": module(**model), "optimizer": optimizer})


def array(component: str, path: Path, shape: tuple[int, ...], dtype: str = "float64", *boxes: Box, **facts: Any) -> Wanted:
    where = boxes or (Box.whole(shape),)
    return Wanted(component=component, path=path, kind="array", shape=shape, dtype=dtype, boxes=where, **facts)


def tensor(name: str, shape: tuple[int, ...], *boxes: Box, **facts: Any) -> Wanted:
    return array("model", (("key", name),), shape, "float64", *boxes, **facts)


def slots(*names: str) -> list[Wanted]:
    """What a torch optimizer of the parameters `names` wants."""
    state = [Wanted(component="optimizer", path=(("key", "state"), ("key", n)), kind="any", optional=True) for n in names]
    return [Wanted(component="optimizer", path=(("key", "param_groups"),), kind="any"), *state]


def restored(source: Memory, conversion: Conversion, *wanted: Wanted, **options: Any) -> dict[str, Found]:
    rules = Rules(**options)
    view = conversion.view(source, wanted, missing=rules.missing, extra=rules.extra)
    return find(view, Bare(wanted=wanted, components={}), rules=rules, ranks={})


def problems(source: Memory, conversion: Conversion, *wanted: Wanted) -> str:
    with pytest.raises(StructureMismatch) as raised:
        conversion.view(source, wanted)
    return "\n".join(raised.value.differences)


def numbers(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape), dtype=np.float64).reshape(shape)


ATTENTION = {f"a.{name}.kernel": numbers(5, 2, 3, start=100 * n) for n, name in enumerate(("query", "key", "value"))}
IN_PROJ = np.concatenate([kernel.transpose(1, 2, 0).reshape(6, 5) for kernel in ATTENTION.values()])


@st.composite
def inside(draw: st.DrawFn, *shape: int) -> Box:
    """Any box, also an empty one."""
    starts = [draw(st.integers(0, size)) for size in shape]
    return Box(tuple(starts), tuple(draw(st.integers(start, size)) for start, size in zip(starts, shape, strict=True)))


@given(st.lists(inside(18, 5), min_size=1, max_size=4, unique=True))
def test_any_box_of_a_fused_projection(boxes: list[Box]) -> None:
    found = restored(flax(params=ATTENTION), flax_to_torch(), tensor("a.in_proj_weight", (18, 5), *boxes))
    read = found["model.a.in_proj_weight"].boxes
    assert read is not None
    for box in boxes:
        assert np.array_equal(read[box], IN_PROJ[box.slices()])
        assert read[box].flags.c_contiguous
        assert read[box].flags.writeable


@given(inside(5, 2, 3))
def test_any_box_of_each_part_of_a_fused_projection(box: Box) -> None:
    source = of_torch({"a.in_proj_weight": IN_PROJ})
    wanted = [array("params", keys(name), (5, 2, 3), "float64", box) for name in ATTENTION]
    found = restored(source, torch_to_flax(), *wanted)
    for name, kernel in ATTENTION.items():
        read = found[f"params.{name}"].boxes
        assert read is not None
        assert np.array_equal(read[box], kernel[box.slices()])


def test_only_what_a_box_is_made_of_is_read() -> None:
    source = flax(params=ATTENTION)
    restored(source, flax_to_torch(), tensor("a.in_proj_weight", (18, 5), Box((9, 1), (12, 3))))
    assert source.reads == [("params.a.key.kernel", Box((1, 1, 0), (3, 2, 3)))]


def test_a_view_is_made_without_reading_an_array() -> None:
    source = flax(params={"fc.kernel": numbers(3, 4)})
    flax_to_torch().view(source, [tensor("fc.weight", (4, 3))])
    assert source.reads == []


def test_everything_that_does_not_fit_is_listed_at_once() -> None:
    source = flax(
        params={"fc.kernel": numbers(3, 4), "lost.bias": numbers(4), "odd": numbers(1)}, batch_stats={"bn.mean": numbers(4)}
    )
    found = problems(
        source, flax_to_torch(), tensor("fc.weight", (9, 9)), tensor("gone.weight", (1,)), tensor("bn.num_batches_tracked", ())
    )
    assert found.count("\n") == 5
    for name in (
        "model['fc.weight']",
        "model['gone.weight']",
        "['lost']['bias']",
        "params['odd']",
        "['bn']['mean']",
        "['fc']['kernel']",
    ):
        assert name in found


def test_what_may_be_missing_or_extra_is_left_out() -> None:
    source = flax(params={"fc.kernel": numbers(3, 4), "lost.bias": numbers(4)})
    wanted = (tensor("fc.weight", (4, 3)), tensor("gone.weight", (1,)))
    assert list(restored(source, flax_to_torch(), *wanted, missing="keep", extra="ignore")) == ["model.fc.weight"]


def test_components_that_are_not_converted_are_seen_as_they_are() -> None:
    source = flax(params={"fc.bias": numbers(4)}, data={"cursor": np.array(7), "epoch": 3})
    data = (
        array("data", keys("cursor"), (), "int64"),
        Wanted(component="data", path=keys("epoch"), kind="value", value=0, scalar="int"),
    )
    found = restored(source, flax_to_torch(), tensor("fc.bias", (4,)), *data)
    assert found["data.cursor"].boxes == {Box((), ()): 7}
    assert found["data.epoch"].value == 3
    assert flax_to_torch().components("data") == ("data",)


def test_empty_nodes_are_in_nobodys_way() -> None:
    source = flax(params={"fc.bias": numbers(4), "act": {}, "drop": None})
    assert list(restored(source, flax_to_torch(), tensor("fc.bias", (4,)))) == ["model.fc.bias"]
    wanted = Wanted(component="params", path=keys("act"), kind="empty", value={})
    found = restored(of_torch({"fc.bias": numbers(4)}), torch_to_flax(), array("params", keys("fc.bias"), (4,)), wanted)
    assert found["params.act"].value == {}


def test_a_tied_tensor_is_made_from_the_one_array_that_there_is() -> None:
    source = flax(params={"embed.embedding": numbers(7, 4)})
    found = restored(source, flax_to_torch(), tensor("head.weight", (7, 4), tied=("model.embed.weight",)))
    assert found["model.head.weight"].boxes is not None


def test_tied_tensors_that_are_two_different_arrays_are_refused() -> None:
    source = flax(params={"embed.embedding": numbers(7, 4), "head.kernel": numbers(4, 7)})
    wanted = tensor("embed.weight", (7, 4), tied=("model.head.weight",))
    with pytest.raises(StructureMismatch, match="ties it to"):
        restored(source, flax_to_torch(), wanted)


def test_of_tied_tensors_one_name_is_enough() -> None:
    source = Memory(
        "torch",
        {"model": module(**{"embed.weight": numbers(7, 4), "head.weight": numbers(7, 4)})},
        {"model.head.weight": "model.embed.weight"},
    )
    found = restored(source, torch_to_flax(), array("params", keys("embed.embedding"), (7, 4)))
    assert list(found) == ["params.embed.embedding"]
    both = (array("params", keys("embed.embedding"), (7, 4)), array("params", keys("head.kernel"), (4, 7)))
    assert len(restored(source, torch_to_flax(), *both)) == 2


def test_parts_of_one_tensor_have_one_dtype() -> None:
    source = flax(params={**ATTENTION, "a.value.kernel": ATTENTION["a.value.kernel"].astype(np.float32)})
    assert "dtypes differ" in problems(source, flax_to_torch(), tensor("a.in_proj_weight", (18, 5)))


def test_a_component_whose_source_is_absent() -> None:
    with pytest.raises(NotFound, match="components="):
        flax_to_torch().view(flax(weights={"fc.bias": numbers(4)}), [tensor("fc.bias", (4,))])
    with pytest.raises(NotFound, match="components="):
        torch_to_flax().view(Memory("torch", {"net": {}}), [array("params", keys("fc.bias"), (4,))])
    source = flax(weights={"fc.bias": numbers(4)})
    assert len(restored(source, flax_to_torch(components={"model": "weights"}), tensor("fc.bias", (4,)))) == 1


STATE = {
    "params.fc.bias": numbers(4),
    "stats.bn.mean": numbers(4),
    "opt_state.0.trace.fc.bias": numbers(4, start=9),
    "opt_state.1": (),
    "step": 3,
}
PLACES = {"model": ("state.params", "state.stats"), "optimizer": ("state.opt_state", "state.step")}


def test_parts_of_one_component() -> None:
    conversion = flax_to_torch(components=PLACES, optimizer=SGD(lr=0.1, momentum=0.9))
    wanted = (tensor("fc.bias", (4,)), tensor("bn.running_mean", (4,)), *slots("fc.bias"))
    found = restored(flax(state=STATE), conversion, *wanted)
    below = found["optimizer.state.fc.bias"].below
    assert below is not None
    (buffer,) = below.values()
    assert buffer.boxes is not None
    assert np.array_equal(next(iter(buffer.boxes.values())), STATE["opt_state.0.trace.fc.bias"])
    assert conversion.components("model") == ("state",)


def test_a_part_in_no_place_is_not_lost_silently() -> None:
    conversion = flax_to_torch(components={"model": "state.params", "optimizer": ("state.opt_state", "state.step")})
    assert "state['stats']['bn']['mean']" in problems(flax(state=STATE), conversion, tensor("fc.bias", (4,)))


def test_one_place_of_two_components_is_refused() -> None:
    with pytest.raises(CallError, match="several components"):
        flax_to_torch(components={"model": "params", "ema": "params"})


ADAM = {"0.count": np.array(5, np.int32), "0.mu.fc.kernel": numbers(3, 4), "0.nu.fc.kernel": numbers(3, 4, start=50), "1": ()}


def test_adam_for_torch() -> None:
    source = flax(optimizer=ADAM)
    found = restored(source, flax_to_torch(optimizer=AdamW(lr=0.1, weight_decay=0.01)), *slots("fc.weight"))
    state = found["optimizer.state.fc.weight"].tree(where="state")
    assert state.keys() == {"exp_avg", "exp_avg_sq", "step"}
    assert np.array_equal(state["exp_avg_sq"], ADAM["0.nu.fc.kernel"].T)
    assert (state["step"].dtype, state["step"].shape, state["step"]) == (np.float32, (), 5)
    (group,) = found["optimizer.param_groups"].tree(where="groups").values()
    assert group["params"] == ["fc.weight"]
    assert group["decoupled_weight_decay"] is True


@pytest.mark.parametrize(
    ("state", "hyper"),
    [
        (ADAM, SGD(lr=0.1)),
        (ADAM, SGD(lr=0.1, momentum=0.9)),
        ({"0": ()}, LR),
        ({"0.trace.fc.kernel": numbers(3, 4)}, SGD(lr=0.1)),
    ],
)
def test_hyper_parameters_of_another_optimizer_are_refused(state: dict[str, Any], hyper: Any) -> None:
    assert "keeps the moments" in problems(flax(optimizer=state), flax_to_torch(optimizer=hyper), *slots("fc.weight"))


def test_hyper_parameters_have_to_be_given() -> None:
    with pytest.raises(CallError, match="optimizer="):
        flax_to_torch().view(flax(optimizer=ADAM), slots("fc.weight"))


def test_hyper_parameters_of_several_optimizers() -> None:
    conversion = flax_to_torch(optimizer={"optimizer": LR})
    assert conversion.view(flax(optimizer=ADAM), slots("fc.weight")).leaves("optimizer")
    with pytest.raises(CallError, match="optimizer="):
        flax_to_torch(optimizer={"other": LR}).view(flax(optimizer=ADAM), slots("fc.weight"))


def test_states_of_optax_that_are_not_understood_are_listed() -> None:
    state = {**ADAM, "2.ema.fc.kernel": numbers(3, 4), "3.inner_state.0.count": np.array(1)}
    found = problems(flax(optimizer=state), flax_to_torch(optimizer=LR), *slots("fc.weight"))
    assert "optimizer[2]['ema']" in found
    assert "optimizer[3]['inner_state']" in found


def test_a_parameter_without_moments_is_not_restored_silently() -> None:
    """Its slot is optional: without an error it would go on from nothing."""
    assert "optimizer['state']['gone.bias']" in problems(
        flax(optimizer=ADAM), flax_to_torch(optimizer=LR), *slots("fc.weight", "gone.bias")
    )


def test_shapes_of_the_parameters_tell_axes_of_their_moments() -> None:
    adam = {key.replace("fc", "x"): np.zeros((8, 2, 4)) if "fc" in key else item for key, item in ADAM.items()}
    source = flax(params={"x.kernel": np.zeros((8, 2, 4))}, optimizer=adam)
    assert "restore the parameters too" in problems(source, flax_to_torch(optimizer=LR), *slots("x.weight"))
    assert len(restored(source, flax_to_torch(optimizer=LR), tensor("x.weight", (8, 8)), *slots("x.weight"))) == 3


def test_a_count_that_float32_does_not_hold_is_refused() -> None:
    source = flax(optimizer={**ADAM, "0.count": np.array((1 << 24) + 1, np.int32)})
    assert "16777217" in problems(source, flax_to_torch(optimizer=LR), *slots("fc.weight"))


def test_what_other_ranks_take_is_not_left_over() -> None:
    """A pipeline's ranks each want their own stage."""
    source = flax(
        params={"fc.bias": numbers(4), "gc.bias": numbers(4)},
        optimizer={"0.trace.fc.bias": numbers(4), "0.trace.gc.bias": numbers(4)},
    )
    conversion = flax_to_torch(optimizer=SGD(lr=0.1, momentum=0.9))
    wanted = (tensor("fc.bias", (4,)), *slots("fc.bias"))
    assert problems(source, conversion, *wanted).count("gc") >= 2
    elsewhere = [("model.gc.bias", False), ("optimizer.state.gc.bias", True), ("optimizer.param_groups", True)]
    assert set(conversion.view(source, wanted, elsewhere=elsewhere).leaves("model")) == {"model.fc.bias"}


GROUP = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "maximize": False, "params": ["fc.weight", "fc.bias"]}
SLOW = {"lr": 0.1, "momentum": 0.9, "dampening": 0, "nesterov": False, "maximize": False, "params": ["fc.weight", "fc.bias"]}


def moments(step: float = 5) -> dict[str, dict[str, Any]]:
    return {
        name: {"step": np.array(step, np.float32), "exp_avg": numbers(*shape), "exp_avg_sq": numbers(*shape, start=50)}
        for name, shape in (("fc.weight", (4, 3)), ("fc.bias", (4,)))
    }


def adam_of_flax(*more: str) -> list[Wanted]:
    shapes = {"fc.kernel": (3, 4), "fc.bias": (4,)}
    trees = [array("optimizer", keys(f"0.{moment}.{name}"), shapes[name]) for moment in ("mu", "nu") for name in shapes]
    return [*trees, *(array("optimizer", keys(name), (), "int32") for name in ("0.count", *more))]


def trace_of_flax(*more: str) -> list[Wanted]:
    trees = [array("optimizer", keys("0.trace.fc.kernel"), (3, 4)), array("optimizer", keys("0.trace.fc.bias"), (4,))]
    return [*trees, *(array("optimizer", keys(name), (), "int32") for name in more)]


def test_adam_for_flax() -> None:
    empty = Wanted(component="optimizer", path=keys("1"), kind="empty", value=())
    found = restored(of_torch({}, moments(), GROUP), torch_to_flax(), *adam_of_flax("2.count", "step"), empty)
    for name in ("0.count", "2.count", "step"):
        assert found[f"optimizer.{name}"].boxes == {Box((), ()): 5}
    read = found["optimizer.0.nu.fc.kernel"].boxes
    assert read is not None
    assert np.array_equal(read[Box.whole((3, 4))], moments()["fc.weight"]["exp_avg_sq"].T)
    assert found["optimizer.1"].value == ()


def test_a_count_that_is_a_python_number() -> None:
    conversion = torch_to_flax(components={"model": "state.params", "optimizer": ("state.opt_state", "state.step")})
    step = Wanted(component="state", path=keys("step"), kind="value", value=0, scalar="int", boxes=(Box((), ()),))
    assert restored(of_torch({}, moments(), GROUP), conversion, step, extra="ignore")["state.step"].value == 5


def test_parameters_that_made_different_numbers_of_steps_are_refused() -> None:
    state = {**moments(), "fc.bias": moments(7)["fc.bias"]}
    found = problems(of_torch({}, state, GROUP), torch_to_flax(), *adam_of_flax())
    assert "'fc.weight': 5, 'fc.bias': 7" in found
    del state["fc.bias"]
    assert "'fc.weight': 5, 'fc.bias': 0" in problems(of_torch({}, state, GROUP), torch_to_flax(), *adam_of_flax())


def test_an_optimizer_before_its_first_step() -> None:
    found = restored(of_torch({}, {}, GROUP), torch_to_flax(), *adam_of_flax())
    assert found["optimizer.0.count"].boxes == {Box((), ()): 0}
    read = found["optimizer.0.mu.fc.kernel"].boxes
    assert read is not None
    assert np.array_equal(read[Box.whole((3, 4))], np.zeros((3, 4)))


def test_sgd_keeps_no_count() -> None:
    source = of_torch({}, {"fc.weight": {"momentum_buffer": numbers(4, 3)}, "fc.bias": {"momentum_buffer": None}}, SLOW)
    assert "count=" in problems(source, torch_to_flax(), *trace_of_flax("1.count"))
    found = restored(source, torch_to_flax(count=12), *trace_of_flax("1.count"))
    assert found["optimizer.1.count"].boxes == {Box((), ()): 12}
    assert len(restored(source, torch_to_flax(), *trace_of_flax())) == 2


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "dampening"])
def test_options_without_a_counterpart_in_optax_are_refused(option: str) -> None:
    found = problems(of_torch({}, moments(), {**GROUP, option: True}), torch_to_flax(), *adam_of_flax())
    assert f"{option}=True has no counterpart" in found


def test_groups_whose_options_optax_has_once_are_refused() -> None:
    groups = [{**GROUP, "params": ["fc.weight"]}, {**GROUP, "params": ["fc.bias"], "eps": 1e-4}]
    assert "differ in eps" in problems(of_torch({}, moments(), *groups), torch_to_flax(), *adam_of_flax())
    groups[1] = {**groups[1], "eps": 1e-8, "lr": 0.7}
    assert restored(of_torch({}, moments(), *groups), torch_to_flax(), *adam_of_flax())


def test_state_of_another_optimizer_is_refused() -> None:
    assert "'mu'" in problems(of_torch({}, {}, SLOW), torch_to_flax(), *adam_of_flax())
    found = problems(of_torch({}, moments(), GROUP), torch_to_flax(), *trace_of_flax())
    assert "'trace'" in found
    assert "optimizer['state']['fc.bias']['exp_avg']" in found
    state = {"fc.weight": {"square_avg": numbers(4, 3)}}
    assert "square_avg" in problems(of_torch({}, state, GROUP), torch_to_flax(), *adam_of_flax())


def test_optax_states_of_the_target_that_are_not_understood_are_listed() -> None:
    found = problems(of_torch({}, moments(), GROUP), torch_to_flax(), *adam_of_flax("mini_step"))
    assert "optimizer['mini_step']" in found


def test_a_count_that_does_not_fit_is_refused() -> None:
    found = problems(of_torch({}, moments(3e9), GROUP), torch_to_flax(), *adam_of_flax())
    assert "3000000000" in found


def test_a_parameter_that_torch_does_not_train_is_listed() -> None:
    source = of_torch({}, {"fc.weight": moments()["fc.weight"]}, {**GROUP, "params": ["fc.weight"]})
    assert "optimizer[0]['mu']['fc']['bias']" in problems(source, torch_to_flax(), *adam_of_flax())


def test_users_rules_hold_for_moments_too() -> None:
    rule = Rule(flax="head.kernel", torch="head.weight", axes="(h w c) o -> o (c h w)", sizes={"h": 2, "w": 2})
    kernel = numbers(12, 5)
    adam = {"0.count": np.array(1, np.int32), "0.mu.head.kernel": kernel, "0.nu.head.kernel": kernel}
    found = restored(flax(optimizer=adam), flax_to_torch(rules=[rule], optimizer=LR), *slots("head.weight"))
    state = found["optimizer.state.head.weight"].tree(where="state")
    assert np.array_equal(state["exp_avg"], kernel.reshape(2, 2, 3, 5).transpose(3, 2, 0, 1).reshape(5, 12))
