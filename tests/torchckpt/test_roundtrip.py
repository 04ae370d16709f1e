"""A whole torch state, saved and restored in one process: in place, bit for bit, under the names that torch uses."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import torchckpt
from ckptcore.digests import group_key
from ckptcore.errors import CallError, StructureMismatch, UnsupportedLeaf
from ckptcore.run import open_run as open_host_run
from torchckpt import Merged, PerRank

DERIVED = {"schedule": "step", "rng": "step", "data": "step"}


class Tied(nn.Module):
    """An embedding tied to the head, a buffer, and a part that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids)))


def build(seed: int, steps: int = 0) -> tuple[Tied, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied()
    groups = [{"params": [model.embed.weight]}, {"params": model.norm.parameters(), "lr": 0.5, "betas": (0.5, 0.6)}]
    optimizer = torch.optim.AdamW([*groups, {"params": model.unused.parameters()}], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(7, (4,))).square().sum().backward()
        optimizer.step()
    return model, optimizer


def job(url: Path, **options: Any) -> torchckpt.Checkpointer:
    return torchckpt.Checkpointer(url, **{"derived": DERIVED, "interval": 1, "on_preemption": "ignore"} | options)


def save(url: Path, components: dict[str, Any], step: int = 1) -> None:
    with job(url) as checkpointer:
        checkpointer.save(step, components, guarantee=None if "optimizer" in components else "weights").result()


def same(one: Any, other: Any) -> bool:
    """Deep equality, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_a_model_and_its_optimizer_come_back_in_place(tmp_path: Path) -> None:
    model, optimizer = build(1, steps=3)
    save(tmp_path, {"model": model, "optimizer": optimizer})
    other, fresh = build(2)
    held = {name: tensor.data_ptr() for name, tensor in other.state_dict().items()}
    with job(tmp_path) as checkpointer:
        restored = checkpointer.restore_or_init(dict, like={"model": other, "optimizer": fresh})
    assert restored.step == 1
    assert restored.components["model"] is other
    assert restored.components["optimizer"] is fresh
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(fresh.state_dict(), optimizer.state_dict())
    assert {name: tensor.data_ptr() for name, tensor in other.state_dict().items()} == held
    assert other.head.weight is other.embed.weight


def test_leaves_have_the_names_of_the_state_dict(tmp_path: Path) -> None:
    model, optimizer = build(1, steps=1)
    save(tmp_path, {"model": model, "optimizer": optimizer})
    checkpoint = open_host_run(tmp_path).checkpoint()
    leaves = checkpoint.leaves("model")
    assert sorted(leaves) == sorted(f"model.{name}" for name in model.state_dict())
    assert leaves["model.head.weight"].record.alias == "model.embed.weight"  # pyright: ignore[reportAttributeAccessIssue]
    found = set(checkpoint.leaves("optimizer"))
    assert {"optimizer.state.embed.weight.exp_avg", "optimizer.state.norm.bias.step"} <= found
    groups = (["embed.weight"], ["norm.weight", "norm.bias"], ["unused.weight", "unused.bias"])
    assert {name for name in found if "param_groups" in name} == {
        f"optimizer.param_groups.{group_key(names)}" for names in groups
    }
    assert not any("unused" in name for name in found if ".state." in name)


def test_a_module_and_its_state_dict_are_the_same_checkpoint(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    save(tmp_path / "module", {"model": model})
    save(tmp_path / "dict", {"model": model.state_dict()})
    one, other = (open_host_run(tmp_path / kind) for kind in ("module", "dict"))
    digests = [run.checkpoint().manifest.components["model"].digest for run in (one, other)]
    assert digests[0] == digests[1]
    into = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    torchckpt.open_run(tmp_path / "dict").restore(like=into, components="model")
    assert same(dict(into.state_dict()), dict(model.state_dict()))


class Point(NamedTuple):
    x: torch.Tensor
    y: int


def tree() -> dict[Any, Any]:
    return {
        "list": [torch.arange(3), np.float32(2.5), np.arange(4).reshape(2, 2)],
        "tuple": (1, "text", None, True, 2.5, b"bytes"),
        "ordered": OrderedDict(b=torch.tensor(data=True), a=[]),
        "point": Point(torch.full((2,), 3.0), 7),
        "long": bytes(range(256)) * 400,
        3: {"empty": {}, "nothing": ()},
    }


def blank(node: Any) -> Any:
    if isinstance(node, dict):
        return type(node)((key, blank(child)) for key, child in node.items())
    if isinstance(node, Point):
        return Point(blank(node.x), blank(node.y))
    if isinstance(node, list | tuple):
        return type(node)(blank(child) for child in node)
    if isinstance(node, torch.Tensor | np.ndarray):
        return torch.zeros_like(node) if isinstance(node, torch.Tensor) else np.zeros_like(node)[()]
    return type(node)() if node is not None else None


def test_trees_keep_their_containers_and_types(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"w": torch.ones(1)}, "extra": tree()})
    like = blank(tree())
    found = torchckpt.open_run(tmp_path).restore(like=like, components="extra")
    expected = tree()
    assert type(found["ordered"]) is OrderedDict
    assert type(found["point"]) is Point
    assert found["list"][0] is like["list"][0]
    assert type(found["list"][1]) is np.float32
    assert found["list"][1] == 2.5
    np.testing.assert_array_equal(found["list"][2], expected["list"][2])
    parts: list[Any] = ["tuple", "ordered", "long", 3]
    for part in parts:
        assert same(found[part], expected[part])
    assert same(tuple(found["point"]), tuple(expected["point"]))


def test_a_target_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"a": torch.ones(3), "b": torch.ones(2)}})
    like = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.bfloat16), "c": torch.zeros(1)}
    with pytest.raises(StructureMismatch) as caught:
        torchckpt.open_run(tmp_path).restore(like=like, components="model")
    assert len(caught.value.differences) == 2
    assert "dtype float32 in the checkpoint, bfloat16 in the target" in str(caught.value)
    assert same(like, {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.bfloat16), "c": torch.zeros(1)})
    with pytest.raises(StructureMismatch, match="dtype float32 in the checkpoint"):
        torchckpt.open_run(tmp_path).restore(like={"a": like["a"], "b": like["b"]}, components="model")


def test_a_cast_is_asked_for(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"a": torch.full((3,), 1.1)}})
    like = {"a": torch.zeros(3, dtype=torch.bfloat16)}
    torchckpt.open_run(tmp_path).restore(like=like, components="model", cast="bfloat16")
    assert same(like["a"], torch.full((3,), 1.1).bfloat16())


def test_an_untied_target_takes_a_tied_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, {"model": build(1)[0]})
    other = build(2)[0]
    other.head.weight = nn.Parameter(torch.zeros(7, 5))
    torchckpt.open_run(tmp_path).restore(like={"model": other})
    assert torch.equal(other.head.weight, other.embed.weight)
    assert other.head.weight is not other.embed.weight


def test_a_tied_target_refuses_two_contents(tmp_path: Path) -> None:
    model = build(1)[0]
    model.head.weight = nn.Parameter(torch.zeros(7, 5))
    save(tmp_path, {"model": model})
    other = build(2)[0]
    before = other.embed.weight.clone()
    with pytest.raises(StructureMismatch, match=r"the target ties it to 'model.head.weight'"):
        torchckpt.open_run(tmp_path).restore(like={"model": other})
    assert torch.equal(other.embed.weight, before)


def test_one_tensor_at_two_places_is_stored_once(tmp_path: Path) -> None:
    shared = torch.arange(1000.0)
    save(tmp_path, {"model": {"a": shared, "b": shared, "c": [shared]}})
    leaves = open_host_run(tmp_path).checkpoint().leaves("model")
    assert {leaf.stored_target for leaf in leaves.values()} == {"model.a"}
    found = open_host_run(tmp_path).restore(components="model")
    np.testing.assert_array_equal(found["c"][0], shared.numpy())


def test_modules_that_share_a_tensor_refuse_two_contents(tmp_path: Path) -> None:
    """Whatever the names: what is one tensor cannot become two."""
    one, other, shared = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    save(tmp_path / "two", {"model": {"a": one, "b": other}})
    like = {"a": shared, "b": shared}
    before = shared.weight.clone()
    with pytest.raises(StructureMismatch, match=r"ties it to 'model.b.weight', where the checkpoint holds other content"):
        torchckpt.open_run(tmp_path / "two").restore(like=like, components="model")
    assert torch.equal(shared.weight, before)
    save(tmp_path / "one", {"model": {"a": one, "b": one}})
    torchckpt.open_run(tmp_path / "one").restore(like=like, components="model")
    assert torch.equal(shared.weight, one.weight)


def test_parts_of_a_pipeline_share_one_name_space(tmp_path: Path) -> None:
    whole = nn.ModuleDict({str(index): nn.Linear(2, 2) for index in range(4)})
    stages = [nn.ModuleDict({name: whole[name] for name in names}) for names in ("02", "13")]
    optimizers = [torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9) for stage in stages]
    for stage, optimizer in zip(stages, optimizers, strict=True):
        torch.stack([parameter.sum() for parameter in stage.parameters()]).sum().backward()
        optimizer.step()
    save(tmp_path, {"model": Merged(*stages), "optimizer": Merged(*optimizers)})
    other = nn.ModuleDict({str(index): nn.Linear(2, 2) for index in range(4)})
    fresh = torch.optim.SGD(other.parameters(), lr=0.7, momentum=0.1)
    torchckpt.open_run(tmp_path).restore(like={"model": other, "optimizer": fresh})
    assert same(dict(other.state_dict()), dict(whole.state_dict()))
    assert (fresh.param_groups[0]["lr"], fresh.param_groups[0]["momentum"]) == (0.1, 0.9)
    for name, parameter in other.named_parameters():
        held = dict(whole.named_parameters())[name]
        moment = next(optimizer.state[held] for optimizer in optimizers if held in optimizer.state)["momentum_buffer"]
        assert torch.equal(fresh.state[parameter]["momentum_buffer"], moment)


def test_an_optimizer_over_two_models_names_them(tmp_path: Path) -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
    (one.weight.sum() + other.weight.sum()).backward()
    optimizer.step()
    save(tmp_path, {"model": one, "critic": other, "optimizer": optimizer})
    leaves = open_host_run(tmp_path).checkpoint().leaves("optimizer")
    assert {"optimizer.state.model.weight.momentum_buffer", "optimizer.state.critic.weight.momentum_buffer"} <= set(leaves)


def test_a_loss_that_belongs_to_a_graph_is_a_metric(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.full((2,), 2.0))
    with job(tmp_path) as checkpointer:
        checkpointer.save(1, {"model": {"w": weight}}, guarantee="weights", metrics={"loss": weight.sum()}).result()
    (known,) = open_host_run(tmp_path).generations()
    assert known.metrics == {"loss": 4.0}


def test_what_has_no_place_is_named(tmp_path: Path) -> None:
    with job(tmp_path) as checkpointer:
        with pytest.raises(UnsupportedLeaf, match=r"extra\['f'\]"):
            checkpointer.save(1, {"model": {"w": torch.ones(1)}, "extra": {"f": lambda: 0}}, guarantee="weights")
        with pytest.raises(UnsupportedLeaf, match="belongs to no module"):
            checkpointer.save(1, {"model": {"w": torch.ones(1)}, "optimizer": build(1)[1]})
        with pytest.raises(UnsupportedLeaf, match="neither text nor an int"):
            checkpointer.save(1, {"model": {1.5: torch.ones(1)}}, guarantee="weights")


def test_meta_tensors_are_made_or_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    save(tmp_path, {"model": model})
    run = torchckpt.open_run(tmp_path)
    abstract = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    assert same(dict(run.restore(like=abstract, components="model")), dict(model.state_dict()))
    with torch.device("meta"):
        empty = nn.Linear(3, 2)
    with pytest.raises(CallError, match="to_empty"):
        run.restore(like={"model": empty})
    made = empty.to_empty(device="cpu")
    run.restore(like={"model": made})
    assert same(dict(made.state_dict()), dict(model.state_dict()))


def test_expanded_targets_are_refused(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"w": torch.ones(3)}})
    with pytest.raises(UnsupportedLeaf, match=r"model\['w'\]: an expanded tensor cannot be filled in place"):
        torchckpt.open_run(tmp_path).restore(like={"w": torch.zeros(1).expand(3)}, components="model")


def test_ranks_keep_their_wrappers(tmp_path: Path) -> None:
    save(tmp_path, {"model": {"w": torch.ones(1)}, "mine": PerRank({"x": torch.tensor(5)})})
    found = torchckpt.open_run(tmp_path).restore(like={"mine": PerRank({"x": torch.tensor(0)})})
    assert isinstance(found["mine"], PerRank)
    assert found["mine"].value["x"] == 5


def test_a_non_contiguous_target_is_filled(tmp_path: Path) -> None:
    source = torch.arange(12.0).reshape(3, 4)
    save(tmp_path, {"model": {"t": source.t(), "s": source[:, ::2]}})
    base = torch.zeros(3, 4)
    like = {"t": base.t(), "s": torch.zeros(6, 2)[::2]}
    torchckpt.open_run(tmp_path).restore(like=like, components="model")
    assert torch.equal(base, source)
    assert torch.equal(like["s"], source[:, ::2])
