"""A folder that is there whole or not at all: written under a temporary name beside its place, renamed at the end."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from ckptcore import posix
from ckptcore.errors import CallError
from ckptcore.formats.foreign import absolute

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


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
    called `.<name>.<32 hex digits>.tmp`, beside `path`. Raises what `check_free` raises, and `StoreError`.
    """
    target = check_free(path)
    temporary = target.parent / f".{target.name}.{uuid4().hex}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        for folder, is_directory in posix.walk(str(temporary)):
            if is_directory:
                posix.fsync_directory(folder)
        temporary.rename(target)  # replaces an empty folder, and nothing else
        posix.fsync_directory(str(target.parent))
    except OSError as error:
        raise posix.translate(error, f"writing {target}", of_run=False) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
