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

import jaxckpt
from ckptcore.formats.orbax_export import export_orbax
from ckptcore.run import open_run
from tests.jaxckpt.procs import run_job
from tests.jaxckpt.runs import assert_same_leaf, bits, checkpointer, save

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


@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_pytree_checkpointer_with_restore_args(mesh: Mesh, tmp_path: Path) -> None:
    state = {name: value for name, value in components(mesh).items() if name != "optimizer"}
    save(tmp_path / "run", state)
    (path,) = (tmp_path / "run").glob("generations/*/state")
    place = NamedSharding(mesh, PartitionSpec("model"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(lambda _: ocp.ArrayRestoreArgs(sharding=everywhere), state)
    args["params"]["w"] = ocp.ArrayRestoreArgs(sharding=place, dtype=jnp.bfloat16)
    args["params"]["list"][1] = ocp.RestoreArgs(restore_type=np.ndarray)
    with ocp.PyTreeCheckpointer() as reader:
        restored = reader.restore(path, args=ocp.args.PyTreeRestore(item=state, restore_args=args))
    assert_same_leaf(restored["params"]["w"], jax.device_put(state["params"]["w"].astype(jnp.bfloat16), place))
    assert restored["rng"]["many"].dtype == jax.random.key(0).dtype
    del restored["params"]["w"], state["params"]["w"]
    assert jax.tree.map(bits, restored) == jax.tree.map(bits, state)


@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*")
def test_every_committed_generation_and_what_it_keeps_elsewhere(mesh: Mesh, tmp_path: Path) -> None:
    """`state/` holds what a save wrote; an export holds what a component that was left unchanged has, too."""
    state = components(mesh)
    with checkpointer(tmp_path / "run") as saver:
        saver.save(1, state)
        saver.save(2, {"rng": {"key": jax.random.key(9)}}, unchanged=["params", "optimizer"]).result(30)
    one, two = sorted((tmp_path / "run").glob("generations/*/state"))
    with ocp.StandardCheckpointer() as reader:
        assert bits(reader.restore(one)["params"]["w"]) == bits(state["params"]["w"])
        assert bits(reader.restore(two)["rng"]["key"]) == bits(jax.random.key(9))
    export_orbax(open_run(tmp_path / "run").checkpoint(), tmp_path / "out")
    everywhere = NamedSharding(mesh, PartitionSpec())
    whole = {"params": state["params"], "optimizer": state["optimizer"], "rng": {"key": jax.random.key(9)}}
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), whole)
    target["params"]["list"][1] = np.zeros(4)
    with ocp.StandardCheckpointer() as reader:
        restored = reader.restore(tmp_path / "out", target)
        bare = reader.restore(tmp_path / "out")
    assert jax.tree.structure(restored) == jax.tree.structure(whole)
    assert jax.tree.map(bits, restored) == jax.tree.map(bits, whole)
    assert bits(bare["rng"]["key"]) == bits(jax.random.key(9))
    (key,) = jaxckpt.Orbax(tmp_path / "out", component="rng").leaves("rng").values()
    assert key.record.prng_impl == "threefry2x32"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_run_starts_from_an_orbax_checkpoint(mesh: Mesh, tmp_path: Path) -> None:
    state = components(mesh)
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "old", {"params": state["params"], "rng": state["rng"]})
    fresh = {"params": jax.tree.map(jnp.zeros_like, state["params"])}
    fresh["params"]["list"][1] = np.zeros(4)
    with checkpointer(tmp_path / "run", start_from=jaxckpt.Orbax(tmp_path / "old")) as saver:
        begun = saver.restore_or_init(lambda: fresh, like=fresh)
        assert jax.tree.map(bits, begun.components["params"]) == jax.tree.map(bits, state["params"])
        assert begun.reason == f"started from the orbax checkpoint {(tmp_path / 'old').as_uri()}"
    keys = {"params": {"w": jnp.zeros(2)}, "rng": jax.tree.map(lambda key: key, state["rng"])}
    with checkpointer(tmp_path / "keys", start_from=jaxckpt.Orbax(tmp_path / "old", component="rng")) as saver:
        begun = saver.restore_or_init(lambda: keys, like=keys)
        assert jax.tree.map(bits, begun.components["rng"]) == jax.tree.map(bits, state["rng"])


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
