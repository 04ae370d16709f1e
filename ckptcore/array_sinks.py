"""Data files of a database while they are written, front to back: by system calls, or as objects of a store (spec: databases).

Nothing refers to a data file before the manifest, which is written last; so a file has its name from the start.
"""
# Each step is one system call, and is written as one.
# ruff: noqa: PTH103, PTH120

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import tensorstore as ts

from ckptcore import posix
from ckptcore.array_spec import answer, write_error

EARLY_BYTES = 8 << 20
"""After so many bytes the system is asked to begin to write them to the disk: it works while the next are digested and copied."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_SYNC_FILE_RANGE_WRITE = 2


class Sink(Protocol):
    """A data file that is being written, by one thread at a time. Raises an `OSError` of the system, or a `StoreError`."""

    def write(self, data: memoryview) -> None:
        """Append bytes; they may change once this has returned."""
        ...

    def finish(self) -> None:
        """Make all that was written durable, but for the names of folders (`Store.sync`)."""
        ...

    def abandon(self) -> None:
        """Let go of it; what is not finished goes, and the room that it took."""
        ...

    def undo(self) -> None:
        """Take back what was finished where that takes room, as nothing will refer to it. What cannot be taken back stays."""
        ...


def opener(spec: Mapping[str, Any], context: ts.Context) -> Callable[[str], Sink]:
    """What makes the sink of a file, by its path in the database below the key-value store `spec`. It creates nothing yet."""
    if spec["driver"] == "file":
        return lambda path: FileSink(spec["path"] + path)
    opening = cache(lambda: ts.KvStore.open(dict(spec), context=context))
    return lambda path: ObjectSink(opening, path)


class FileSink:
    """A file on a file system, which must not be there yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._written = self._begun = 0
        self._finished = False

    def write(self, data: memoryview) -> None:
        """See `Sink.write`."""
        if self._descriptor is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._descriptor = os.open(self._path, _CREATE, 0o666)
        while data:
            count = os.pwrite(self._descriptor, data, self._written)
            self._written += count
            data = data[count:]
        if self._written - self._begun >= EARLY_BYTES:
            _begin_writeback(self._descriptor, self._begun, self._written - self._begun)
            self._begun = self._written

    def finish(self) -> None:
        """See `Sink.finish`."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            self._finished = True
            self._close()

    def abandon(self) -> None:
        """See `Sink.abandon`."""
        if self._descriptor is not None:
            with suppress(OSError):  # there is an error already that matters more
                self._close()
                posix.unlink(self._path)

    def undo(self) -> None:
        """See `Sink.undo`."""
        if self._finished:
            with suppress(OSError):  # a collection takes it
                posix.unlink(self._path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class ObjectSink:
    """An object, which is held in memory until it is whole."""

    def __init__(self, opening: Callable[[], ts.Future[ts.KvStore]], path: str) -> None:
        self._opening, self._path = opening, path
        self._held = bytearray()

    def write(self, data: memoryview) -> None:
        """See `Sink.write`."""
        self._held += data

    def finish(self) -> None:
        """See `Sink.finish`."""
        if self._held:
            what = f"file {self._path}"
            store = answer(self._opening(), what, write_error)
            writing = store.write(self._path, bytes(self._held))
            self.abandon()
            answer(writing, what, write_error)

    def abandon(self) -> None:
        """See `Sink.abandon`."""
        self._held = bytearray()

    def undo(self) -> None:
        """See `Sink.undo`: a bucket does not get full, and whoever saves may not be allowed to delete."""


def _writeback() -> Callable[[int, int, int], object]:
    """Linux's `sync_file_range`, which Python does not have; elsewhere nothing: it only saves time."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return lambda *_: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda descriptor, start, nbytes: call(descriptor, start, nbytes, _SYNC_FILE_RANGE_WRITE)


_begin_writeback = _writeback()
