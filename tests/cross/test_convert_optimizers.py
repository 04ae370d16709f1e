"""Training goes on in the other framework as it would have gone on in the first, with everything in float64.

Checkpoints are real ones. optax and torch compute the same numbers in another order of operations, so that they
agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from flax.training.train_state import TrainState

import jaxckpt
import torchckpt
from ckptcore.convert import SGD, Adam, AdamW, flax_to_torch, torch_to_flax
from ckptcore.convert.hyper import Hyper
from ckptcore.errors import StructureMismatch

pytestmark = pytest.mark.slow

LR = 0.03
BETAS = (0.8, 0.95)
EPS = 1e-6
DECAY = 0.2
STEPS = 5
CLOSE = 1e-12


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64():
        yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Case:
    """An optimizer in both frameworks. torch's is what its hyper-parameters make."""

    optax: Callable[[], optax.GradientTransformation]
    hyper: Hyper


ADAM: dict[str, Any] = {"betas": BETAS, "eps": EPS}
OPTAX_ADAM: dict[str, Any] = {"b1": BETAS[0], "b2": BETAS[1], "eps": EPS}
ONE_DECAYS = AdamW(lr=LR, weight_decay=DECAY, groups={"*.bias": {"weight_decay": 0.0}}, **ADAM)
CASES = {
    "adam": Case(lambda: optax.adam(LR, **OPTAX_ADAM), Adam(lr=LR, **ADAM)),
    "adam with decay": Case(
        lambda: optax.chain(optax.add_decayed_weights(DECAY), optax.adam(LR, **OPTAX_ADAM)),
        Adam(lr=LR, weight_decay=DECAY, **ADAM),
    ),
    "adamw": Case(lambda: optax.adamw(LR, weight_decay=DECAY, **OPTAX_ADAM), AdamW(lr=LR, weight_decay=DECAY, **ADAM)),
    "adamw that spares biases": Case(
        lambda: optax.adamw(
            LR, weight_decay=DECAY, mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree), **OPTAX_ADAM
        ),
        ONE_DECAYS,
    ),
    "adamw with a schedule, clipped": Case(
        lambda: optax.chain(
            optax.clip_by_global_norm(1e9), optax.adamw(optax.constant_schedule(LR), weight_decay=DECAY, **OPTAX_ADAM)
        ),
        AdamW(lr=LR, weight_decay=DECAY, **ADAM),
    ),
    "sgd": Case(lambda: optax.sgd(LR), SGD(lr=LR)),
    "sgd with decay": Case(lambda: optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(LR)), SGD(lr=LR, weight_decay=DECAY)),
    "momentum": Case(lambda: optax.sgd(LR, momentum=0.9), SGD(lr=LR, momentum=0.9)),
    "nesterov": Case(lambda: optax.sgd(LR, momentum=0.9, nesterov=True), SGD(lr=LR, momentum=0.9, nesterov=True)),
    "momentum with a schedule": Case(lambda: optax.sgd(optax.constant_schedule(LR), momentum=0.9), SGD(lr=LR, momentum=0.9)),
}
NAMES = {"first": "layers.0", "second": "layers.2"}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def data(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(8, 3))


def params(seed: int = 7) -> Any:
    generator = np.random.default_rng(seed)
    shapes = {"first": (3, 4), "second": (4, 2)}
    return {
        name: {"kernel": jnp.asarray(generator.normal(size=s)), "bias": jnp.asarray(generator.normal(size=s[1:]))}
        for name, s in shapes.items()
    }


def loss(tree: Any, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ tree["first"]["kernel"] + tree["first"]["bias"])
    return jnp.square(hidden @ tree["second"]["kernel"] + tree["second"]["bias"]).sum()


def train_jax(case: Case, tree: Any, state: Any, steps: range) -> tuple[Any, Any]:
    transformation, gradient = case.optax(), jax.grad(loss)
    for step in steps:
        updates, state = transformation.update(gradient(tree, jnp.asarray(data(step))), state, tree)
        tree = optax.apply_updates(tree, updates)
    return tree, state


def train_torch(net: Net, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        net(torch.from_numpy(data(step))).square().sum().backward()
        optimizer.step()


def torch_optimizer(net: Net, hyper: Hyper, **changes: Any) -> torch.optim.Optimizer:
    kind: Any = getattr(torch.optim, type(hyper).__name__)
    tensors = dict(net.named_parameters())
    groups = [{**group, "params": [tensors[name] for name in group["params"]]} for group in hyper.param_groups(list(tensors))]
    for group in groups:
        group.pop("decoupled_weight_decay", None)
        group.update(changes)
    return kind(groups)


def fresh(case: Case) -> tuple[Net, torch.optim.Optimizer]:
    """A target with other weights, and other hyper-parameters where that is possible."""
    torch.manual_seed(99)
    net = Net()
    return net, torch_optimizer(net, case.hyper, lr=0.9, weight_decay=0.9)


def arrays(net: Net) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in net.named_parameters()}


def close(net: Net, tree: Any) -> float:
    named = {"layers.0": tree["first"], "layers.2": tree["second"]}
    tensors = arrays(net)
    pairs = [(tensors[f"{name}.weight"].T, layer["kernel"]) for name, layer in named.items()]
    pairs += [(tensors[f"{name}.bias"], layer["bias"]) for name, layer in named.items()]
    return max(float(np.abs(one - np.asarray(other)).max()) for one, other in pairs)


def save(backend: Any, url: Path, components: dict[str, Any], derived: Any = None) -> None:
    with backend.Checkpointer(url, interval=1, on_preemption="ignore", derived=derived) as checkpointer:
        checkpointer.save(STEPS, components, guarantee="weights").result()


@pytest.mark.parametrize("name", CASES)
def test_torch_goes_on_as_jax_would_have(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tree = params()
    tree, state = train_jax(case, tree, case.optax().init(tree), range(STEPS))
    save(jaxckpt, tmp_path, {"params": tree, "optimizer": state})
    net, optimizer = fresh(case)
    convert = flax_to_torch(names=NAMES, optimizer=case.hyper)
    torchckpt.open_run(tmp_path).restore(like={"model": net, "optimizer": optimizer}, convert=convert)
    assert close(net, tree) == 0
    assert len(optimizer.param_groups) == (2 if case.hyper.groups else 1)
    train_torch(net, optimizer, range(STEPS, 2 * STEPS))
    tree, _ = train_jax(case, tree, state, range(STEPS, 2 * STEPS))
    assert close(net, tree) < CLOSE


@pytest.mark.parametrize("name", CASES)
def test_jax_goes_on_as_torch_would_have(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    torch.manual_seed(5)
    net = Net()
    optimizer = torch_optimizer(net, case.hyper)
    train_torch(net, optimizer, range(STEPS))
    save(torchckpt, tmp_path, {"model": net, "optimizer": optimizer})
    tree = params()
    like = {"params": tree, "optimizer": case.optax().init(tree)}
    count = STEPS if name == "momentum with a schedule" else None
    restored = jaxckpt.open_run(tmp_path).restore(like=like, convert=torch_to_flax(names=NAMES, count=count))
    assert close(net, restored["params"]) == 0
    train_torch(net, optimizer, range(STEPS, 2 * STEPS))
    tree, state = train_jax(case, restored["params"], restored["optimizer"], range(STEPS, 2 * STEPS))
    assert close(net, tree) < CLOSE
    counts = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if "count" in jax.tree_util.keystr(path)]
    assert all(leaf == 2 * STEPS for leaf in counts)


@pytest.mark.parametrize("name", ["adamw that spares biases", "nesterov"])
def test_there_and_back_is_bit_identical(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    tree = params()
    tree, state = train_jax(case, tree, case.optax().init(tree), range(STEPS))
    saved = {"params": tree, "optimizer": state}
    save(jaxckpt, tmp_path / "jax", saved)
    net, optimizer = fresh(case)
    convert = flax_to_torch(names=NAMES, optimizer=case.hyper)
    torchckpt.open_run(tmp_path / "jax").restore(like={"model": net, "optimizer": optimizer}, convert=convert)
    save(torchckpt, tmp_path / "torch", {"model": net, "optimizer": optimizer})
    like = jax.tree.map(jnp.zeros_like, saved)
    back = jaxckpt.open_run(tmp_path / "torch").restore(like=like, convert=torch_to_flax(names=NAMES))
    assert jax.tree.structure(back) == jax.tree.structure(saved)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(saved), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("hyper", [Adam(lr=0.1), AdamW(lr=0.1, weight_decay=0.3), SGD(lr=0.1, momentum=0.5)])
def test_groups_have_exactly_the_options_of_torch(hyper: Hyper) -> None:
    """Held against the torch that is installed: an option that it adds shows here."""
    kind: Any = getattr(torch.optim, type(hyper).__name__)
    used: dict[str, Any] = {key: hyper.options[key] for key in ("lr", "weight_decay", "momentum") if key in hyper.options}
    group = {
        key: value for key, value in kind([torch.nn.Parameter(torch.ones(1))], **used).param_groups[0].items() if key != "params"
    }
    assert hyper.options == group


def test_a_train_state_of_flax(tmp_path: Path) -> None:
    """One component that holds parameters, optimizer and step."""
    case = CASES["momentum"]
    places = {"model": "state.params", "optimizer": ("state.opt_state", "state.step")}
    state = TrainState.create(apply_fn=lambda: None, params=params(), tx=case.optax())
    for step in range(STEPS):
        state = state.apply_gradients(grads=jax.grad(loss)(state.params, jnp.asarray(data(step))))
    save(jaxckpt, tmp_path / "jax", {"state": state}, {"parameters": "state"})
    net, optimizer = fresh(case)
    convert = flax_to_torch(names=NAMES, optimizer=case.hyper, components=places)
    torchckpt.open_run(tmp_path / "jax").restore(like={"model": net, "optimizer": optimizer}, convert=convert)
    save(torchckpt, tmp_path / "torch", {"model": net, "optimizer": optimizer})
    like = TrainState.create(apply_fn=state.apply_fn, params=params(1), tx=state.tx)
    back = jaxckpt.open_run(tmp_path / "torch").restore(
        like={"state": like}, convert=torch_to_flax(names=NAMES, components=places, count=STEPS)
    )["state"]
    assert back.step == STEPS
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True))


def test_an_optimizer_of_nnx(tmp_path: Path) -> None:
    module = nnx.Linear(3, 4, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    optimizer = nnx.Optimizer(module, optax.adamw(LR, weight_decay=DECAY, **OPTAX_ADAM), wrt=nnx.Param)
    optimizer.update(module, nnx.grad(lambda m: jnp.square(m(jnp.ones((2, 3)))).sum())(module))
    save(jaxckpt, tmp_path / "jax", {"model": module, "optimizer": optimizer})
    layer = torch.nn.Linear(3, 4)
    target = torch.optim.AdamW(layer.parameters(), lr=0.9)
    convert = flax_to_torch(optimizer=CASES["adamw"].hyper)
    torchckpt.open_run(tmp_path / "jax").restore(like={"model": layer, "optimizer": target}, convert=convert)
    assert target.state[layer.weight]["step"] == 1
    assert np.array_equal(target.state[layer.weight]["exp_avg"].numpy().T, np.asarray(optimizer.opt_state[0].mu["kernel"][...]))

    save(torchckpt, tmp_path / "torch", {"model": layer, "optimizer": target})
    other = nnx.Linear(3, 4, rngs=nnx.Rngs(1), param_dtype=jnp.float64)
    back = nnx.Optimizer(other, optax.adamw(LR, weight_decay=DECAY, **OPTAX_ADAM), wrt=nnx.Param)
    jaxckpt.open_run(tmp_path / "torch").restore(like={"model": other, "optimizer": back}, convert=torch_to_flax())
    assert jax.tree.all(jax.tree.map(np.array_equal, nnx.to_pure_dict(nnx.state(back)), nnx.to_pure_dict(nnx.state(optimizer))))


REFUSED = {
    "accumulation": lambda: optax.MultiSteps(optax.adam(LR), 2),
    "injected hyper-parameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=LR),
    "masks with a state": lambda: optax.masked(optax.adam(LR), True),  # noqa: FBT003 - the mask of the whole tree
    "averages": lambda: optax.chain(optax.adam(LR), optax.ema(0.9)),
    "amsgrad": lambda: optax.amsgrad(LR),
    "rmsprop": lambda: optax.rmsprop(LR),
    "lion": lambda: optax.lion(LR),
    "labels": lambda: optax.multi_transform({"a": optax.adam(LR)}, jax.tree.map(lambda _: "a", params())),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_of_optax_that_are_refused(name: str, tmp_path: Path) -> None:
    """In both directions; what is not understood is named."""
    tree = params()
    state = REFUSED[name]().init(tree)
    save(jaxckpt, tmp_path / "jax", {"params": tree, "optimizer": state})
    net, optimizer = fresh(CASES["adam"])
    with pytest.raises(StructureMismatch, match="not understood"):
        torchckpt.open_run(tmp_path / "jax").restore(
            like={"model": net, "optimizer": optimizer}, convert=flax_to_torch(names=NAMES, optimizer=CASES["adam"].hyper)
        )
    save(torchckpt, tmp_path / "torch", {"model": net, "optimizer": optimizer})
    with pytest.raises(StructureMismatch, match="not understood"):
        jaxckpt.open_run(tmp_path / "torch").restore(
            like={"params": tree, "optimizer": state}, convert=torch_to_flax(names=NAMES)
        )
