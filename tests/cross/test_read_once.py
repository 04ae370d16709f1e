"""A checkpoint that is converted while it is read is read once, whatever its arrays are made of."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import jaxckpt
import torchckpt
from ckptcore.convert import Adam, flax_to_torch, torch_to_flax
from tests.cross.support import init, save
from tests.reading import bytes_read, stored_bytes

pytestmark = pytest.mark.slow

WIDTH = 512


def net() -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({"fc": torch.nn.Linear(WIDTH, WIDTH)})


def params(value: float) -> dict[str, dict[str, jnp.ndarray]]:
    kernel = value + jnp.arange(WIDTH * WIDTH, dtype=jnp.float32).reshape(WIDTH, WIDTH)
    return {"fc": {"kernel": kernel, "bias": jnp.full(WIDTH, value)}}


def within(place: Path, nbytes: int) -> bool:
    """Whether what is stored was read once: three copies of the weights."""
    return 0.9 * 3 * 4 * WIDTH * WIDTH < nbytes < 1.15 * stored_bytes(place)


def test_from_jax_to_torch(tmp_path: Path) -> None:
    tree = params(1.0)
    save(jaxckpt, tmp_path / "run", {"params": tree, "opt_state": init(optax.adam(0.1), tree)}, chunk_bytes=256 << 10)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with bytes_read() as read:
        torchckpt.open_run(tmp_path / "run").restore(
            like={"model": model, "optimizer": optimizer}, convert=flax_to_torch(optimizer=Adam(lr=0.1))
        )
    np.testing.assert_array_equal(model.state_dict()["fc.weight"].numpy(), np.asarray(tree["fc"]["kernel"]).T)
    assert within(tmp_path / "run", read.bytes)


def test_from_torch_to_jax(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model["fc"](torch.ones(WIDTH)).sum().backward()
    optimizer.step()
    save(torchckpt, tmp_path / "run", {"model": model, "optimizer": optimizer}, chunk_bytes=256 << 10)
    like = {"params": params(0.0), "opt_state": init(optax.adam(0.1), params(0.0))}
    with bytes_read() as read:
        found = jaxckpt.open_run(tmp_path / "run").restore(like=like, convert=torch_to_flax())
    np.testing.assert_array_equal(np.asarray(found["params"]["fc"]["kernel"]), model.state_dict()["fc.weight"].numpy().T)
    assert within(tmp_path / "run", read.bytes)
