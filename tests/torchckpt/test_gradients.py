"""Accumulated gradients: saved between two updates, and put back where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchckpt
from ckptcore.errors import StructureMismatch
from ckptcore.run import open_run as open_host_run
from tests.torchckpt.procs import run_job
from torchckpt import Gradients

DERIVED = {"schedule": "step", "rng": "step", "data": "step"}


def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "unused": nn.Linear(2, 2)})
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def accumulate(model: Any, batch: int) -> None:
    model["a"](torch.full((2, 3), float(batch))).square().sum().backward()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model, "optimizer": optimizer, "grad_accum": Gradients(model)}


def save(url: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torchckpt.Checkpointer(url, derived=DERIVED, on_preemption="ignore") as ckpt:
        ckpt.save(1, state(model, optimizer)).result()


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_run_goes_on_between_two_updates(tmp_path: Path, *, used: bool) -> None:
    model, optimizer = build(1)
    accumulate(model, 1)
    save(tmp_path, model, optimizer)
    accumulate(model, 2)
    optimizer.step()
    other, fresh = build(2)
    if used:
        accumulate(other, 7)
        other["unused"].weight.grad = torch.ones(2, 2)  # pyright: ignore[reportIndexIssue]
    held = {name: parameter.grad for name, parameter in other.named_parameters()}
    with torchckpt.Checkpointer(tmp_path, derived=DERIVED, on_preemption="ignore") as ckpt:
        ckpt.restore_or_init(dict, like=state(other, fresh))
    for name, parameter in other.named_parameters():
        assert (parameter.grad is None) == name.startswith("unused")
        if used and parameter.grad is not None:
            assert parameter.grad is held[name]
    accumulate(other, 2)
    fresh.step()
    assert all(map(torch.equal, other.parameters(), model.parameters()))


def test_gradients_are_of_a_kind_of_their_own_under_their_parameters_names(tmp_path: Path) -> None:
    model, optimizer = build(1)
    accumulate(model, 1)
    save(tmp_path, model, optimizer)
    run = open_host_run(tmp_path)
    assert run.checkpoint().manifest.components["grad_accum"].kind == "gradients"
    found = run.restore(components="grad_accum")
    assert sorted(found) == ["a.bias", "a.weight", "unused.bias", "unused.weight"]
    assert found["unused.bias"] is None
    assert found["a.weight"].shape == (2, 3)


def test_another_dtype_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = build(1)
    accumulate(model, 1)
    save(tmp_path, model, optimizer)
    other = build(2)[0].double()
    with pytest.raises(StructureMismatch, match=r"(?s)a.weight.*torch.float32 for torch.float64"):
        torchckpt.open_run(tmp_path).restore(like={"grad_accum": Gradients(other)})
    assert all(parameter.grad is None for parameter in other.parameters())


SHARDED = """
import torch, torchckpt
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from ckptcore.errors import UnsupportedLeaf

def build(seed):
    torch.manual_seed(seed)
    return fully_shard(nn.Linear(3, 5), mesh=init_device_mesh("cpu", (SIZE,)))

def accumulate(model, batch):
    model(torch.full((2, 3), float(batch + RANK))).square().sum().backward()

model = build(1)
accumulate(model, 1)
with torchckpt.Checkpointer(ARGS[0], on_preemption="ignore") as ckpt:
    ckpt.save(1, {"model": model, "grad_accum": torchckpt.Gradients(model)}, guarantee="weights").result()
other = build(2)
torchckpt.open_run(ARGS[0]).restore(like={"model": other, "grad_accum": torchckpt.Gradients(other)})
for one, two in ((model, other),):
    accumulate(one, 2), accumulate(two, 2)
same = [torch.equal(a.grad.to_local(), b.grad.to_local()) for a, b in zip(model.parameters(), other.parameters(), strict=True)]
print("SAME", same, other.weight.grad.placements == other.weight.placements)
other.set_requires_gradient_sync(False)
accumulate(other, 3)
try:
    with torchckpt.Checkpointer(ARGS[0] + "-2", on_preemption="ignore") as ckpt:
        ckpt.save(1, {"model": other, "grad_accum": torchckpt.Gradients(other)}, guarantee="weights")
except UnsupportedLeaf as error:
    print("REFUSED", error)
"""


@pytest.mark.slow
def test_sharded_gradients(tmp_path: Path) -> None:
    for output in run_job(SHARDED, size=2, args=[str(tmp_path / "run")]):
        assert "SAME [True, True] True" in output
        assert "REFUSED" in output
        assert "not reduced yet" in output
