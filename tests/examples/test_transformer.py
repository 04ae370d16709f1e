"""A transformer is trained in one framework and handed to the other with its optimizer: it goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import ckptcore
from ckptcore.errors import GuaranteeError
from examples import transformer_jax, transformer_torch

FIRST, LAST = 20, 60
pytestmark = pytest.mark.slow
TOLERANCE = 1e-10


def train_jax(url: Path, steps: int) -> None:
    with jax.enable_x64(True):  # noqa: FBT003
        transformer_jax.main(url, steps, dtype=jnp.float64)


def train_torch(url: Path, steps: int) -> None:
    transformer_torch.main(url, steps, dtype=torch.float64)


def as_torch(url: Path) -> dict[str, np.ndarray]:
    """The parameters and moments of the newest checkpoint, in torch's form: read through the library's conversion."""
    model = transformer_torch.Transformer().double()
    optimizer = torch.optim.AdamW(model.parameters())
    like = {"model": model, "optimizer": optimizer}
    transformer_torch.torchckpt.open_run(url).restore(like=like, components=list(like), convert=transformer_torch.FROM_JAX)
    moments = {f"{name} {key}": held for name, p in model.named_parameters() for key, held in optimizer.state[p].items()}
    return {name: tensor.detach().numpy() for name, tensor in {**dict(model.named_parameters()), **moments}.items()}


def as_jax(url: Path) -> Any:
    """The parameters of the newest checkpoint as JAX stored them, read without the conversion."""
    return ckptcore.open_run(url).restore(components="params")


def framework(url: Path) -> str:
    return ckptcore.open_run(url).checkpoint().manifest.topology.framework


def largest_difference(one: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)


def test_from_jax_to_torch(tmp_path: Path) -> None:
    train_jax(tmp_path / "whole", LAST)
    train_jax(tmp_path / "parts", FIRST)
    before = as_torch(tmp_path / "parts")
    train_torch(tmp_path / "parts", LAST)
    assert (framework(tmp_path / "whole"), framework(tmp_path / "parts")) == ("jax", "torch")
    whole, parts = as_torch(tmp_path / "whole"), as_torch(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert len([name for name in whole if name.endswith("exp_avg")]) == len(list(transformer_torch.Transformer().parameters()))
    assert largest_difference(whole, parts) < TOLERANCE
    assert largest_difference(whole, before) > 1e-3  # it has learned something meanwhile


def test_from_torch_to_jax(tmp_path: Path) -> None:
    train_torch(tmp_path / "whole", LAST)
    train_torch(tmp_path / "parts", FIRST)
    train_jax(tmp_path / "parts", LAST)
    assert (framework(tmp_path / "whole"), framework(tmp_path / "parts")) == ("torch", "jax")
    assert largest_difference(as_torch(tmp_path / "whole"), as_torch(tmp_path / "parts")) < TOLERANCE


def test_back_and_forth_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_jax(tmp_path / "whole", LAST)
    for train, steps in ((train_jax, 20), (train_torch, 40), (train_jax, LAST)):
        train(tmp_path / "parts", steps)
    assert largest_difference(as_jax(tmp_path / "whole"), as_jax(tmp_path / "parts")) < TOLERANCE
    generations = ckptcore.open_run(tmp_path / "parts").generations()
    assert [known.step for known in generations] == [20, 40, 60]
    train_torch(tmp_path / "parts", LAST)
    told = [line.partition(", loss ")[0] for line in capsys.readouterr().out.splitlines()]
    assert told[1:4] == ["from step 0 to step 20", "from step 20 to step 40", "from step 40 to step 60"]
    assert told[4] == "nothing left to do: the run is at step 60"
    losses = [known.metrics["loss"] for known in generations]
    assert losses == sorted(losses, reverse=True)


def test_the_weaker_promise_has_to_be_accepted(tmp_path: Path) -> None:
    train_jax(tmp_path, FIRST)
    model = transformer_torch.Transformer().double()
    like = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "data": transformer_torch.torchckpt.Sampler(512, 16),
    }
    with (
        transformer_torch.torchckpt.Checkpointer(tmp_path) as ckpt,
        pytest.raises(GuaranteeError, match="framework 'torch' instead of 'jax'"),
    ):
        ckpt.restore_or_init(lambda: like, like=like, convert=transformer_torch.FROM_JAX)
