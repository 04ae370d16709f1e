"""Ends a training loop in the middle: between two checkpoints, and with the last one perhaps not committed yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ckptcore.checkpointer import Checkpointer

STOP = 27
"""The step at which a loop ends. The examples save every 10 steps."""


class Stopped(RuntimeError):
    """What the loop ends with."""


@contextmanager
def stopped(*, at: int = STOP, hard: bool = False) -> Iterator[None]:
    """Within it a loop ends at step `at`: by an exception, or `hard`, as if the process had been killed."""
    asked = Checkpointer.should_save

    def should_save(self: Checkpointer, step: int) -> bool:
        if step >= at:
            if hard:
                os._exit(9)
            raise Stopped
        return asked(self, step)

    Checkpointer.should_save = should_save
    try:
        yield
    finally:
        Checkpointer.should_save = asked


def assert_same(one: Any, other: Any) -> None:
    """Fails unless two lists of arrays are equal bit for bit."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
