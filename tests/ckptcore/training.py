"""Whole jobs of a `Checkpointer`, as several test files run them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ckptcore.channel import Channel
from ckptcore.checkpointer import Restored
from tests.ckptcore.support import FakeClock, checkpointer, on_ranks, state


class Later(FakeClock):
    """A clock that is ahead of the world."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.ahead = timedelta(seconds=seconds)

    def utc(self) -> str:
        return (datetime.now(UTC) + self.ahead).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
