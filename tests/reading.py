"""How many bytes this process reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_IO = Path("/proc/self/io")


class Count:
    """The bytes that all threads of this process have read by system calls; sockets do not count."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def bytes_read() -> Iterator[Count]:
    """Count what is read in the block. Skips the test where the system does not tell."""
    if not os.access(_IO, os.R_OK):
        pytest.skip("this system does not count what a process reads")
    count = Count()
    before = _read()
    yield count
    count.bytes = _read() - before


def _read() -> int:
    fields = dict(line.split(": ") for line in _IO.read_text().splitlines())
    return int(fields["rchar"])


def stored_bytes(folder: Path) -> int:
    """The bytes of the data files of a run's generations."""
    return sum(file.stat().st_size for file in folder.glob("generations/*/state/**/*") if file.is_file())
