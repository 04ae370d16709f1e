"""Fixtures of the core's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ckptcore.support import memory_directory


@pytest.fixture
def place() -> Iterator[Path]:
    """A fresh directory, in memory if possible."""
    with memory_directory() as directory:
        yield directory
