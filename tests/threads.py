"""Threads that are started in a block, and whether they end with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def new_threads() -> Callable[[], set[threading.Thread]]:
    """Which threads live that did not when this was called. How many there are says less: those of tests before may end yet."""
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


@contextmanager
def no_thread_stays() -> Iterator[None]:
    """No thread that is started in the block may outlive it."""
    started = new_threads()
    yield
    assert started() == set()
