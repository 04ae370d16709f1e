"""The page cache: how much of a folder's files it holds, and making it drop them."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def fsync_all(folder: Path) -> None:
    """Flush each file below a folder, then each folder, to the disk."""
    for path in [*files_in(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def drop(folder: Path) -> float:
    """Make the page cache drop all files below a folder; the share of their bytes that it holds all the same.

    Dirty pages are never dropped, so they are flushed first. The host of a virtual machine may keep what the guest drops.
    """
    fsync_all(folder)
    for path in files_in(folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return held(folder)


def load(folder: Path) -> float:
    """Read all files below a folder once; the share of their bytes that the page cache holds then."""
    buffer = bytearray(1 << 22)
    for path in files_in(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return held(folder)


def held(folder: Path) -> float:
    """The share of the bytes of all files below a folder that the page cache holds."""
    counts = [_pages(path) for path in files_in(folder)]
    pages = sum(total for _, total in counts)
    return sum(resident for resident, _ in counts) / pages if pages else 0.0


def _pages(path: Path) -> tuple[int, int]:
    """Resident pages and all pages of a file, from `mincore`."""
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        answer = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        start, into = ctypes.c_void_p(view.ctypes.data), ctypes.c_void_p(answer.ctypes.data)
        code = ctypes.CDLL(None, use_errno=True).mincore(start, ctypes.c_size_t(size), into)
        del view  # the map cannot be closed while it is used
        if code != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path.name}")
        return int((answer & 1).sum()), len(answer)
