"""Fixtures of the command's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import memory_directory


@pytest.fixture
def ckpt(capfd: pytest.CaptureFixture[str]) -> Ckpt:
    """The command."""
    return Ckpt(capfd)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for runs, in memory."""
    with memory_directory() as folder:
        yield folder
