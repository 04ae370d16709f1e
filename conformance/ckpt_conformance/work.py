"""The folder in which a run works. It is removed at its end; that of a run that was killed, by the next one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ckpt_conformance.jobs.processes import until

PREFIX = "ckpt-conformance-"
_NAME = re.compile(rf"{PREFIX}(\d+)-\w+")
ROOM = 2**30
"""Bytes that a file system in memory must have free to be worked in."""
_SHM = Path("/dev/shm")  # noqa: S108 - a folder of a random name is made in it
_PATIENCE = 10.0
"""Seconds for which removing is tried again: a process that is just being ended may still write."""


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A new folder, with the ID of this process in its name."""
    for parent in {_SHM, Path(tempfile.gettempdir())}:
        remove_left(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_roomy()))
    try:
        yield folder
    finally:
        until(lambda: _removed(folder), _PATIENCE)


def remove_left(parent: Path) -> None:
    """Remove the folders of runs whose process is gone."""
    for folder in parent.glob(f"{PREFIX}*"):
        named = _NAME.fullmatch(folder.name)
        if named and not _lives(int(named[1])):
            _removed(folder)


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True


def _roomy() -> Path | None:
    """A file system in memory if there is one with room, else the usual place for temporary files."""
    return _SHM if _SHM.is_dir() and shutil.disk_usage(_SHM).free > ROOM else None
