"""The names, ties and tensors of modules, however they are wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.torchckpt.wrapping import (
    OTHERS,
    UNSEEN,
    WRAPPED,
    Block,
    Named,
    Net,
    alone,
    by_name,
    compiled,
    sharded,
    shared_child,
)
from torchckpt import modules


@pytest.fixture(autouse=True, scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alone(tmp_path_factory.mktemp("group")):
        yield


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in (WRAPPED | OTHERS).items()])
def test_names_and_tensors_are_those_of_torchs_own_helper(make: Callable[[], nn.Module]) -> None:
    module = make()
    found = by_name(module)
    wanted: dict[str, Any] = get_model_state_dict(module) if list(module.state_dict()) else {}
    assert sorted(found) == sorted(wanted)
    for name, tensor in found.items():
        if isinstance(tensor, torch.Tensor):
            assert type(tensor.detach()) is type(wanted[name].detach())
            assert torch.equal(tensor, wanted[name])
    assert {name for name, data in found.items() if not isinstance(data, torch.Tensor)} == {
        name for name in wanted if name.endswith("_extra_state")
    }


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in (WRAPPED | UNSEEN).items()])
def test_a_wrapper_changes_neither_names_nor_their_order(make: Callable[[], nn.Module]) -> None:
    prefix = "0." if make is WRAPPED["compiled within itself"] else ""
    plain = [f"{prefix}{leaf.path[0][1]}" for leaf in modules.leaves(Net(), (), "model")]
    assert [leaf.path[0][1] for leaf in modules.leaves(make(), (), "model")] == plain


def test_real_children_keep_their_names() -> None:
    names = ["scale", "module.weight", "module.bias", "_orig_mod.module.weight", "_orig_mod.module.bias"]
    for wrap in (lambda module: module, DistributedDataParallel, compiled, checkpoint_wrapper, sharded):
        assert list(by_name(wrap(Named()))) == names

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._checkpoint_wrapped_module = nn.Linear(1, 1, bias=False)

    assert list(by_name(Child())) == ["_checkpoint_wrapped_module.weight"]
    assert list(by_name(checkpoint_wrapper(Child()))) == ["_checkpoint_wrapped_module.weight"]


def test_averaged_models_keep_their_counter_and_prefix() -> None:
    assert list(by_name(AveragedModel(nn.Linear(1, 1)))) == ["n_averaged", "module.weight", "module.bias"]


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in (WRAPPED | OTHERS).items()])
def test_tensors_are_the_registered_ones_each_once(make: Callable[[], nn.Module]) -> None:
    module = make()
    tensors = modules.tensors(module, "model")
    registered = {id(tensor) for tensor in [*module.parameters(), *module.buffers()]}
    assert {id(tensor.tensor) for tensor in tensors} <= registered
    assert len({id(tensor.tensor) for tensor in tensors}) == len(tensors)
    assert sum(1 + len(tensor.tied) for tensor in tensors) == len(
        [data for data in by_name(module).values() if isinstance(data, torch.Tensor)]
    )


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in WRAPPED.items()])
def test_tied_parameters_are_stored_once(make: Callable[[], nn.Module]) -> None:
    found = {str(leaf.path[-1][1]): leaf for leaf in modules.leaves(make(), (("key", "net"),), "model")}
    prefix = "0." if "0.embed.weight" in found else ""
    embed, head = found[f"{prefix}embed.weight"], found[f"{prefix}head.weight"]
    assert embed.tied_to is None
    assert head.tied_to == embed.path == (("key", "net"), ("key", f"{prefix}embed.weight"))
    assert head.data is embed.data
    assert [leaf for leaf in found.values() if leaf.tied_to is not None] == [head]


def test_equal_or_empty_parameters_are_not_tied() -> None:
    """Neither values nor addresses say so: empty tensors all begin at address 0."""
    module = nn.Module()
    module.a, module.b = nn.Parameter(torch.empty(0, 2)), nn.Parameter(torch.empty(0, 2))
    module.c, module.d = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    assert module.a.data_ptr() == module.b.data_ptr()
    assert [leaf.tied_to for leaf in modules.leaves(module, (), "model")] == [None] * 4


def test_a_child_with_two_names_is_tied_whole() -> None:
    tied = {tensor.name: tensor.tied for tensor in modules.tensors(shared_child(), "model")}
    assert tied["first.linear.weight"] == ("second.0.linear.weight",)
    assert tied["first.norm.running_mean"] == ("second.0.norm.running_mean",)
    assert tied["second.1.weight"] == ()


def test_modules_of_one_component_may_share_tensors() -> None:
    first, second = Net(), compiled(nn.Linear(4, 8, bias=False))
    second.get_submodule("_orig_mod").weight = first.embed.weight
    paths = modules.shared([((("key", "a"),), first), ((("key", "b"),), second)], "model")
    assert paths[id(first.embed.weight)] == [
        (("key", "a"), ("key", "embed.weight")),
        (("key", "a"), ("key", "head.weight")),
        (("key", "b"), ("key", "weight")),
    ]
    assert len(paths) == len(modules.tensors(first, "model"))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in (WRAPPED | OTHERS).items()])
def test_every_parameter_has_the_name_it_is_stored_under(make: Callable[[], nn.Module]) -> None:
    module = make()
    names = modules.names(module)
    stored = {id(tensor.tensor): tensor.name for tensor in modules.tensors(module, "model")}
    assert names == {id(parameter): stored[id(parameter)] for parameter in module.parameters()}


def test_a_tied_parameter_is_called_by_its_first_name() -> None:
    net = Net()
    assert modules.names(DistributedDataParallel(net))[id(net.head.weight)] == "embed.weight"


def test_buffers_that_are_not_persistent_are_left_out() -> None:
    assert "blocks.0.mask" not in by_name(Net())
    assert {"blocks.0.norm.running_mean", "blocks.0.norm.num_batches_tracked"} <= by_name(Net()).keys()


@pytest.mark.parametrize("wrap", [lambda ddp: ddp, compiled, nn.Sequential])
def test_of_buffers_that_ddp_broadcasts_the_lowest_ranks_count(wrap: Callable[[nn.Module], nn.Module]) -> None:
    block = Block()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(block, ["norm.running_var"])
    found = modules.leaves(wrap(DistributedDataParallel(block)), (), "model")
    assert {str(leaf.path[0][1]).removeprefix("0.") for leaf in found if leaf.lowest_counts} == {
        "norm.running_mean",
        "norm.num_batches_tracked",
    }


def test_otherwise_every_ranks_buffers_count() -> None:
    with_none = DistributedDataParallel(Block(), forward_sync_buffers=False)
    for module in (with_none, Block(), compiled(Block()), sharded(Block())):
        assert not any(tensor.lowest_counts for tensor in modules.tensors(module, "model"))


def test_weight_norm_is_stored_as_its_parts() -> None:
    old = nn.utils.spectral_norm(nn.Linear(2, 2))
    assert set(by_name(old)) == {"bias", "weight_orig", "weight_u", "weight_v"}
    assert set(by_name(parametrizations.weight_norm(nn.Linear(2, 2)))) == {
        "bias",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    }
