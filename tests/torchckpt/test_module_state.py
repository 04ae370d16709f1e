"""What of a module cannot be saved, its extra state, its hooks, and parameters that FSDP has gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ckptcore.backend import Found
from ckptcore.errors import CallError, UnsupportedLeaf
from ckptcore.names import show_path
from tests.torchckpt.procs import run_job
from tests.torchckpt.wrapping import (
    OTHERS,
    UNSEEN,
    WRAPPED,
    Block,
    Counting,
    Net,
    alone,
    by_name,
    compiled,
    sharded,
)
from torchckpt import modules


@pytest.fixture(autouse=True, scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alone(tmp_path_factory.mktemp("group")):
        yield


def test_lazy_modules_are_refused_until_they_have_run() -> None:
    module = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(UnsupportedLeaf, match=r"model\['0\.weight'\]: a lazy parameter .*run one forward pass"):
        modules.leaves(module, (), "model")
    with pytest.raises(UnsupportedLeaf, match=r"model\['0\.weight'\]: a lazy parameter"):
        modules.tensors(module, "model")
    module(torch.ones(1, 3))
    assert list(by_name(module)) == ["0.weight", "0.bias"]


def test_modules_on_the_meta_device_are_refused() -> None:
    with torch.device("meta"):
        module = nn.BatchNorm1d(2, affine=False)
    message = r"model\['a'\]\['running_mean'\]: .*meta device.*saved.*module\.to_empty\(device=…\)"
    with pytest.raises(UnsupportedLeaf, match=message):
        modules.leaves(module, (("key", "a"),), "model")
    with pytest.raises(UnsupportedLeaf, match=message):
        modules.tensors(module, "model", (("key", "a"),))


def test_fsdp1_is_refused() -> None:
    with pytest.warns(UserWarning, match="NO_SHARD"):
        wrapped = FullyShardedDataParallel(nn.Linear(1, 1), device_id=torch.device("cpu"))
    for call in (modules.names, lambda module: modules.leaves(module, (), "model")):
        with pytest.raises(UnsupportedLeaf, match=r"model: 1 is wrapped in FullyShardedDataParallel.*fully_shard"):
            call(nn.Sequential(nn.Linear(1, 1), wrapped))


# Extra state


def test_extra_state_is_taken_apart_where_it_holds_arrays() -> None:
    module = compiled(nn.Sequential(Counting({"scale": torch.ones(2), "step": 3, "more": {"a": [1]}}), Counting("text")))
    found = {show_path("m", leaf.path): leaf.data for leaf in modules.leaves(module, (), "model")}
    assert found.pop("m['0._extra_state']['scale']").tolist() == [1, 1]
    assert found.pop("m['0._extra_state']['step']") == 3
    assert found.pop("m['0._extra_state']['more']") == {"a": [1]}
    assert found.pop("m['1._extra_state']") == "text"
    assert set(found) == {"m['0.weight']", "m['1.weight']"}


def test_extra_state_of_the_root() -> None:
    assert by_name(DistributedDataParallel(Counting(5)))["_extra_state"] == 5


def test_a_slot_gives_extra_state_back_and_never_asks_for_it() -> None:
    target = Counting("old")
    wrapped = compiled(nn.Sequential(target))
    modules.tensors(wrapped, "model")
    modules.names(wrapped)
    (slot,) = modules.extra_slots(wrapped, (("key", "net"),), "model")
    assert (slot.path, slot.optional) == ((("key", "net"), ("key", "0._extra_state")), False)
    act = slot.prepare(Found(below={(): Found(value="new")}))
    assert target.state == "old"
    act()
    assert (target.state, target.asked) == ("new", 0)


def test_extra_state_that_could_not_be_restored_is_refused() -> None:
    class GetOnly(nn.Module):
        def get_extra_state(self) -> int:
            return 1

    for call in (modules.leaves, modules.extra_slots):
        with pytest.raises(
            UnsupportedLeaf, match=r"model\['0\._extra_state'\]: .*GetOnly has get_extra_state without set_extra_state"
        ):
            call(nn.Sequential(GetOnly()), (), "model")


# Hooks and overrides


class LoraOnly(nn.Module):
    """It leaves out what is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.lora = nn.Linear(2, 2), nn.Linear(2, 2)
        self.base.requires_grad_(requires_grad=False)

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        for key in [key for key in state if key.startswith(f"{prefix}base.")]:
            del state[key]
        return state


def renaming(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state[f"{prefix}renamed"] = state.pop(f"{prefix}linear.weight")


def test_an_override_decides_what_is_stored() -> None:
    for module in (LoraOnly(), compiled(LoraOnly()), DistributedDataParallel(LoraOnly())):
        assert list(by_name(module)) == ["lora.weight", "lora.bias"]
        assert set(modules.names(module).values()) == {"base.weight", "base.bias", "lora.weight", "lora.bias"}


def test_an_override_of_named_parameters_decides_nothing() -> None:
    class Trainable(nn.Linear):
        def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
            yield "mine", nn.Parameter(torch.ones(1))

    assert list(by_name(nn.Sequential(Trainable(1, 1)))) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("wrap", [lambda net: net, DistributedDataParallel, compiled, sharded])
def test_a_hook_may_rename(wrap: Callable[[nn.Module], nn.Module]) -> None:
    net = Net()
    net.blocks[1].register_state_dict_post_hook(renaming)
    module = wrap(net)
    parameter = net.get_parameter("blocks.1.linear.weight")
    found = by_name(module)
    assert found["blocks.1.renamed"] is parameter
    assert "blocks.1.linear.weight" not in found
    assert modules.names(module)[id(parameter)] == "blocks.1.renamed"


def test_what_a_hook_makes_is_refused_both_ways() -> None:
    def adding(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        state[f"{prefix}made"] = torch.ones(1)

    block = Block()
    block.register_state_dict_post_hook(adding)
    module = compiled(nn.Sequential(block))
    message = r"model\['0\.made'\]: made by a state_dict hook or override.*register_buffer"
    for call in (lambda: modules.leaves(module, (), "model"), lambda: modules.tensors(module, "model")):
        with pytest.raises(UnsupportedLeaf, match=message):
            call()


def test_a_copy_under_a_parameters_own_name_is_refused() -> None:
    """It would be saved as something else than what a restore fills."""

    def casting(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        state[f"{prefix}linear.weight"] = state[f"{prefix}linear.weight"].bfloat16()

    block = Block()
    block.register_state_dict_post_hook(casting)
    with pytest.raises(UnsupportedLeaf, match=r"model\['linear\.weight'\]: made by a state_dict hook"):
        modules.leaves(block, (), "model")


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in (WRAPPED | UNSEEN | OTHERS).items()])
def test_a_module_that_is_asked_gives_the_same_as_one_that_is_not(make: Callable[[], nn.Module]) -> None:
    module, asked = make(), []
    before = modules.leaves(module, (), "model")
    handle = module.register_state_dict_post_hook(lambda *_: asked.append(True))
    after = modules.leaves(module, (), "model")
    handle.remove()
    assert asked
    assert [replace(leaf, data=None) for leaf in before] == [replace(leaf, data=None) for leaf in after]
    tensors = [(one.data, other.data) for one, other in zip(before, after, strict=True) if isinstance(one.data, torch.Tensor)]
    assert all(one is other for one, other in tensors)


def test_an_override_that_does_not_take_torchs_arguments_is_an_error_that_names_it() -> None:
    class Bare(nn.Linear):
        def state_dict(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().state_dict()

    with pytest.raises(CallError, match=r"model\['a'\]: .*Bare\.state_dict\(keep_vars=True\) failed: .*\*args, \*\*kwargs"):
        modules.leaves(Bare(1, 1), (("key", "a"),), "model")


def test_extra_state_beside_a_hook() -> None:
    module = nn.Sequential(Counting(7), LoraOnly())
    assert by_name(module)["0._extra_state"] == 7
    assert "1.base.weight" not in by_name(module)


# FSDP


def gathered() -> nn.Module:
    """A sharded module that a forward pass has left gathered, because an exception ended it."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=False)

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped")

    net[1].register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError, match="stopped"):
        net(torch.ones(1, 2))
    return net


@pytest.mark.parametrize("call", [modules.names, lambda module: modules.tensors(module, "model")])
def test_parameters_are_sharded_again_also_after_a_forward_pass_that_failed(call: Callable[[nn.Module], Any]) -> None:
    module = gathered()
    assert not any(isinstance(parameter, DTensor) for parameter in module.parameters())
    call(module)
    assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    assert set(modules.names(module)) == {id(parameter) for parameter in module.parameters()}


@pytest.mark.slow
def test_parameters_that_an_eval_pass_left_gathered_are_saved_as_shards() -> None:
    outputs = run_job(
        """
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        from torchckpt import modules

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
        whole = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        mesh = init_device_mesh("cpu", (SIZE,))
        fully_shard(net[1], mesh=mesh, reshard_after_forward=False)
        fully_shard(net, mesh=mesh, reshard_after_forward=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        with torch.no_grad():
            net.eval()(torch.ones(2, 4))
        assert not any(isinstance(parameter, DTensor) for parameter in net.parameters())
        names = modules.names(net)
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert [names[id(parameter)] for parameter in held] == [name for name in whole if "run" not in name and "num" not in name]
        with torch.no_grad():
            net(torch.ones(2, 4))
        leaves = {leaf.path[0][1]: leaf.data for leaf in modules.leaves(net, (), "model")}
        assert list(leaves) == list(whole)
        for name, parameter in net.named_parameters():
            assert leaves[name] is parameter
            shard = leaves[name].to_local()
            assert shard.shape[0] < whole[name].shape[0]
            assert torch.equal(leaves[name].full_tensor(), whole[name])
        print("ok", len(leaves))
        """
    )
    assert all("ok 9" in output for output in outputs)
