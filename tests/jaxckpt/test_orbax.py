"""Orbax reads the arrays of a committed generation, with and without a target, random keys included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.jaxckpt.procs import run_job
from tests.jaxckpt.runs import assert_same_leaf, bits, save

ocp = pytest.importorskip("orbax.checkpoint")


def orbax_state(directory: Path, target: Any = None) -> Any:
    """What Orbax restores from the only generation of a run."""
    (state,) = directory.glob("generations/*/state")
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(state) if target is None else reader.restore(state, target)


def components(mesh: Mesh) -> dict[str, Any]:
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    params = {
        "w": jax.device_put(jnp.arange(64, dtype=jnp.float32).reshape(8, 8), sharding),
        "bf16": jax.device_put(jnp.ones((8, 4), jnp.bfloat16), sharding),
        "list": [jnp.arange(3), np.arange(4.0)],
    }
    keys = {"key": jax.random.key(5), "many": jax.random.split(jax.random.key(1), 4)}
    return {"params": params, "optimizer": optax.adam(1e-3).init(params), "rng": keys}


@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_without_a_target(mesh: Mesh, tmp_path: Path) -> None:
    state = components(mesh)
    save(tmp_path / "run", state)
    restored = orbax_state(tmp_path / "run")
    assert bits(restored["params"]["w"]) == bits(state["params"]["w"])
    assert bits(restored["params"]["bf16"]) == bits(state["params"]["bf16"])
    assert bits(restored["params"]["list"][1]) == bits(np.arange(4.0))
    assert bits(restored["optimizer"][0]["mu"]["w"]) == bits(state["optimizer"][0].mu["w"])
    # Without a target Orbax gives host arrays, so the key data of a random key.
    assert bits(restored["rng"]["many"]) == bits(state["rng"]["many"])


@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_with_a_target_on_another_mesh(mesh: Mesh, tmp_path: Path) -> None:
    state = {"params": components(mesh)["params"] | {"list": [jnp.arange(3)]}, "rng": components(mesh)["rng"]}
    save(tmp_path / "run", state)
    place = NamedSharding(mesh, PartitionSpec("model"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), state)
    target["params"]["w"] = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=place)
    restored = orbax_state(tmp_path / "run", target)
    assert_same_leaf(restored["params"]["w"], jax.device_put(state["params"]["w"], place))
    assert restored["rng"]["many"].dtype == jax.random.key(0).dtype
    assert jax.tree.map(bits, restored) == jax.tree.map(bits, state)


TWO = """
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.jaxckpt.runs import save
mesh = jax.make_mesh((2, 2), ("data", "model"))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("data", "model")))
save(ARGS[0], {"params": {"x": x, "key": jax.random.key(3)}})
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_what_two_processes_saved(tmp_path: Path) -> None:
    run_job(TWO, size=2, devices=2, args=[str(tmp_path / "run")])
    restored = orbax_state(tmp_path / "run")
    np.testing.assert_array_equal(restored["params"]["x"], np.arange(64, dtype=np.float32).reshape(8, 8))
    assert bits(restored["params"]["key"]) == bits(jax.random.key(3))
