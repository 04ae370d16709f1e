"""Failing system calls by a preloaded library: `interpose.c`, compiled by gcc.

A process that is started with `environment(...)` can be told, by itself or by the test, which of its calls fail. Python and
TensorStore call the same C library, so the writes of both are seen.
"""

from __future__ import annotations

import atexit
import errno
import functools
import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("interpose.c")
KINDS = {"open": 1, "write": 2, "fsync": 4, "link": 8, "rename": 16, "unlink": 32, "mkdir": 64, "read": 128}
CHANGES = tuple(kind for kind in KINDS if kind != "read")
_FIELDS = struct.Struct("=8q512s512s512s")


@functools.cache
def library() -> Path:
    """The compiled library. Skips the test elsewhere than on Linux, and where there is no gcc."""
    if sys.platform != "linux":
        pytest.skip("LD_PRELOAD, by which system calls are made to fail, is Linux's")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is needed to compile the library that makes system calls fail")
    folder = tempfile.mkdtemp(prefix="interpose-")
    atexit.register(shutil.rmtree, folder)
    compiled = Path(folder, "interpose.so")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(compiled), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return compiled


class Control:
    """What a process is told through the file that its library maps. `path` is created; every field starts as zero."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("a+b") as file:
            file.truncate(_FIELDS.size)
            self._memory = mmap.mmap(file.fileno(), _FIELDS.size)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the process has to be started with."""
        return {"LD_PRELOAD": str(library()), "FAULTS_CONTROL": str(self.path)}

    @contextmanager
    def failing(
        self,
        pattern: str,
        at: int,
        error: int = errno.EIO,
        *,
        kinds: tuple[str, ...] = CHANGES,
        unlike: str = "",
        sticky: bool = False,
        after: bool = False,
    ) -> Iterator[None]:
        """Fail call number `at` (from 1; 0: none) on files whose path matches a shell pattern, and `unlike` does not.

        `sticky`: every later one as well, until the end of the context. `after`: they take effect all the same.
        """
        mask = sum(KINDS[kind] for kind in kinds)
        fields = (0, mask, at or 1 << 60, sticky, after, error, 0, 0)
        self._memory[:] = _FIELDS.pack(*fields, pattern.encode(), unlike.encode(), b"")
        self._arm(armed=True)
        try:
            yield
        finally:
            self._arm(armed=False)

    @property
    def seen(self) -> int:
        """How many calls were counted."""
        return self._numbers()[6]

    @property
    def hits(self) -> int:
        """How many calls were made to fail."""
        return self._numbers()[7]

    @property
    def first(self) -> str:
        """The first call that was made to fail, and the path it was for."""
        return _FIELDS.unpack(self._memory[:])[10].rstrip(b"\0").decode()

    def _arm(self, *, armed: bool) -> None:
        self._memory[:8] = struct.pack("=q", armed)

    def _numbers(self) -> tuple[int, ...]:
        return _FIELDS.unpack(self._memory[:])[:8]
