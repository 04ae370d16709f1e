"""Whole saves and restores, as several test files run them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ckptcore.records import Manifest
from torchckpt import Checkpointer, Restored

DERIVED = {"optimizer": "step", "schedule": "step", "rng": "step", "data": "step"}
"""Lets any state be resumed exactly, as long as it has `model`."""


def checkpointer(url: str | os.PathLike[str], **options: Any) -> Checkpointer:
    """A checkpointer for states of any components; `model` must be among them."""
    return Checkpointer(url, **{"derived": DERIVED, "interval": 1, "on_preemption": "ignore", **options})


def save(url: str | os.PathLike[str], components: Mapping[str, Any], *, step: int = 1, **options: Any) -> Manifest:
    """One committed save by a job of its own, which resumes from nothing."""
    with checkpointer(url, **options) as saver:
        return saver.save(step, components).result(60)


def resume(url: str | os.PathLike[str], like: Mapping[str, Any], **options: Any) -> Restored:
    """What the next job gets. Fails when it would start afresh."""
    with checkpointer(url) as saver:
        return saver.restore_or_init(_no_fresh_start, like=like, **options)


def _no_fresh_start() -> Mapping[str, Any]:
    raise AssertionError("the job starts afresh though there is a checkpoint")
