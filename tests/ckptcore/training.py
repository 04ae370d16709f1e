"""Whole jobs of a `Checkpointer`, as several test files run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcore.channel import Channel
from ckptcore.checkpointer import Restored
from tests.ckptcore.support import checkpointer, on_ranks, state


def must_not_init() -> dict[str, Any]:
    raise AssertionError("init was called though there is something to restore")


def train(url: Path, steps: list[int], size: int = 2, **options: Any) -> list[Restored]:
    """A job that resumes, saves at `steps` and ends; what each rank restored."""

    def run(link: Channel) -> Restored:
        with checkpointer(url, link, **options) as ckpt:
            restored = ckpt.restore_or_init(lambda: state(0, link.rank, size), like=state(0, link.rank, size))
            for step in steps:
                ckpt.save(step, state(step, link.rank, size)).result()
        return restored

    return on_ranks(size, run)
