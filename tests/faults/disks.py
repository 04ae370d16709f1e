"""A small file system of its own for a test: it can be full, or read-only, and it is gone with the process that holds it.

It is mounted in a mount namespace that nobody else is in, and reached through `/proc/<pid>/root`: nothing of it is seen
elsewhere, and nothing is left if a test is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import Rank

PAGE = 4096
"""Bytes in which a tmpfs gives out its room."""
_PLACE = "/mnt"
_HOLD = f'mount -t tmpfs -o size="$1",mode=755 faults {_PLACE} && echo mounted && exec sleep 600'


@dataclass(frozen=True)
class Disk:
    """A mounted file system: `path` is its root, for this process and all that may look into the holder."""

    holder: Rank

    @property
    def path(self) -> Path:
        """Where it is seen from outside of its namespace."""
        return Path(f"/proc/{self.holder.process.pid}/root{_PLACE}")

    def fill(self, *, room: int = 0) -> None:
        """Write a file that leaves `room` bytes, whole pages."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            free = self._free() - room
            while free > 0:
                file.write(bytes(min(free, 1 << 20)))
                free = self._free() - room

    def empty(self) -> None:
        """Take the file away again."""
        (self.path / "filler").unlink()

    def remount(self, how: str) -> None:
        """`ro` or `rw`."""
        where = ["nsenter", "--target", str(self.holder.process.pid), "--mount"]
        subprocess.run([*where, "mount", "-o", f"remount,{how}", _PLACE], check=True, timeout=30)

    def _free(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize


@contextmanager
def disk(size: int) -> Iterator[Disk]:
    """A tmpfs of `size` bytes. Skips the test where this process may not mount one."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("a file system can be mounted by root alone, with unshare and nsenter of util-linux")
    command = ["unshare", "--mount", "sh", "-c", _HOLD, "hold", str(size)]
    holder = Rank(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        try:
            holder.wait_for("mounted", timeout=30)
        except AssertionError:
            pytest.skip(f"this machine lets nobody mount a file system: {holder.output.strip()}")
        yield Disk(holder)
    finally:
        holder.end()
