"""What the peers leave to the operating system: making a checkpoint durable; and the folders that they are given, one a step."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import page_cache

THREADS = 4
"""Files that are flushed at a time."""


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / str(step)


def newest(folder: Path) -> Path:
    """The checkpoint of the highest step."""
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def flush(checkpoint: Path) -> None:
    """Flush the files of a checkpoint to the disk, several at a time, then the folders, and the one that it is in."""
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(_fsync, page_cache.files_in(checkpoint)))
    for path in [*(path for path in checkpoint.rglob("*") if path.is_dir()), checkpoint, checkpoint.parent]:
        _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
