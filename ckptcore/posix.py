"""System calls that take an absent file as an answer, not as an error.

Symbolic links are never followed and special files never opened: a copied run may hold some.
"""
# The system calls are the point.
# ruff: noqa: PTH108, PTH112, PTH106, PTH118

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ckptcore.errors import StoreError, StoreFull, StoreUnavailable, UnsafeStore

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR})
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # non-blocking: a planted FIFO must not hang us


def translate(error: OSError, what: str, *, of_run: bool = True) -> StoreError:
    """The error of the project for one of the system; `of_run` says that it concerns a run's files, not others."""
    text = f"{what}: {error}"
    if not of_run:
        return _translate_other(error, text)
    if error.errno in _FULL:
        return StoreFull(f"{text}. Make room, then save again; what was committed is untouched")
    if error.errno in (errno.ELOOP, errno.ENXIO):
        return UnsafeStore(f"{text}. A run may contain neither symbolic links nor special files; remove it")
    if error.errno in _REFUSED:
        return StoreError(f"{text}. Check the permissions and the mount of the run's directory")
    return StoreUnavailable(text)


def _translate_other(error: OSError, text: str) -> StoreError:
    if error.errno in _FULL:
        return StoreFull(f"{text}. Make room, then try again")
    if error.errno in (errno.ELOOP, errno.ENXIO):
        return UnsafeStore(f"{text}. Only files are read, and links that lead to one")
    if error.errno in _REFUSED:
        return StoreError(f"{text}. Check the path, its permissions and its mount")
    return StoreUnavailable(text)


def read(path: str, start: int = 0, stop: int | None = None) -> bytes | None:
    """The bytes `start:stop` of a file, clipped to its size; None if there is no file."""
    with opened(path) as descriptor:
        return None if descriptor is None else _read_range(descriptor, start, stop)


@contextmanager
def opened(path: str) -> Iterator[int | None]:
    """The descriptor of a file, open for reading; None if there is no file."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        yield None
        return
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            _check_regular(path, status)
        yield None if stat.S_ISDIR(status.st_mode) else descriptor
    finally:
        os.close(descriptor)


def _read_range(descriptor: int, start: int, stop: int | None) -> bytes:
    parts: list[bytes] = []
    if start < 0:
        start = max(os.fstat(descriptor).st_size + start, 0)
    while stop is None or start < stop:
        wanted = 1 << 20 if stop is None else min(stop - start, 1 << 20)
        part = os.pread(descriptor, wanted, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def size(path: str) -> int | None:
    """The size of a file in bytes; None if there is no file."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    if stat.S_ISDIR(status.st_mode):
        return None
    _check_regular(path, status)
    return status.st_size


def check_tree(top: str) -> None:
    """Raise `UnsafeStore` if there is anything below `top` but files and directories."""
    stack = [top]
    while stack:
        directory = stack.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        size(entry.path)  # refuses it, unless it is gone
        except OSError as error:
            if error.errno not in _ABSENT:
                raise


def _check_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeStore(f"{path} is neither a file nor a directory, which a run may not contain; remove it")


def scan(path: str) -> list[tuple[str, bool]]:
    """Names in a directory, and whether each is a directory itself; nothing if it is absent."""
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        raise


def walk(top: str) -> Iterator[tuple[str, bool]]:
    """`top` and every path below it, and whether it is a directory, in the order of keys.

    A symbolic link counts as a file. Nothing that vanishes meanwhile is an error.
    """
    stack = [(top, True)]
    while stack:
        path, is_directory = stack.pop()
        yield path, is_directory
        if is_directory:
            # A directory sorts as its name and a slash, as the keys below it do.
            entries = sorted([(name + "/" if is_dir else name, is_dir) for name, is_dir in scan(path)], reverse=True)
            prefix = os.path.join(path, "")
            stack.extend([(prefix + name.removesuffix("/"), is_dir) for name, is_dir in entries])


def unlink(path: str) -> bool:
    """Whether there was a file to delete. A directory has no value and is left alone."""
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno in _ABSENT or (error.errno == errno.EPERM and os.path.isdir(path)):
            return False
        raise
    return True


def rmdir(path: str) -> None:
    """Remove a directory, unless it is gone or somebody has put something into it."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in _ABSENT and error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def fsync_directory(path: str, *, absent_ok: bool = False) -> None:
    """Make the names in a directory durable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        if absent_ok:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            raise UnsafeStore(f"the file system of {path} cannot make directories durable: use another") from error
        raise
    finally:
        os.close(descriptor)
