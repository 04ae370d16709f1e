"""Hyper-parameters: those of every group come back with their types, wherever the parameter is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from ckptcore.errors import StructureMismatch
from tests.torchckpt.optimizing import (
    Net,
    described,
    everything,
    net,
    restore,
    save,
    train,
)


def test_later_groups_keep_their_hyper_parameters() -> None:
    def adam(lr: float, beta: float, decay: float) -> tuple[Net, optim.Adam]:
        model = net()
        rest = [p for name, p in model.named_parameters() if name != "head.weight"]
        groups = [{"params": [model.head.weight]}, {"params": rest, "lr": lr, "betas": (beta, 0.99), "weight_decay": decay}]
        return model, optim.Adam(groups, lr=0.5)

    model, optimizer = adam(0.25, 0.7, 0.3)
    fresh, target = adam(0.1, 0.1, 0.1)
    restore(fresh, target, save(model, optimizer))
    later = target.param_groups[1]
    assert (later["lr"], later["betas"], later["weight_decay"], target.param_groups[0]["lr"]) == (0.25, (0.7, 0.99), 0.3, 0.5)


def test_tensor_learning_rates_stay_tensors() -> None:
    model, fresh, plain = net(), net(), net()
    optimizer = optim.Adam(model.parameters(), lr=torch.tensor(0.3), betas=(torch.tensor(0.5), torch.tensor(0.75)), foreach=False)  # type: ignore[arg-type] - torch takes tensors
    held = save(model, optimizer)
    target = optim.Adam(fresh.parameters(), lr=torch.tensor(0.1), betas=(torch.tensor(0.1), torch.tensor(0.1)), foreach=False)  # type: ignore[arg-type] - torch takes tensors
    rate = target.param_groups[0]["lr"]
    restore(fresh, target, held)
    assert target.param_groups[0]["lr"] is rate
    assert everything(fresh, target) == everything(model, optimizer)
    numbers = optim.Adam(plain.parameters(), lr=0.1)
    restore(plain, numbers, held)
    assert everything(plain, numbers) == everything(model, optimizer)


def test_a_number_replaces_a_tensor_that_was_not_saved() -> None:
    model, fresh = net(), net()
    optimizer = optim.Adam(model.parameters(), lr=0.3)
    target = optim.Adam(fresh.parameters(), lr=torch.tensor(0.1))
    restore(fresh, target, save(model, optimizer))
    assert described(target.param_groups[0]["lr"]) == described(0.3)


def test_numpy_hyper_parameters_stay_numpy() -> None:
    model, fresh = net(), net()
    optimizer = optim.Adam(model.parameters(), lr=np.float64(0.3))
    target = optim.Adam(fresh.parameters())
    restore(fresh, target, save(model, optimizer))
    assert described(target.param_groups[0]["lr"]) == described(np.float64(0.3))


def grouped(model: nn.Module, groups: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> optim.Optimizer:
    named = dict(model.named_parameters())
    return optim.AdamW([{"params": [named[name] for name in members], **options} for members, options in groups])


def test_groups_may_be_split_and_joined_where_that_changes_nothing() -> None:
    model, fresh = net(), net()
    one, other = {"lr": 0.5}, {"lr": 0.25}
    saved = [(["conv.weight", "head.weight"], one), (["unused"], other), (["conv.bias", "head.bias"], other)]
    optimizer = grouped(model, saved)
    train(model, optimizer, range(2))
    target = grouped(fresh, [(["head.weight"], {}), (["head.bias", "unused", "conv.bias"], {}), (["conv.weight"], {})])
    restore(fresh, target, save(model, optimizer))
    assert [group["lr"] for group in target.param_groups] == [0.5, 0.25, 0.5]
    assert torch.equal(target.state[fresh.head.bias]["exp_avg"], optimizer.state[model.head.bias]["exp_avg"])


def test_joining_unequal_groups_is_refused_naming_both() -> None:
    model = net()
    optimizer = grouped(model, [(["conv.weight"], {"lr": 0.5, "eps": 1.0}), (["head.weight"], {"lr": 0.25, "eps": 1.0})])
    held = save(model, optimizer)
    target = grouped(model, [(["conv.weight", "head.weight"], {})])
    with pytest.raises(StructureMismatch, match=r"'conv.weight' and 'head.weight' are in one group .* lr 0.5 and 0.25$"):
        restore(model, target, held)
    assert target.param_groups[0]["lr"] == 1e-3


def test_a_parameter_that_was_not_optimized_is_refused() -> None:
    model = net()
    held = save(model, grouped(model, [(["conv.weight"], {})]))
    target = grouped(model, [(["conv.weight", "head.bias"], {}), (["unused"], {})])
    with pytest.raises(StructureMismatch) as error:
        restore(model, target, held)
    assert error.value.differences == (
        "'head.bias' is a parameter of the target's optimizer, not of the checkpoint's",
        "'unused' is a parameter of the target's optimizer, not of the checkpoint's",
    )


def test_groups_of_other_ranks_are_left_alone() -> None:
    model = net()
    held = save(model, grouped(model, [(["conv.weight"], {"lr": 0.5}), (["head.weight"], {"lr": 0.25})]))
    stage = grouped(model, [(["head.weight"], {})])
    restore(model, stage, held)
    assert stage.param_groups[0]["lr"] == 0.25


def test_options_that_another_torch_has_may_be_absent_if_they_are_off() -> None:
    model = net()
    optimizer = optim.Adam(model.parameters())
    optimizer.param_groups[0] |= {"newer": False, "newest": None}
    del optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["maximize"]
    target = optim.Adam(model.parameters())
    restore(model, target, save(model, optimizer))
    group = target.param_groups[0]
    assert [group[key] for key in ("newer", "newest", "fused", "maximize")] == [False, None, None, False]


@pytest.mark.parametrize(("side", "held"), [("checkpoint", "saved"), ("target", "target")])
def test_options_in_use_may_not_be_absent(side: str, held: str) -> None:
    model = net()
    both = {name: optim.Adam(model.parameters()) for name in ("saved", "target")}
    both[held].param_groups[0]["newer"] = 0.5
    with pytest.raises(StructureMismatch, match=rf"'newer' of the group of 'unused' is only in the {side} \(0.5\)"):
        restore(model, both["target"], save(model, both["saved"]))


def test_what_schedulers_set_is_set_before_the_scheduler_is_built() -> None:
    model, fresh = net(), net()
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    target = optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    restore(fresh, target, save(model, optimizer))
    assert everything(fresh, target) == everything(model, optimizer)
    assert "initial_lr" in target.param_groups[0]
    restore(fresh, target, save(fresh, optim.SGD(fresh.parameters(), lr=0.7, momentum=0.9)))
    assert (target.param_groups[0]["lr"], "initial_lr" in target.param_groups[0]) == (0.7, True)
