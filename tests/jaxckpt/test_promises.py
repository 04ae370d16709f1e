"""What a restore promises: `exact` is said only where the continuation is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ckptcore.errors import GuaranteeError
from tests.jaxckpt.runs import checkpointer


@pytest.fixture
def run(tmp_path: Path, mesh: Mesh) -> Path:
    """A run with one save of an array that is sharded over `mesh`."""
    with checkpointer(tmp_path / "run") as saver:
        saver.save(
            1, {"params": {"w": jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, PartitionSpec("data", "model")))}}
        ).result(30)
    return tmp_path / "run"


def never() -> Any:
    raise AssertionError("there is something to restore")


def sharded(mesh: Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data", "model")))


def restore(run: Path, like: Any, **options: Any) -> Any:
    with checkpointer(run) as saver:
        return saver.restore_or_init(never, like={"params": {"w": like}}, **options)


def test_the_same_mesh_is_exact(run: Path, mesh: Mesh) -> None:
    assert restore(run, sharded(mesh)).guarantee == "exact"


@pytest.mark.parametrize(
    "other",
    [
        lambda _: jax.ShapeDtypeStruct((8, 8), jnp.float32),
        lambda _: jnp.ones((8, 8)),
        lambda mesh: sharded(Mesh(mesh.devices[::-1], mesh.axis_names)),
        lambda mesh: sharded(Mesh(mesh.devices.reshape(4, 1), mesh.axis_names)),
    ],
    ids=["no sharding", "one device", "another order of devices", "another shape"],
)
def test_another_mesh_is_not_exact(run: Path, mesh: Mesh, other: Callable[[Mesh], Any]) -> None:
    with pytest.raises(GuaranteeError, match=r"promises 'exact', this restore can keep 'coverage' only.*\n.*topology"):
        restore(run, other(mesh))
    assert restore(run, other(mesh), accept_guarantee="coverage").guarantee == "coverage"


@pytest.mark.parametrize(
    "rules", [{"cast": jnp.bfloat16}, {"missing": "keep"}, {"extra": "ignore"}], ids=lambda rules: next(iter(rules))
)
def test_a_restore_that_may_alter_leaves_is_not_exact(run: Path, mesh: Mesh, rules: dict[str, Any]) -> None:
    like = sharded(mesh)
    if "cast" in rules:
        like = jax.ShapeDtypeStruct(like.shape, jnp.bfloat16, sharding=like.sharding)
    with checkpointer(run) as saver:
        with pytest.raises(GuaranteeError, match="'coverage' only"):
            saver.restore(like={"params": {"w": like}}, **rules)
        assert saver.restore(like={"params": {"w": like}}, accept_guarantee="coverage", **rules).guarantee == "coverage"


def test_a_refused_start_leaves_the_running_job_alone(run: Path, mesh: Mesh) -> None:
    with checkpointer(run) as job:
        job.restore_or_init(never, like={"params": {"w": sharded(mesh)}})
        with pytest.raises(GuaranteeError):
            restore(run, jax.ShapeDtypeStruct((8, 8), jnp.float32))
        assert job.save(2, {"params": {"w": jnp.ones((8, 8))}}).result(30).step == 2
