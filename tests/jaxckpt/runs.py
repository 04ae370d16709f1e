"""Whole saves and restores in the test's own process, and what it means for two states to be the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ckptcore.records import Manifest
from jaxckpt import Checkpointer, Restored

DERIVED = {"parameters": "params", "optimizer": "step", "schedule": "step", "rng": "step", "data": "step"}
"""Lets any state be resumed exactly, as long as it has `params`."""


def checkpointer(url: str | os.PathLike[str], **options: Any) -> Checkpointer:
    """A checkpointer for states of any components; `params` must be among them."""
    return Checkpointer(url, **{"derived": DERIVED, "interval": 1, "on_preemption": "ignore", **options})


def save(url: str | os.PathLike[str], components: Mapping[str, Any], *, step: int = 1, **options: Any) -> Manifest:
    """One committed save by a job of its own, which resumes from nothing."""
    with checkpointer(url, **options) as saver:
        return saver.save(step, components).result(30)


def resume(url: str | os.PathLike[str], like: Mapping[str, Any], **options: Any) -> Restored:
    """What the next job gets. Fails when it would start afresh."""
    with checkpointer(url, **options) as saver:
        return saver.restore_or_init(_no_fresh_start, like=like)


def round_trip(url: str | os.PathLike[str], params: Any, like: Any = None, **options: Any) -> Any:
    """Save `params`, and restore it into `like` (default: itself)."""
    save(url, {"params": params}, **options)
    return resume(url, {"params": params if like is None else like}).components["params"]


def assert_same(actual: Any, expected: Any) -> None:
    """The same containers; leaves of the same kind, dtype, weak type, place and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    pairs = zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True)
    for (path, leaf), wanted in pairs:
        assert_same_leaf(leaf, wanted, jax.tree_util.keystr(path))


def assert_same_leaf(actual: Any, expected: Any, where: str = "") -> None:
    """One leaf, bit for bit."""
    if isinstance(expected, jax.Array):
        assert isinstance(actual, jax.Array), where
        assert (actual.dtype, is_weak(actual)) == (expected.dtype, is_weak(expected)), where
        assert actual.sharding == expected.sharding, where
    else:
        assert type(actual) is type(expected), where
    np.testing.assert_equal(bits(actual), bits(expected), err_msg=where)


def is_weak(leaf: jax.Array) -> bool:
    """Whether promotion treats an array like a Python number; random keys are never weak."""
    return bool(getattr(leaf, "weak_type", False))


def bits(leaf: Any) -> Any:
    """Dtype, shape and bytes of an array or a random key, as far as this process holds it; anything else as it is shown."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return [(shard.index, bits(shard.data)) for shard in leaf.addressable_shards]
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return repr(leaf)
    host = np.asarray(leaf)
    return str(host.dtype), host.shape, host.tobytes()


def _no_fresh_start() -> Mapping[str, Any]:
    raise AssertionError("the job starts afresh though there is a checkpoint")
