"""Modules of Flax and torch with the same weights, through real checkpoints: they compute the same, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt
import torchckpt
from ckptcore.convert import Rule, conv_transpose, flax_to_torch, torch_to_flax
from ckptcore.errors import StructureMismatch

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64():
        yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module in both frameworks, how to call them, and what has to be said of it."""

    flax: linen.Module
    torch: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    channels_last: bool = False
    integers: bool = False


class Conv(linen.Module):
    """Convolutions of every kind, flattened into a layer."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Conv(4, (3, 2), padding="VALID")(x)
        x = linen.Conv(8, (2, 2), padding="VALID", feature_group_count=4)(x)
        x = linen.Conv(8, (2, 2), padding="VALID", feature_group_count=2, strides=2, use_bias=False)(x)
        x = linen.GroupNorm(num_groups=2, epsilon=1e-5)(x)
        return linen.Dense(3)(x.reshape(x.shape[0], -1))


def torch_conv() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, (3, 2)),
        torch.nn.Conv2d(4, 8, 2, groups=4),
        torch.nn.Conv2d(8, 8, 2, groups=2, stride=2, bias=False),
        torch.nn.GroupNorm(2, 8, eps=1e-5),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 2 * 3, 3),
    )


class Norms(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.LayerNorm(epsilon=1e-5)(x)
        x = linen.BatchNorm(use_running_average=True, epsilon=1e-5)(x)
        return linen.RMSNorm(epsilon=1e-6)(x)


class Attention(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.MultiHeadDotProductAttention(num_heads=2, name="attn", deterministic=True)(x, x)


class TorchAttention(torch.nn.Module):
    """With fused projections, as torch has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = torch.nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class Projections(torch.nn.Module):
    """With projections of their own, as most code has it."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, torch.nn.Linear(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (2, 3)).transpose(1, 2)
            for layer in (self.get_submodule(f"{name}_proj") for name in ("q", "k", "v"))
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.get_submodule("out_proj")(mixed.transpose(1, 2).flatten(2))


class Blocks(linen.Module):
    """Submodules whose names differ, and an embedding."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.Embed(7, 4)(x)
        for number in range(2):
            x = linen.Dense(4, name=f"blocks_{number}")(x)
        return linen.DenseGeneral((2, 3))(x).reshape(*x.shape[:-1], 6)


class TorchBlocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(7, 4)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.head = torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Transposed(linen.Module):
    turned: bool

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.ConvTranspose(4, (3, 2), strides=(2, 2), padding="VALID", transpose_kernel=self.turned)(x)


def transposed(*, turned: bool) -> Case:
    return Case(
        flax=Transposed(turned),
        torch=lambda: torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 4, (3, 2), stride=2)),
        shape=(2, 5, 4, 4),
        rules=conv_transpose("ConvTranspose_0", "0", transpose_kernel=turned),
        channels_last=True,
    )


FLATTENED = Rule(flax="Dense_0.kernel", torch="5.weight", axes="(h w c) o -> o (c h w)", sizes={"h": 2, "w": 3})
CASES = {
    "conv": Case(
        flax=Conv(),
        torch=torch_conv,
        shape=(2, 7, 8, 3),
        names={"Conv_*": "*", "GroupNorm_0": "3", "Dense_0": "5"},
        rules=(FLATTENED,),
        channels_last=True,
    ),
    "conv of one dimension": Case(
        flax=linen.Conv(5, (3,), padding="VALID"), torch=lambda: torch.nn.Conv1d(4, 5, 3), shape=(2, 6, 4), channels_last=True
    ),
    "conv of three dimensions": Case(
        flax=linen.Conv(5, (3, 2, 1), padding="VALID"),
        torch=lambda: torch.nn.Conv3d(4, 5, (3, 2, 1)),
        shape=(2, 4, 3, 2, 4),
        channels_last=True,
    ),
    "transposed conv": transposed(turned=False),
    "transposed conv with its kernel transposed": transposed(turned=True),
    "norms": Case(
        flax=Norms(),
        torch=lambda: torch.nn.Sequential(torch.nn.LayerNorm(5), torch.nn.BatchNorm1d(5), torch.nn.RMSNorm(5, eps=1e-6)),
        shape=(3, 5),
        names={"LayerNorm_0": "0", "BatchNorm_0": "1", "RMSNorm_0": "2"},
    ),
    "fused attention": Case(flax=Attention(), torch=TorchAttention, shape=(2, 4, 6), names={"attn": "mha"}),
    "attention": Case(flax=Attention(), torch=Projections, shape=(2, 4, 6), names={"attn": ""}),
    "blocks": Case(
        flax=Blocks(),
        torch=TorchBlocks,
        shape=(2, 3),
        names={"blocks_*": "blocks.*", "Embed_0": "tokens", "DenseGeneral_0": "head"},
        integers=True,
    ),
}


def inputs(case: Case) -> np.ndarray:
    generator = np.random.default_rng(3)
    return generator.integers(0, 7, case.shape) if case.integers else generator.normal(size=case.shape)


def variables(case: Case) -> dict[str, Any]:
    """Random values everywhere, also where a module begins with zeros and ones; a variance is positive."""
    shapes = jax.eval_shape(case.flax.init, jax.random.key(0), jnp.asarray(inputs(case)))
    generator = np.random.default_rng(4)
    return jax.tree.map(lambda leaf: jnp.asarray(generator.uniform(0.5, 1.5, leaf.shape)), shapes)


def of_flax(case: Case, state: Any) -> np.ndarray:
    return np.asarray(case.flax.apply(state, jnp.asarray(inputs(case))))


def of_torch(case: Case, module: torch.nn.Module) -> np.ndarray:
    x = torch.from_numpy(inputs(case))
    spatial = case.channels_last
    with torch.no_grad():
        y = module.eval()(x.movedim(-1, 1) if spatial else x)
    return (y.movedim(1, -1) if spatial and y.ndim > 2 else y).numpy()


def save(backend: Any, url: Path, components: dict[str, Any]) -> None:
    with backend.Checkpointer(url, interval=1, on_preemption="ignore") as checkpointer:
        checkpointer.save(1, components, guarantee="weights").result()


@pytest.mark.parametrize("name", CASES)
def test_flax_in_torch_and_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    state = variables(case)
    options: dict[str, Any] = {"names": case.names, "rules": case.rules}
    save(jaxckpt, tmp_path / "jax", state)
    module = case.torch()
    torchckpt.open_run(tmp_path / "jax").restore(like={"model": module}, convert=flax_to_torch(**options))
    assert np.abs(of_torch(case, module) - of_flax(case, state)).max() < 1e-12

    save(torchckpt, tmp_path / "torch", {"model": module})
    like = jax.tree.map(jnp.zeros_like, state)
    back = jaxckpt.open_run(tmp_path / "torch").restore(like=like, convert=torch_to_flax(**options))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert all(np.array_equal(one, other) for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True))


def test_a_torch_module_in_flax(tmp_path: Path) -> None:
    """Begun in torch, with the values that torch gives."""
    case = CASES["fused attention"]
    torch.manual_seed(0)
    module = case.torch()
    save(torchckpt, tmp_path, {"model": module})
    state = jaxckpt.open_run(tmp_path).restore(like=variables(case), convert=torch_to_flax(names=case.names))
    assert np.abs(of_torch(case, module) - of_flax(case, state)).max() < 1e-12


def test_nnx_modules(tmp_path: Path) -> None:
    """Their parameters have the names of linen's; the component is the module itself."""

    class Net(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.linear = nnx.Linear(3, 4, rngs=rngs, param_dtype=jnp.float64)
            self.norms = nnx.List([nnx.BatchNorm(4, rngs=rngs)])

    net = Net()
    save(jaxckpt, tmp_path, {"model": net})
    module = torch.nn.ModuleDict({"net": torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))})
    convert = flax_to_torch(names={"linear": "net.0", "norms.0": "net.1"})
    torchckpt.open_run(tmp_path).restore(like={"model": module}, convert=convert, cast="float64")
    kernel = np.asarray(net.linear.kernel[...])
    assert np.array_equal(module.state_dict()["net.0.weight"].numpy(), kernel.T)
    assert module.state_dict()["net.1.num_batches_tracked"] == 0


@pytest.mark.parametrize(
    "spec", [PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, None, "x"), PartitionSpec("x", None, "y")]
)
def test_any_sharding_of_a_target(spec: PartitionSpec, tmp_path: Path) -> None:
    """Every shard is the slice of the whole."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    torch.manual_seed(1)
    module = torch.nn.ModuleDict({"a": torch.nn.MultiheadAttention(8, 2)})
    save(torchckpt, tmp_path, {"model": module})
    sharding = NamedSharding(mesh, spec)
    like = {
        "a": {
            name: {"kernel": jax.ShapeDtypeStruct((8, 2, 4), jnp.float64, sharding=sharding), "bias": jnp.zeros((2, 4))}
            for name in ("query", "key", "value")
        }
    }
    like["a"]["out"] = {"kernel": jax.ShapeDtypeStruct((2, 4, 8), jnp.float64), "bias": jnp.zeros(8)}
    found = jaxckpt.open_run(tmp_path).restore(like={"params": like}, convert=torch_to_flax())["params"]["a"]
    rows = module.state_dict()["a.in_proj_weight"].numpy()
    for number, name in enumerate(("query", "key", "value")):
        whole = rows[8 * number : 8 * (number + 1)].reshape(2, 4, 8).transpose(2, 0, 1)
        for shard in found[name]["kernel"].addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index])


def test_whatever_is_unmatched_is_listed(tmp_path: Path) -> None:
    """Names that nobody mapped: each side's leaves are in one error, and nothing was written into the target."""
    case = CASES["blocks"]
    save(jaxckpt, tmp_path, variables(case))
    module = case.torch()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(StructureMismatch) as raised:
        torchckpt.open_run(tmp_path).restore(like={"model": module}, convert=flax_to_torch())
    assert len(raised.value.differences) == len(before) + 7
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_checkpoint_of_the_targets_own_framework_is_read_as_it_is(tmp_path: Path) -> None:
    """So that a run that has changed over restores its newer checkpoints too."""
    module = torch.nn.Linear(3, 4)
    save(torchckpt, tmp_path, {"model": module})
    other = torch.nn.Linear(3, 4)
    torchckpt.open_run(tmp_path).restore(like={"model": other}, convert=flax_to_torch())
    assert torch.equal(module.weight, other.weight)
