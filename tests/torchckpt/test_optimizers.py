"""Optimizers: everything that they hold is stored, and put back without touching anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from ckptcore.digests import group_key
from ckptcore.errors import StructureMismatch, UnsupportedLeaf
from tests.torchckpt.held import fill, hold, prepare
from tests.torchckpt.optimizing import (
    MAKERS,
    Make,
    copy_parameters,
    described,
    everything,
    identities,
    names,
    net,
    restore,
    save,
    train,
)
from tests.torchckpt.procs import run_job
from torchckpt import optimizers

pytestmark = pytest.mark.slow


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


def test_every_optimizer_of_torch_is_here() -> None:
    known = {name for name in vars(optim) if isinstance(kind := vars(optim)[name], type) and issubclass(kind, optim.Optimizer)}
    model = net()
    tried = {type(make(model)).__name__ for make in MAKERS.values()}
    assert known - tried == {"Optimizer", "SparseAdam"}  # SparseAdam needs a model of its own, below


def test_it_goes_on_bit_for_bit_in_a_fresh_optimizer(make: Make) -> None:
    model = net()
    optimizer = make(model)
    train(model, optimizer, range(4))
    held, before = save(model, optimizer), everything(model, optimizer)

    fresh = net(seed=1)
    target = make(fresh)
    copy_parameters(model, fresh)
    restore(fresh, target, held)
    assert everything(fresh, target) == before

    assert train(fresh, target, range(4, 8)) == train(model, optimizer, range(4, 8))
    assert everything(fresh, target) == everything(model, optimizer)
    assert described(list(fresh.parameters())) == described(list(model.parameters()))


def test_it_goes_back_bit_for_bit_in_the_same_optimizer(make: Make) -> None:
    model = net()
    optimizer = make(model)
    train(model, optimizer, range(4))
    held, before = save(model, optimizer), everything(model, optimizer)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    first = train(model, optimizer, range(4, 8))

    copy_parameters(nn.ParameterList(weights), model)
    restore(model, optimizer, held)
    assert everything(model, optimizer) == before
    assert train(model, optimizer, range(4, 8)) == first


@pytest.mark.parametrize("name", [name for name in sorted(MAKERS) if not name.startswith("lbfgs")])
def test_what_the_target_has_is_filled_in_place(name: str) -> None:
    model = net()
    optimizer = MAKERS[name](model)
    train(model, optimizer, range(3))
    held = save(model, optimizer)
    train(model, optimizer, range(3, 5))
    before = identities(optimizer)
    restore(model, optimizer, held)
    assert identities(optimizer) == before
    assert save(model, optimizer).keys() == held.keys()


def test_saving_and_restoring_change_nothing_else(make: Make) -> None:
    model = net()
    optimizer = make(model)
    train(model, optimizer, range(2))
    before = everything(model, optimizer)
    held = save(model, optimizer)
    assert everything(model, optimizer) == before

    fresh = net(seed=1)
    target = make(fresh)
    weights = described(list(fresh.parameters()))
    restore(fresh, target, held)
    assert described(list(fresh.parameters())) == weights
    assert [parameter.grad for parameter in fresh.parameters()] == [None] * 5
    assert (fresh.unused in target.state) == (model.unused in optimizer.state)


def test_saving_a_fresh_optimizer_runs_no_step(make: Make) -> None:
    model = net()
    optimizer = make(model)
    before = everything(model, optimizer), described(list(model.parameters()))
    held = save(model, optimizer)
    assert (everything(model, optimizer), described(list(model.parameters()))) == before

    used = make(model)
    train(model, used, range(2))
    restore(model, used, held)
    assert everything(model, used) == before[0]


def test_a_refused_restore_changes_nothing() -> None:
    model = net()
    adam = optim.Adam(model.parameters())
    train(model, adam, range(2))
    sgd = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    train(model, sgd, range(2))
    before = everything(model, sgd)
    slots = optimizers.slots(sgd, names(model), (), "optimizer")
    with pytest.raises(StructureMismatch, match=r"param_groups.*\n.*'betas'.*only in the checkpoint") as error:
        prepare(slots, save(model, adam))
    assert {"betas", "momentum", "eps"} <= {difference.split("'")[1] for difference in error.value.differences}
    prepare(optimizers.slots(adam, names(model), (), "optimizer"), save(model, adam))
    assert everything(model, sgd) == before


def test_the_layout() -> None:
    model = net()
    optimizer = MAKERS["adamw"](model)
    train(model, optimizer, range(1))
    found = {leaf.path: leaf.data for leaf in optimizers.leaves(optimizer, names(model), (("key", "both"),), "optimizer")}
    state = {path[2:] for path in found if path[1] == ("key", "state")}
    keys = ("step", "exp_avg", "exp_avg_sq")
    used = ("conv.weight", "conv.bias", "head.weight", "head.bias")
    assert state == {(("key", name), ("key", key)) for name in used for key in keys}
    groups = {path: data for path, data in found.items() if path[1] == ("key", "param_groups")}
    first, second = groups.values()
    assert [path[2:] for path in groups] == [(("key", group_key(group["params"])),) for group in (first, second)]
    assert (first["params"], first["lr"], first["weight_decay"]) == (["conv.weight", "head.weight"], 1e-2, 0.1)
    assert (second["params"], second["lr"], second["weight_decay"]) == (["unused", "conv.bias", "head.bias"], 1e-2 / 3, 1e-2)
    assert {path[0] for path in found} == {("key", "both")}
    first_state = found[("key", "both"), ("key", "state"), ("key", "conv.weight"), ("key", "exp_avg")]
    assert first_state is optimizer.state[model.conv.weight]["exp_avg"]


def test_sparse_adam() -> None:
    def embedding() -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(6, 3, sparse=True)

    def steps(model: nn.Embedding, optimizer: optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            optimizer.zero_grad()
            model(torch.tensor([number % 6, 2])).square().sum().backward()
            optimizer.step()

    model, fresh = embedding(), embedding()
    optimizer, target = (optim.SparseAdam(list(m.parameters())) for m in (model, fresh))
    steps(model, optimizer, range(3))
    copy_parameters(model, fresh)
    restore(fresh, target, save(model, optimizer))
    for one, number in ((model, optimizer), (fresh, target)):
        steps(one, number, range(3, 6))
    assert everything(fresh, target) == everything(model, optimizer)
    assert torch.equal(fresh.weight, model.weight)


def test_moments_keep_their_dtype() -> None:
    """Float32 moments of bfloat16 parameters: torch's own load would round them."""
    model = net().to(torch.bfloat16)
    optimizer = optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.rand(parameter.shape),
            "exp_avg_sq": torch.rand(parameter.shape),
        }
    fresh = net().to(torch.bfloat16)
    target = optim.AdamW(fresh.parameters())
    for parameter in fresh.parameters():
        target.state[parameter]["exp_avg"] = torch.zeros_like(parameter)  # of the parameter's dtype: not what was saved
    restore(fresh, target, save(model, optimizer))
    assert target.state[fresh.head.weight]["exp_avg"].dtype == torch.float32
    assert save(fresh, target).keys() == save(model, optimizer).keys()
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(target.state[new]["exp_avg"], optimizer.state[old]["exp_avg"])


def test_state_that_was_not_saved_goes() -> None:
    model = net()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    held = save(model, optimizer)
    model.unused.grad = torch.ones(3)
    optimizer.step()
    optimizer.state[model.head.weight]["extra"] = 5
    assert model.unused in optimizer.state
    restore(model, optimizer, held)
    assert model.unused not in optimizer.state
    assert set(optimizer.state[model.head.weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_values_keep_their_types() -> None:
    state = {
        "none": None,
        "int": 3,
        "float": 2.0,
        "flag": True,
        "pair": (1, "a"),
        "list": [1.5, [torch.ones(2), None]],
        "long": b"ab" * 40_000,
        "array": np.arange(3, dtype=np.int16),
        "empty": {},
    }
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.unused] = dict(state)
    fresh = net()
    target = optim.SGD(fresh.parameters(), lr=0.1)
    restore(fresh, target, save(model, optimizer))
    assert described(target.state[fresh.unused]) == described(state)


def test_parameters_of_no_module_go_by_the_optimizers_own_names() -> None:
    model, fresh = net(), net()
    optimizer = optim.Adam(model.named_parameters())
    train(model, optimizer, range(2))
    leaves = optimizers.leaves(optimizer, {}, (), "optimizer")
    held = hold(leaves)
    assert {path[1][1] for path in held if path[0] == ("key", "state")} == {
        "conv.weight",
        "conv.bias",
        "head.weight",
        "head.bias",
    }
    assert all("param_names" not in leaf.data for leaf in leaves if leaf.path[0] == ("key", "param_groups"))
    target = optim.Adam(fresh.parameters())
    restore(fresh, target, held)
    assert target.state[fresh.head.bias]["step"] == 2
    named = optim.Adam(fresh.named_parameters())
    fill(optimizers.slots(named, {}, (), "optimizer"), held)
    assert named.param_groups[0]["param_names"] == [name for name, _ in fresh.named_parameters()]


def test_a_parameter_without_a_name_is_refused() -> None:
    model = net()
    stray = nn.Parameter(torch.ones(2, 3))
    optimizer = optim.SGD([{"params": model.parameters()}, {"params": [nn.Parameter(torch.ones(1)), stray]}], lr=1.0)
    known = names(model) | {id(optimizer.param_groups[1]["params"][0]): "one"}
    for call in (optimizers.leaves, optimizers.slots):
        with pytest.raises(
            UnsupportedLeaf, match=r"optimizer: parameter 1 of group 1 \(shape \(2, 3\)\) belongs to no module.*named_param"
        ):
            call(optimizer, known, (), "optimizer")


def test_two_parameters_of_one_name_are_refused() -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(UnsupportedLeaf, match="optimizer: several of its parameters are called 'same'"):
        optimizers.leaves(optimizer, dict.fromkeys(names(model), "same"), (), "optimizer")


def test_a_state_of_something_else_is_refused() -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    optimizer.state["shared"] = {"count": 1}  # type: ignore[index] - torch does not forbid it
    with pytest.raises(UnsupportedLeaf, match="optimizer: it has a state for 'shared', which is not a parameter"):
        save(model, optimizer)
    del optimizer.state["shared"]  # type: ignore[arg-type] - as above
    optimizer.state[torch.ones(2)] = {"count": 1}
    with pytest.raises(UnsupportedLeaf, match=r"optimizer: it has a state for a tensor of shape \(2,\)"):
        save(model, optimizer)
    optimizer.state.clear()
    optimizer.state[model.unused] = [1]
    with pytest.raises(UnsupportedLeaf, match="optimizer: the state of 'unused' is a list, not a dict"):
        save(model, optimizer)


def test_an_optimizer_with_a_state_dict_of_its_own_is_refused() -> None:
    class Averaging(optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "average": 1}

    model = net()
    optimizer = Averaging(model.parameters(), lr=1.0)
    for call in (optimizers.leaves, optimizers.slots):
        with pytest.raises(UnsupportedLeaf, match=r"optimizer: Averaging has its own state_dict.*get_state"):
            call(optimizer, names(model), (), "optimizer")


def test_a_function_among_the_options_is_refused_by_name() -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    optimizer.param_groups[0]["rule"] = len
    with pytest.raises(UnsupportedLeaf, match=r"optimizer\['param_groups'\]\['unused-\w+'\]\['rule'\]: builtin_function"):
        save(model, optimizer)


def test_an_optimizer_without_parameters_wants_nothing() -> None:
    optimizer = optim.SGD([{"params": []}], lr=1.0)
    assert optimizers.leaves(optimizer, {}, (), "optimizer") == []
    assert optimizers.slots(optimizer, {}, (), "optimizer") == []


SHARDED = """
    from torch import nn, optim
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from tests.torchckpt.held import fill, hold
    from torchckpt import optimizers
    from ckptcore.errors import StructureMismatch

    mesh = dist.init_device_mesh("cpu", (2,))

    def parameter(placement):
        torch.manual_seed(0)
        return nn.Parameter(distribute_tensor(torch.randn(5, 3), mesh, [placement]))

    def make(placement):
        p = parameter(placement)
        return p, optim.AdamW([p], lr=0.1), {id(p): "w"}

    def train(p, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            (p * (step + 1)).sin().sum().backward()
            optimizer.step()

    p, optimizer, names = make(Shard(0))
    train(p, optimizer, range(3))
    held = hold(optimizers.leaves(optimizer, names, (), "optimizer"))

    for placement in (Shard(0), Shard(1), Replicate()):
        for warm in (False, True):
            q, target, named = make(placement)
            if warm:
                train(q, target, range(1))
            with torch.no_grad():
                q.copy_(p.redistribute(mesh, [placement]))
            old = dict(target.state.get(q, {}))
            fill(optimizers.slots(target, named, (), "optimizer"), held)
            state = target.state[q]
            for key in ("exp_avg", "exp_avg_sq"):
                assert isinstance(state[key], DTensor) and state[key].placements == (placement,), (key, state[key])
                assert state[key].shape == (5, 3) and state[key].stride() == (3, 1)
                assert torch.equal(state[key].full_tensor(), optimizer.state[p][key].full_tensor())
            assert type(state["step"]) is torch.Tensor and state["step"].item() == 3
            assert not warm or all(state[key] is old[key] for key in old)
            again = [t.full_tensor().clone() for t in (q,)]
    r, reference, named = make(Shard(0))
    with torch.no_grad():
        r.copy_(p)
    fill(optimizers.slots(reference, named, (), "optimizer"), held)
    train(p, optimizer, range(3, 6))
    train(r, reference, range(3, 6))
    assert torch.equal(p.full_tensor(), r.full_tensor())

    # A state of another shape than the parameter's: only a target that has it shows how it lies.
    optimizer.state[p]["row"] = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
    held = hold(optimizers.leaves(optimizer, names, (), "optimizer"))
    q, target, named = make(Shard(0))
    slots = optimizers.slots(target, named, (), "optimizer")
    try:
        fill(slots, held)
        raise SystemExit("was taken")
    except StructureMismatch as error:
        assert "optimizer['state']['w']['row']: an array of shape [5]" in str(error), error
        assert "run one step" in str(error), error
    assert not target.state
    target.state[q]["row"] = distribute_tensor(torch.zeros(5), mesh, [Shard(0)])
    fill(optimizers.slots(target, named, (), "optimizer"), held)
    assert torch.equal(target.state[q]["row"].full_tensor(), torch.arange(5.0))
    print("done")
"""


@pytest.mark.slow
def test_states_of_sharded_parameters_are_divided_like_them() -> None:
    job = run_job(SHARDED, size=2)
    assert all("done" in output for output in job), job
