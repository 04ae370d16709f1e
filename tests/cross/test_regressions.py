"""Mistakes that crossing frameworks once made, each of which must not come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from safetensors.torch import load_file, save_file

import jaxckpt
import torchckpt
from ckptcore.convert import Adam, AdamW, flax_to_torch, torch_to_flax
from ckptcore.convert.naming import Names
from ckptcore.errors import CallError, Damaged, InvalidRecord, NotFound, StructureMismatch
from ckptcore.formats.safetensors import Safetensors
from tests.cross.support import in_torch, init, module, params, save, trained, weight
from torchckpt.dcp_metadata import _dtype, _size
from torchckpt.inert import Made, Named, Pairs

DERIVED = {"schedule": "step", "rng": "step"}


@pytest.mark.parametrize("twice", ["model", "opt_state"])
def test_two_components_for_one_place_are_not_mixed_up(twice: str, tmp_path: Path) -> None:
    """The later one won without a word: averaged weights for the live ones, say."""
    state = {"params": params(0), "optimizer": optax.adam(0.1).init(params(0))}
    other = params(1) if twice == "model" else jax.tree.map(jnp.ones_like, state["optimizer"])
    url = save(jaxckpt, tmp_path, {**state, twice: other})
    with pytest.raises(StructureMismatch, match="has the same place in torch; say with components="):
        in_torch(url)
    net, optimizer = in_torch(url, components={"model": "params", "optimizer": "optimizer"})
    assert np.array_equal(weight(net), state["params"]["fc"]["kernel"].T)
    assert optimizer.state[net["fc"].weight]["step"] == 0


def test_two_components_of_a_target_for_one_of_torch(tmp_path: Path) -> None:
    url = save(torchckpt, tmp_path, {"model": module()})
    with pytest.raises(StructureMismatch, match="has the same place in torch"):
        jaxckpt.open_run(url).restore(like={"params": params(), "model": params()}, convert=torch_to_flax())


@pytest.mark.parametrize("whole", [False, True])
def test_a_run_of_torch_begins_from_one_of_jax(*, whole: bool, tmp_path: Path) -> None:
    """It was refused, since the run of JAX has no `batch_stats`."""
    tree = params()
    state = {"params": tree, "optimizer": optax.adam(0.1).init(tree), "data": jaxckpt.Sampler(8, 2)}
    with jaxckpt.Checkpointer(tmp_path / "jax", interval=1, on_preemption="ignore", derived=DERIVED) as checkpointer:
        checkpointer.restore_or_init(lambda: state, like=state)
        checkpointer.save(5, state).result()
    if whole:
        jaxckpt.open_run(tmp_path / "jax").fork(tmp_path / "torch")
    net = module()
    like = {"model": net, "optimizer": torch.optim.Adam(net.parameters()), "data": torchckpt.Sampler(8, 2)}
    start = None if whole else tmp_path / "jax"
    with torchckpt.Checkpointer(tmp_path / "torch", interval=1, on_preemption="ignore", start_from=start) as checkpointer:
        convert = flax_to_torch(optimizer=Adam(lr=0.1))
        restored = checkpointer.restore_or_init(lambda: like, like=like, accept_guarantee="coverage", convert=convert)
    assert restored.step == (5 if whole else 0)
    assert np.array_equal(weight(net), tree["fc"]["kernel"].T)


def test_files_under_another_component_say_what_to_call_them(tmp_path: Path) -> None:
    save_file(module().state_dict(), tmp_path / "model.safetensors")
    like = {"params": params()}
    source = Safetensors(tmp_path)
    with (
        jaxckpt.Checkpointer(tmp_path / "run", interval=1, on_preemption="ignore", start_from=source) as checkpointer,
        pytest.raises(CallError, match=r"convert= makes from \['model'\]: call it so"),
    ):
        checkpointer.restore_or_init(lambda: like, like=like, convert=torch_to_flax())


@pytest.mark.parametrize("tensors", ["lr", "betas"])
def test_tensors_among_an_optimizers_options(tensors: str, tmp_path: Path) -> None:
    """Its groups are stored in parts then; the conversion fell over them."""
    net = module()
    given: Any = torch.tensor(0.1) if tensors == "lr" else (torch.tensor(0.9), torch.tensor(0.999))
    optimizer = trained(net, foreach=False, **{tensors: given})
    url = save(torchckpt, tmp_path, {"model": net, "optimizer": optimizer})
    like = {"params": params(), "optimizer": optax.adam(0.1).init(params())}
    restored = jaxckpt.open_run(url).restore(like=like, convert=torch_to_flax())
    assert restored["optimizer"][0].count == 1
    assert np.array_equal(restored["optimizer"][0].mu["fc"]["kernel"], optimizer.state[net["fc"].weight]["exp_avg"].numpy().T)


def test_moments_of_another_shape_are_named(tmp_path: Path) -> None:
    """NovoGrad keeps one number per parameter where Adam keeps an array."""
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": optax.novograd(0.1).init(params())})
    with pytest.raises(StructureMismatch, match="is not what torch keeps") as raised:
        in_torch(url)
    assert [text.partition(":")[0] for text in raised.value.differences] == [
        "optimizer[0].nu['fc']['bias']",
        "optimizer[0].nu['fc']['kernel']",
    ]


def test_a_count_for_each_device_is_named(tmp_path: Path) -> None:
    adam, *rest = init(optax.adam(0.1), params())
    state = (adam._replace(count=jnp.zeros(2, jnp.int32)), *rest)
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": state})
    with pytest.raises(StructureMismatch, match=r"optimizer\[0\].count: is not what torch keeps"):
        in_torch(url)


def test_counts_that_differ_are_not_lost(tmp_path: Path) -> None:
    """A schedule that is further than the moments began anew on the way back."""
    transformation = optax.adam(optax.cosine_decay_schedule(0.1, 10))
    adam, schedule = init(transformation, params())
    state = (adam, schedule._replace(count=jnp.int32(3)))
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": state})
    with pytest.raises(
        StructureMismatch, match=r"optimizer\[1\].count in the checkpoint: counts 3 steps, the moments' count is 0"
    ):
        in_torch(url)


def with_number(tree: dict[str, Any]) -> dict[str, Any]:
    """Parameters with a Python number among them, and Adam's state as it is for them."""
    adam, *rest = init(optax.adam(0.1), tree)
    state = (adam._replace(mu={**adam.mu, "temperature": 0.0}, nu={**adam.nu, "temperature": 0.0}), *rest)
    return {"params": {**tree, "temperature": 1.0}, "optimizer": state}


def test_numbers_among_moments_are_named(tmp_path: Path) -> None:
    net = module()
    save(torchckpt, tmp_path / "torch", {"model": net, "optimizer": trained(net)})
    with pytest.raises(StructureMismatch, match=r"optimizer\[0\].mu\['temperature'\]"):
        jaxckpt.open_run(tmp_path / "torch").restore(like=with_number(params()), convert=torch_to_flax())
    save(jaxckpt, tmp_path / "jax", with_number(params()))
    with pytest.raises(StructureMismatch, match=r"optimizer\[0\].mu\['temperature'\]"):
        in_torch(tmp_path / "jax")


def test_options_for_parameters_that_there_are_not(tmp_path: Path) -> None:
    """A typing error gave every parameter the default."""
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": optax.adamw(0.1).init(params())})
    hyper = AdamW(lr=0.1, weight_decay=0.1, groups={"*.bais": {"weight_decay": 0.0}})
    with pytest.raises(StructureMismatch, match=r"no parameter is called '\*\.bais'"):
        in_torch(url, optimizer=hyper)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_does_not_fit_is_not_what_is_missing(backend: str, tmp_path: Path) -> None:
    """`missing="keep"` and `extra="ignore"` passed over arrays of another shape, as they do nowhere else."""
    larger = {"fc": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
    allowed: dict[str, Any] = {"missing": "keep", "extra": "ignore"}
    if backend == "jax":
        run = torchckpt.open_run(save(jaxckpt, tmp_path, {"params": larger}))
        allowed |= {"like": {"model": module()}, "convert": flax_to_torch()}
    else:
        run = jaxckpt.open_run(save(torchckpt, tmp_path, {"model": module()}))
        allowed |= {"like": {"params": larger}, "convert": torch_to_flax()}
    with pytest.raises(StructureMismatch, match="no rule's axes") as raised:
        run.restore(**allowed)
    assert len(raised.value.differences) == 2


@pytest.mark.parametrize("beside", [False, True])
def test_nothing_is_taken_past_the_rules(*, beside: bool, tmp_path: Path) -> None:
    """Where no leaf of a component was converted, one of the same name came through as it was."""
    square = {"position": jnp.ones((3, 3))}
    save(jaxckpt, tmp_path, {"model": {**square, **(params() if beside else {})}})
    net = module()
    net.register_parameter("position", torch.nn.Parameter(torch.zeros(3, 3)))
    torchckpt.open_run(tmp_path).restore(like={"model": net}, convert=flax_to_torch(), missing="keep", extra="ignore")
    assert not net.state_dict()["position"].any()


def test_modules_in_a_dict_are_no_optimizer(tmp_path: Path) -> None:
    """One called `state` was taken for the state of an optimizer."""
    net = {"state": module()}
    save(torchckpt, tmp_path / "torch", {"model": net})
    found = jaxckpt.open_run(tmp_path / "torch").restore(like={"params": {"state": params()}}, convert=torch_to_flax())
    assert np.array_equal(found["params"]["state"]["fc"]["kernel"].T, weight(net["state"]))
    save(jaxckpt, tmp_path / "jax", found)
    again = {"state": module()}
    torchckpt.open_run(tmp_path / "jax").restore(like={"model": again}, convert=flax_to_torch())
    assert np.array_equal(weight(again["state"]), weight(net["state"]))


def test_prefixes_of_flax() -> None:
    """A whole name goes before a pattern, and the empty prefix is that of every module."""
    names = Names({"blocks_*": "blocks.*", "blocks_0": "first", "": "net"})
    modules = ("blocks_0.fc", "blocks_1", "head", "")
    assert [names.torch(module) for module in modules] == ["first.fc", "blocks.1", "net.head", "net"]


def test_a_tied_array_is_exported_when_the_other_name_is_left_out(tmp_path: Path) -> None:
    """Neither was."""
    net: Any = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    run = torchckpt.open_run(save(torchckpt, tmp_path / "run", {"model": net}))
    (path,) = run.export_safetensors(tmp_path / "hub", component="model", names={"embed": None})
    found = load_file(path)
    assert list(found) == ["head.weight"]
    assert torch.equal(found["head.weight"], net.state_dict()["head.weight"])


def test_one_of_several_files_is_no_model(tmp_path: Path) -> None:
    """An export or a download that broke off leaves it."""
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(Damaged, match="one of several files"):
        Safetensors(tmp_path).leaves("params")
    (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    assert list(Safetensors(tmp_path).leaves("params")) == ["params.a"]


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """A cache whose blob was deleted."""
    (tmp_path / "model.safetensors").symlink_to("../../blobs/gone")
    with pytest.raises(NotFound, match=r"there is no file .*model\.safetensors"):
        Safetensors(tmp_path).leaves("params")


@pytest.mark.parametrize("arguments", [Pairs(), 5, (), None, "ab"])
def test_sizes_that_are_none(arguments: Any) -> None:
    with pytest.raises(InvalidRecord, match="has no sizes"):
        _size(Made("torch.Size", arguments), "x")


@pytest.mark.parametrize("name", ["torch.distributed.checkpoint.metadata.Metadata", "torch.strided", "torch.Size"])
def test_dtypes_that_are_none(name: str) -> None:
    with pytest.raises(InvalidRecord, match="has no dtype"):
        _dtype(Made("x", (), (Named(name),)), "x")
