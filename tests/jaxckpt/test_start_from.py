"""Warm starts of JAX programs from safetensors files: each device gets its own boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import save_file

from ckptcore.errors import CallError
from ckptcore.formats.safetensors import Safetensors
from ckptcore.geometry import Box
from ckptcore.readable import StoredLeaf
from jaxckpt import open_run
from tests.jaxckpt.runs import checkpointer, save


class Counted(Safetensors):
    """Remembers the boxes that were read."""

    asked: list[Box]

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        self.asked = [box for _, boxes in wanted for box in boxes]
        return super().read(wanted)


def test_every_device_gets_its_boxes_of_a_file(mesh: Mesh, tmp_path: Path) -> None:
    kernel, scale = np.arange(48, dtype=np.float32).reshape(8, 6), np.arange(6).astype(jnp.bfloat16)
    save_file({"model.layers.0.kernel": kernel, "model.scale": scale}, tmp_path / "model.safetensors")
    place = {"kernel": NamedSharding(mesh, P("data", "model")), "scale": NamedSharding(mesh, P())}
    like = {
        "params": {
            "layers": {"0": {"kernel": jax.ShapeDtypeStruct((8, 6), np.float32, sharding=place["kernel"])}},
            "scale": jax.ShapeDtypeStruct((6,), jnp.bfloat16, sharding=place["scale"]),
        },
        "step": {"count": 0},
    }

    def init() -> dict:
        zeros = jax.tree.map(lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), like["params"])
        return {"params": zeros, "step": {"count": 3}}

    source = Counted(tmp_path, names={"model": ""})
    with checkpointer(tmp_path / "run", start_from=source) as ckpt:
        restored = ckpt.restore_or_init(init, like=like)
    params = restored.components["params"]
    assert restored.step == 0
    assert restored.components["step"] == {"count": 3}
    assert params["layers"]["0"]["kernel"].sharding == place["kernel"]
    assert np.array_equal(params["layers"]["0"]["kernel"], kernel)
    assert np.array_equal(params["scale"], scale)
    assert sorted(box.size for box in source.asked) == [6, 12, 12, 12, 12]
    with checkpointer(tmp_path / "run") as ckpt, pytest.raises(CallError, match="was created to begin from the safetensors"):
        ckpt.restore_or_init(init, like=like)


def test_parameters_are_exported_under_their_dotted_names(tmp_path: Path) -> None:
    params = {"layers": [{"kernel": jnp.ones((2, 3))}, {"kernel": jnp.zeros((2, 3))}], "scale": jnp.float32(2)}
    save(tmp_path / "run", {"params": params})
    (path,) = open_run(tmp_path / "run").export_safetensors(tmp_path / "hub", component="params", names={"model": ""})
    leaves = Safetensors(path).leaves("params")
    assert set(leaves) == {"params.model.layers.0.kernel", "params.model.layers.1.kernel", "params.model.scale"}
