"""What several tests of the suite's oracle begin with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_conformance.place import FilePlace
from tests.ckptcore.support import memory_directory
from tests.conformance import runs


@pytest.fixture(scope="session")
def whole() -> Iterator[Path]:
    """A run with every kind of object in it."""
    with memory_directory() as folder:
        runs.run(folder / "run")
        yield folder / "run"


@pytest.fixture
def place(whole: Path) -> Iterator[FilePlace]:
    """A copy of it to spoil."""
    with memory_directory() as folder:
        shutil.copytree(whole, folder / "run")
        yield FilePlace(folder / "run")
