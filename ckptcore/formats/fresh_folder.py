"""A folder that is there whole or not at all: written under a temporary name beside its place, renamed at the end."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from ckptcore import posix
from ckptcore.errors import CallError
from ckptcore.formats.foreign import MAX_PART_BYTES, absolute

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_MAX_STEM_BYTES = MAX_PART_BYTES - len(f"..{uuid4().hex}.tmp")


def check_free(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder that is yet to be written. Raises `CallError` unless it is absent, or an empty folder."""
    if _URL.match(os.fspath(path)):
        raise CallError(f"{os.fspath(path)!r} is a URL: other formats are written to a file system, give a path")
    target = absolute(path)
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink()):
        raise CallError(f"{target} is there already, and is not a folder: nothing is overwritten, choose another path")
    try:
        filled = target.exists() and any(target.iterdir())
    except OSError as error:
        raise posix.translate(error, f"looking at {target}", of_run=False) from error
    if filled or target == target.parent:
        raise CallError(f"{target} is not empty: nothing is overwritten, choose another path")
    return target


@contextmanager
def fresh_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to write into, which becomes `path` when the block ends; after an error nothing is left of it.

    Files that are closed by then are expected to be durable; the folders are made so here. What a killed process has left is
    called `.<name>.<32 hex digits>.tmp`, beside `path` (a long name is cut). Raises what `check_free` raises, and `StoreError`.
    """
    target = check_free(path)
    temporary = target.parent / temporary_name(target.name)
    try:
        with made(target.parent), _removed(temporary):
            temporary.mkdir()
            yield temporary
            for folder, is_directory in posix.walk(str(temporary)):
                if is_directory:
                    posix.fsync_directory(folder)
            temporary.rename(target)  # replaces an empty folder, and nothing else
            posix.fsync_directory(str(target.parent))
    except OSError as error:
        raise posix.translate(error, f"writing {target}", of_run=False) from error


def temporary_name(name: str, suffix: str = "") -> str:
    """`.<name>.<32 hex digits>.tmp`, the name cut where that would be too long for a file, but for its `suffix`."""
    stem = name.removesuffix(suffix).encode()[: _MAX_STEM_BYTES - len(suffix.encode())].decode(errors="ignore")
    return f".{stem}{suffix}.{uuid4().hex}.tmp"


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder and those above it. After an error those that are new are removed, unless somebody has filled them."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in new:
            with suppress(OSError):
                each.rmdir()
        raise


@contextmanager
def _removed(temporary: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
