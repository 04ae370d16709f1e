"""A save lets go of its snapshot when it is over, whether it succeeded or not, and whoever holds its handle."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from ckptcore import snapshot
from ckptcore.errors import SaveFailed

DERIVED: dict[str, Any] = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[np.ndarray]]:
    """Weak references to every array that is staged."""
    found: list[weakref.ref[np.ndarray]] = []
    take = snapshot.take

    def spy(*args: Any, **options: Any) -> Any:
        shard = take(*args, **options)
        found.extend(weakref.ref(array) for arrays in shard.staged.chunks.values() for array in arrays)
        return shard

    monkeypatch.setattr(snapshot, "take", spy)
    return found


def alive(staged: list[weakref.ref[np.ndarray]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in staged)


def test_after_a_commit(tmp_path: Path, staged: list[weakref.ref[np.ndarray]]) -> None:
    with jaxckpt.Checkpointer(tmp_path / "run", interval=1, derived=DERIVED) as checkpointer:
        handle = checkpointer.save(1, {"params": {"w": jnp.ones(1000)}})
        handle.result()
        handle.wait()
        assert len(staged) == 1
        assert alive(staged) == 0


def test_after_a_failure(tmp_path: Path, staged: list[weakref.ref[np.ndarray]], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with jaxckpt.Checkpointer(tmp_path / "run", interval=1, derived=DERIVED) as checkpointer:
        checkpointer.restore_or_init(dict, like={})
        monkeypatch.setattr("ckptcore.writer.DatabaseWriter.finish", full)
        handle = checkpointer.save(1, {"params": {"w": jnp.ones(1000)}})
        with pytest.raises(SaveFailed) as caught:
            handle.result()
        handle.wait()
        assert isinstance(caught.value.__cause__, OSError)
        assert len(staged) == 1
        assert alive(staged) == 0
