"""What only one framework has, and errors that say what to do instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import jaxckpt
import torchckpt
from ckptcore.convert import SGD, Adam, Rule, flax_to_torch, torch_to_flax
from ckptcore.errors import CallError, NotFound, StructureMismatch
from tests.cross.support import in_torch, init, module, params, save, weight


class Net(nnx.Module):
    """A layer and a dropout, which has random state of its own."""

    def __init__(self, seed: int) -> None:
        self.fc = nnx.Linear(3, 3, rngs=nnx.Rngs(seed))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(seed))


def key(net: Net) -> np.ndarray:
    return np.asarray(jax.random.key_data(nnx.to_pure_dict(nnx.state(net))["drop"]["rngs"]["key"]))


def test_random_state_of_flax_is_left_out_for_torch(tmp_path: Path) -> None:
    """It crossed only with extra="ignore", which hides everything else too."""
    net = Net(1)
    url = save(jaxckpt, tmp_path, {"model": net})
    target = module()
    run = torchckpt.open_run(url)
    with pytest.raises(StructureMismatch, match=r"or only=\[…\] if torch has no such thing"):
        run.restore(like={"model": target}, convert=flax_to_torch())
    run.restore(like={"model": target}, convert=flax_to_torch(only=["*.rngs.*"]))
    assert np.array_equal(weight(target), np.asarray(net.fc.kernel[...]).T)
    target["other"] = torch.nn.Linear(2, 2)
    with pytest.raises(StructureMismatch, match=r"other\.weight") as raised:
        run.restore(like={"model": target}, convert=flax_to_torch(only=["*.rngs.*"]))
    assert len(raised.value.differences) == 2


def test_random_state_of_flax_stays_as_the_target_has_it(tmp_path: Path) -> None:
    target = module()
    url = save(torchckpt, tmp_path, {"model": target})
    net = Net(2)
    before = key(net)
    jaxckpt.open_run(url).restore(like={"model": net}, convert=torch_to_flax(only=["*.rngs.*"]))
    assert np.array_equal(key(net), before)
    assert np.array_equal(np.asarray(net.fc.kernel[...]).T, weight(target))


@pytest.mark.parametrize("given", [True, False])
def test_buffers_of_torch_alone(*, given: bool, tmp_path: Path) -> None:
    source, target = module(), module()
    for net, content in (source, 1.0), (target, 2.0):
        net["fc"].register_buffer("table", torch.full((2,), content))
    only = ["*.table"] if given else []
    flax = {"params": params()}
    save(torchckpt, tmp_path / "torch", {"model": source})
    save(jaxckpt, tmp_path / "jax", flax)
    to_flax: dict[str, Any] = {"like": flax, "convert": torch_to_flax(only=only)}
    to_torch: dict[str, Any] = {"like": {"model": target}, "convert": flax_to_torch(only=only)}
    for run, call in (jaxckpt.open_run(tmp_path / "torch"), to_flax), (torchckpt.open_run(tmp_path / "jax"), to_torch):
        if given:
            run.restore(**call)
        else:
            with pytest.raises(StructureMismatch, match="table"):
                run.restore(**call)
    assert target.state_dict()["fc.table"].tolist() == [2.0, 2.0]
    assert np.array_equal(weight(target), flax["params"]["fc"]["kernel"].T) == given


def test_only_does_not_hold_for_checkpoints_that_are_not_converted(tmp_path: Path) -> None:
    source, target = module(), module()
    save(torchckpt, tmp_path, {"model": source})
    torchckpt.open_run(tmp_path).restore(like={"model": target}, convert=flax_to_torch(only=["*.weight"]))
    assert np.array_equal(weight(source), weight(target))


@pytest.mark.parametrize("only", ["", [""], [3]])
def test_patterns_that_are_none(only: Any) -> None:
    with pytest.raises(CallError, match="expected patterns of names"):
        flax_to_torch(only=only)
    assert flax_to_torch(only="*.rngs.*") == flax_to_torch(only=["*.rngs.*"])


def test_a_component_of_each_rank_says_what_can_be_done_with_it(tmp_path: Path) -> None:
    run = jaxckpt.open_run(save(jaxckpt, tmp_path, {"params": jaxckpt.PerRank(params())}))
    advice = r"neither converted nor exported: open_run\(…\)\.restore\(components='params', rank=…\)"
    with pytest.raises(NotFound, match=advice):
        run.export_safetensors(tmp_path / "hub", component="params")
    with pytest.raises(NotFound, match=advice):
        in_torch(tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_the_wrong_direction(*, same: bool, tmp_path: Path) -> None:
    """The checkpoint of either framework, and the conversion that makes torch's for a target that is Flax's."""
    tree = params()
    url = save(jaxckpt, tmp_path, {"model": tree}) if same else save(torchckpt, tmp_path, {"model": module()})
    like = {"model": tree} if same else {"params": tree}
    with pytest.raises(StructureMismatch if same else CallError, match=r"look like Flax's: is torch_to_flax meant\?"):
        jaxckpt.open_run(url).restore(like=like, convert=flax_to_torch())


def test_the_wrong_direction_into_torch(tmp_path: Path) -> None:
    url = save(jaxckpt, tmp_path, {"params": params()})
    with pytest.raises(CallError, match=r"look like torch's: is flax_to_torch meant\?"):
        torchckpt.open_run(url).restore(like={"model": module()}, convert=torch_to_flax())


@pytest.mark.parametrize("known", [True, False])
def test_parameters_in_another_component(*, known: bool, tmp_path: Path) -> None:
    url = save(jaxckpt, tmp_path, {"params": params(0), "ema": params(1)})
    like = {"model": module(), "ema": module()}
    convert = flax_to_torch(components={"ema": "ema"} if known else None)
    if not known:
        with pytest.raises(StructureMismatch, match=r"but \['ema'\] as it is: components= says what else is converted"):
            torchckpt.open_run(url).restore(like=like, convert=convert)
        return
    torchckpt.open_run(url).restore(like=like, convert=convert)
    assert np.array_equal(weight(like["ema"]), params(1)["fc"]["kernel"].T)


def test_an_optimizer_inside_of_a_component(tmp_path: Path) -> None:
    tree = params()
    state = {"params": tree, "optimizer": {"a": init(optax.adam(0.1), tree)}}
    net = module()
    like = {"model": net, "optimizer": {"a": torch.optim.Adam(net.parameters())}}
    with pytest.raises(StructureMismatch, match="make each optimizer a component"):
        torchckpt.open_run(save(jaxckpt, tmp_path, state)).restore(like=like, convert=flax_to_torch(optimizer=Adam(lr=0.1)))


def test_two_models_with_optimizers_of_their_own(tmp_path: Path) -> None:
    """As the advice has it: a component for each."""
    trees = {"gen": params(0), "dis": {"fc": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}}
    moments = {f"{name}_opt": init(optax.adam(0.1), tree) for name, tree in trees.items()}
    places = {name: name for name in (*trees, *moments)}
    nets: dict[str, Any] = {"gen": module(), "dis": torch.nn.ModuleDict({"fc": torch.nn.Linear(2, 3)})}
    made = {f"{name}_opt": torch.optim.Adam(net.parameters()) for name, net in nets.items()}
    told = {"derived": {"parameters": "gen"}}
    hyper = {"gen_opt": Adam(lr=0.1), "dis_opt": Adam(lr=0.2)}
    torchckpt.open_run(save(jaxckpt, tmp_path / "jax", {**trees, **moments}, **told)).restore(
        like={**nets, **made}, convert=flax_to_torch(optimizer=hyper, components=places)
    )
    assert weight(nets["dis"]).tolist() == np.ones((3, 2)).tolist()
    assert [optimizer.param_groups[0]["lr"] for optimizer in made.values()] == [0.1, 0.2]
    back = jaxckpt.open_run(save(torchckpt, tmp_path / "torch", {**nets, **made}, **told)).restore(
        like={**trees, **moments}, convert=torch_to_flax(components=places)
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, dict(back), {**trees, **moments}))


@pytest.mark.parametrize("hyper", [Adam(lr=0.1), SGD(lr=0.1, momentum=0.9), SGD(lr=0.1, momentum=0.9, fused=True)], ids=repr)
def test_moments_of_fewer_bits_than_their_parameters(hyper: Any, tmp_path: Path) -> None:
    """Adam's next step failed, and that of a fused SGD; SGD takes them."""
    plain = isinstance(hyper, SGD)
    transformation = (
        optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16) if plain else optax.adam(0.1, mu_dtype=jnp.bfloat16)
    )
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": init(transformation, params())})
    net = module()
    optimizer = torch.optim.SGD(net.parameters()) if plain else torch.optim.Adam(net.parameters())
    run, like, convert = torchckpt.open_run(url), {"model": net, "optimizer": optimizer}, flax_to_torch(optimizer=hyper)
    if not plain or hyper.fused:
        with pytest.raises(StructureMismatch, match="torch's step fails on that") as raised:
            run.restore(like=like, convert=convert)
        assert len(raised.value.differences) == 2
        return
    run.restore(like=like, convert=convert)
    net["fc"](torch.ones(3)).sum().backward()
    optimizer.step()
    assert optimizer.state[net["fc"].weight]["momentum_buffer"].dtype == torch.bfloat16


def test_a_rate_that_is_a_tensor_stays_that_tensor(tmp_path: Path) -> None:
    """A captured graph went on with the old one."""
    url = save(jaxckpt, tmp_path, {"params": params(), "optimizer": optax.adam(0.5).init(params())})
    net = module()
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1))
    rate = optimizer.param_groups[0]["lr"]
    torchckpt.open_run(url).restore(like={"model": net, "optimizer": optimizer}, convert=flax_to_torch(optimizer=Adam(lr=0.5)))
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.5


def test_untied_arrays_for_a_tied_target(tmp_path: Path) -> None:
    """Equal ones that lie otherwise were said to be other content."""
    embedding = jnp.arange(15.0).reshape(5, 3)
    save(jaxckpt, tmp_path, {"params": {"embed": {"embedding": embedding}, "head": {"kernel": embedding.T}}})
    net: Any = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    with pytest.raises(StructureMismatch, match="no digests tell whether they are equal; restore it without the tie"):
        torchckpt.open_run(tmp_path).restore(like={"model": net}, convert=flax_to_torch())
    net["head"].weight = torch.nn.Parameter(torch.zeros(5, 3))
    torchckpt.open_run(tmp_path).restore(like={"model": net}, convert=flax_to_torch())
    assert torch.equal(net["head"].weight, net["embed"].weight)


def test_rules_and_names_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    """The standard rules would take their place without a word: a kernel in the wrong order trains, and learns less."""
    url = save(jaxckpt, tmp_path, {"params": {"fc": {"kernel": jnp.ones((3, 3)), "bias": jnp.zeros(3)}}})
    run = torchckpt.open_run(url)
    turned = Rule(flax="*fc.kernel", torch="*fc.weight", axes="(a b) o -> o (b a)", sizes={"a": 3})
    wrong = flax_to_torch(rules=[turned], names={"Dens_7": "zzz"})
    with pytest.raises(StructureMismatch) as raised:
        run.restore(like={"model": module()}, convert=wrong)
    first, second = raised.value.differences
    assert "fc.kernel" in first
    assert "fits nothing (a leading '*.' stands for the module's path" in first
    assert second.startswith("names 'Dens_7': no module of Flax is called so")
    run.restore(like={"model": module()}, convert=wrong, extra="ignore")
    run.restore(like={"model": module()}, convert=flax_to_torch(rules=[replace(turned, flax="fc.kernel", torch="fc.weight")]))
