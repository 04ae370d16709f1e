"""Ranges of a database's files, read into memory that is ready (spec: the merged view).

Files are read by system calls, straight to where the bytes are wanted. Object stores answer with bytes of their own, which are
copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorstore as ts

from ckptcore import posix
from ckptcore.array_spec import answer, read_error
from ckptcore.errors import Damaged
from ckptcore.names import check_key

STEP = 1 << 20
"""Bytes of a file that are read at a time: they are still in the processor's cache when they are digested."""

Fill = Callable[[int, memoryview], int]
"""Puts the bytes from a start on into a view, as many as the file has; returns how many."""


class Ranges:
    """Opens the files of the database that is open as `base`, with the spec `spec`. Safe to use from several threads."""

    def __init__(self, spec: Mapping[str, Any], base: ts.KvStore) -> None:
        self._base = base
        self._folder = spec["path"] if spec["driver"] == "file" else None

    @contextmanager
    def open(self, path: str, what: str) -> Iterator[File]:
        """A file of the database; `what` says in errors what is read from it.

        Raises `Damaged` if it is absent, `InvalidRecord` if it lies elsewhere, or a `StoreError`.
        """
        check_key(path)
        what = f"{what}: file {path}"
        if self._folder is None:
            yield File(lambda start, view: self._request(path, start, view, what), what, None)
            return
        try:
            with posix.opened(self._folder + path) as descriptor:
                if descriptor is None:
                    raise Damaged(f"{what} is missing. Use another checkpoint")
                yield File(lambda start, view: os.preadv(descriptor, [view], start), what, STEP)
        except OSError as error:
            raise posix.translate(error, f"read {what}") from error

    def _request(self, path: str, start: int, view: memoryview, what: str) -> int:
        result = answer(self._base.read(path, byte_range=slice(start, start + len(view))), what, read_error)
        if result.state != "value":
            raise Damaged(f"{what} is missing. Use another checkpoint")
        view[:] = result.value
        return len(view)


class File:
    """An open file of a database."""

    def __init__(self, fill: Fill, what: str, step: int | None) -> None:
        self._fill = fill
        self._what = what
        self._step = step

    def reach(self, stop: int) -> None:
        """Raise `Damaged` unless the file goes on to `stop`. Asks for nothing where that would cost a request."""
        if self._step is not None:
            self.read_into(memoryview(bytearray(1)), stop - 1)

    def read_into(self, view: memoryview, start: int, seen: Callable[[memoryview], object] = lambda _: None) -> None:
        """Fill `view` with the bytes from `start` on, showing each part to `seen`. Raises `Damaged` if the file ends too soon."""
        at = 0
        while at < len(view):
            part = view[at : at + (self._step or len(view))]
            count = self._fill(start + at, part)
            if not count:
                raise Damaged(f"{self._what} ends at byte {start + at}, before {start + len(view)}. Use another checkpoint")
            seen(part[:count])
            at += count
