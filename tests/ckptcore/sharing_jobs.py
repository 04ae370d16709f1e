"""Jobs whose ranks read each chunk once between them: what they save, restore and leave behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.channel import Channel
from ckptcore.components import PerRank
from tests.ckptcore.support import Sharded, checkpointer, on_ranks, same
from tests.threads import no_thread_stays

WIDTH = 512
DECLARED = {"schedule": "step", "rng": "step", "data": "step"}


def matrix(step: int) -> np.ndarray:
    return np.arange(WIDTH * WIDTH, dtype=np.float64).reshape(WIDTH, WIDTH) + step


def state(step: int, rank: int, size: int) -> dict[str, Any]:
    """Most of it on every rank, some of it cut, some of it each rank's own; 4 MiB of what all have."""
    return {
        "params": {
            "w": matrix(step),
            "scale": np.array(step, np.float32),
            "none": np.zeros((0, 3)),
            "cut": cut(step, rank, size),
        },
        "optimizer": {"mu": matrix(step) + 0.5, "count": step},
        "extra": PerRank({"seed": np.full(5, rank + step, np.int64)}),
    }


def cut(step: int, rank: int, size: int) -> Sharded:
    return Sharded.of(matrix(step)[:64], rank, size)


def save(url: Path, size: int, *steps: int) -> None:
    def body(link: Channel) -> None:
        with checkpointer(url, link, derived=DECLARED, chunk_bytes=256 << 10) as ckpt:
            for step in steps:
                ckpt.save(step, state(step, link.rank, link.size)).result(60)

    on_ranks(size, body)


def restored(url: Path, link: Channel, **options: Any) -> dict[str, Any]:
    options = {"derived": DECLARED, "fetch_once": True} | options
    with checkpointer(url, link, **options) as ckpt:
        return dict(ckpt.restore(like=state(0, link.rank, link.size)).components)


def restored_right(url: Path, size: int, step: int = 1, **options: Any) -> None:
    found = on_ranks(size, lambda link: restored(url, link, **options))
    for rank, components in enumerate(found):
        assert same(components, state(step, rank, size)), rank


@contextmanager
def nothing_stays() -> Iterator[None]:
    """No thread and no descriptor may be left behind."""
    descriptors = _descriptors()
    with no_thread_stays():
        yield
    assert _descriptors() <= descriptors


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def not_passed_on(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of chunks that did not come."""
    caplog.set_level(logging.WARNING, "ckptcore")
    return lambda: [record.getMessage() for record in caplog.records if "other ranks" in record.getMessage()]
