"""A store on a file system, by system calls alone (spec: put-if-absent on a file system).

A value becomes visible by `link(2)` of a finished, fsynced temporary file: never torn,
never overwritten, one winner however many race. No lock is taken, so that a killed or
stalled writer delays nobody; all it leaves is a hidden temporary file.
"""
# Each step of the protocol is one system call, and is written as one.
# ruff: noqa: PTH100, PTH101, PTH102, PTH104, PTH112, PTH114, PTH118, PTH120

from __future__ import annotations

import errno
import os
import secrets
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import tensorstore as ts

from ckptcore import posix
from ckptcore.clock import Clock
from ckptcore.errors import CallError, InvalidRecord, StoreUnavailable, UnsafeStore
from ckptcore.limits import Limits
from ckptcore.limits import limits as default_limits
from ckptcore.names import check_key
from ckptcore.retry import retry
from ckptcore.storekeys import MAX_FOUND_BYTES, check_range, directory_key, is_key

Result = TypeVar("Result")

_NO_LINK = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class FileStore:
    """The store below the directory `root`, which need not exist; reading never creates it.

    Below the root symbolic links are refused (`UnsafeStore`): a copied checkpoint must not
    lead a reader, a writer or a collection anywhere else.
    """

    driver = "file"

    def __init__(
        self,
        root: str,
        *,
        single_writer: bool = False,
        file_mode: int | None = None,
        dir_mode: int | None = None,
        timeout: float = 60.0,
        context: ts.Context | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self.url = "file://" + urllib.parse.quote(os.fsencode(self.root))
        self.context = context or ts.Context()
        self.limits = limits or default_limits()
        self._single_writer = single_writer
        self._file_mode = file_mode
        self._dir_mode = dir_mode
        self._timeout = timeout
        self._clock = Clock()

    def __repr__(self) -> str:
        return f"FileStore({self.url!r})"

    def put_if_absent(self, key: str, data: bytes) -> bytes:
        """See `Store.put_if_absent`."""
        path = self._path(key)
        return self._retry(f"put {key}", lambda: self._put(key, path, data))

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """See `Store.get`."""
        first, last = check_range(key, start, stop)
        path = self._path(key)
        return self._retry(f"get {key}", lambda: posix.read(path, first, last))

    def size(self, key: str, guess: int | None = None) -> int | None:  # noqa: ARG002 - a file system tells
        """See `Store.size`."""
        path = self._path(key)
        return self._retry(f"size of {key}", lambda: posix.size(path))

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `Store.list`."""
        # Only the directory part of the prefix is walked; the rest of it filters.
        directory, _, _ = prefix.rpartition("/")
        if prefix:
            check_key(prefix.removesuffix("/"))
        top = self._directory(directory)
        paths = self._retry(f"list {prefix or 'all keys'}", lambda: list(posix.walk(top)))
        begin = len(self.root) + 1
        keys = [path[begin:] for path, is_directory in paths if not is_directory]
        return (key for key in keys if key.startswith(prefix) and is_key(key))

    def children(self, prefix: str) -> list[str]:
        """See `Store.children`."""
        top = self._directory(prefix)
        entries = self._retry(f"list {prefix or 'all keys'}", lambda: posix.scan(top))
        return [name for name, _ in sorted(entries) if is_key(name)]

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        self._retry(f"delete {key}", lambda: posix.unlink(path))

    def delete_prefix(self, prefix: str) -> int:
        """See `Store.delete_prefix`."""
        top = self._directory(prefix)
        if top == self.root:
            raise CallError("delete_prefix needs a prefix: a run's ledger is never deleted")
        return self._retry(f"delete {prefix}", lambda: self._delete_tree(top))

    def sync(self, prefix: str) -> None:
        """See `Store.sync`."""
        top = self._directory(prefix)

        def everything() -> None:
            for path, is_directory in posix.walk(top):
                self._apply_mode(path, is_directory=is_directory)
                if is_directory:
                    posix.fsync_directory(path, absent_ok=True)
            self._apply_modes_above(top)
            self._sync_up(top)

        self._retry(f"sync {prefix or 'all'}", everything)

    def kvstore(self, prefix: str) -> dict[str, Any]:
        """See `Store.kvstore`."""
        path = self._directory(prefix)
        # TensorStore would follow a link and wait for a FIFO.
        self._retry(f"look at {prefix}", lambda: posix.check_tree(path))
        # Without locks it renames a fsynced temporary file: never torn, and nothing waits for the lock
        # of a killed process. Who else writes to a database writes the same files (spec: N-6), so that no lock is needed.
        return {"driver": "file", "path": path + "/", "file_io_locking": {"mode": "none"}}

    def _retry(self, what: str, call: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return call()
            except OSError as error:
                raise posix.translate(error, what) from error

        return retry(translated, what=f"{what} in {self.url}", timeout=self._timeout, clock=self._clock)

    # Paths

    def _path(self, key: str) -> str:
        """The path of a key. Raises `UnsafeStore` if a symbolic link lies on the way to it."""
        segments = check_key(key).split("/")
        path = self.root
        for segment in segments[:-1]:
            path = os.path.join(path, segment)
            if os.path.islink(path):
                raise UnsafeStore(f"{path} is a symbolic link, which a run may not contain: {key} is refused; remove the link")
        return os.path.join(path, segments[-1])

    def _directory(self, prefix: str) -> str:
        key = directory_key(prefix)
        if not key:
            return self.root
        path = self._path(key)
        if os.path.islink(path):
            raise UnsafeStore(f"{path} is a symbolic link, which a run may not contain; remove it")
        return path

    # Putting

    def _put(self, key: str, path: str, data: bytes) -> bytes:
        """One attempt; raises `StoreUnavailable` when its outcome is unknown."""
        directory = os.path.dirname(path)
        stored = _found(key, path, len(data))
        if stored is None:
            self._make_directory(directory)
            return self._publish(key, path, data)
        self._sync_up(directory)
        return stored

    def _publish(self, key: str, path: str, data: bytes) -> bytes:
        directory = os.path.dirname(path)
        # Too short to exceed a file name's limit, and no key: listings never show it.
        temporary = os.path.join(directory, f".tmp-{secrets.token_hex(16)}")
        try:
            self._write(temporary, data)
            stored = data if self._link(temporary, path) else _found(key, path, len(data))
            if stored is None and os.path.isdir(path):
                raise UnsafeStore(f"{path} is a directory, where a run has a file; remove it")
            if stored is None:
                raise StoreUnavailable(f"{key} was deleted while it was being written")
            self._sync_up(directory)
            return stored
        finally:
            # Whether it goes has no part in the outcome: what stays is hidden, is no key, and goes with its directory.
            with suppress(OSError):
                posix.unlink(temporary)

    def _write(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, _CREATE, 0o666)
        try:
            if self._file_mode is not None:
                os.fchmod(descriptor, self._file_mode)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _link(self, temporary: str, path: str) -> bool:
        """Whether we gave the file its name; if not, it exists (after a lost NFS answer, as ours)."""
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if not self._single_writer:
                raise UnsafeStore(
                    f"the file system of {self.root} has no hard links ({error.strerror}), so that two "
                    "writers cannot be told apart: use another, or Storage(single_writer=True) if only one job ever writes"
                ) from error
            if os.path.lexists(path):
                return False
            os.rename(temporary, path)
        return True

    def _make_directory(self, path: str) -> None:
        """Make a directory and its ancestors, each durable in its parent before anything is put into it."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self._make_directory(parent)
        try:
            os.mkdir(path)
            self._apply_mode(path, is_directory=True)
        except FileExistsError:
            pass
        posix.fsync_directory(parent)

    def _apply_mode(self, path: str, *, is_directory: bool) -> None:
        """Give a new file or directory (TensorStore's among them) the mode that was asked for."""
        mode = self._dir_mode if is_directory else self._file_mode
        if mode is None:
            return
        try:
            found = os.lstat(path)
            owned = os.geteuid() in (0, found.st_uid)  # what somebody else put is theirs to give a mode to
            if owned and not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) != mode:
                os.chmod(path, mode)
        except FileNotFoundError:
            return

    def _apply_modes_above(self, top: str) -> None:
        """Those of the folders between the root and `top`, and of the files beside `top`: who writes data has made them."""
        directory = os.path.dirname(top)
        if self._file_mode is not None and top != self.root:
            for name, is_directory in posix.scan(directory):
                if not is_directory:
                    self._apply_mode(os.path.join(directory, name), is_directory=False)
        while len(directory) > len(self.root):
            self._apply_mode(directory, is_directory=True)
            directory = os.path.dirname(directory)

    def _sync_up(self, directory: str) -> None:
        """Fsync `directory` and those above it, up to the root's parent, which holds the root's own name.

        All of them, also when others made them or put the value first: they may not have
        come to it yet. A failure leaves it unknown what a power cut would leave behind.
        """
        try:
            while len(directory) >= len(self.root):
                posix.fsync_directory(directory, absent_ok=True)
                directory = os.path.dirname(directory)
        except OSError as error:
            raise StoreUnavailable(f"it may not survive a power cut, for {directory} could not be synced: {error}") from error
        try:
            posix.fsync_directory(directory, absent_ok=True)
        except OSError:
            return  # the parent is not ours and may be unreadable; `_make_directory` is strict if we made the root

    # Deleting

    def _delete_tree(self, top: str) -> int:
        """Delete bottom-up; what appears meanwhile stays for the next collection."""
        deleted = 0
        for path, is_directory in reversed(list(posix.walk(top))):
            if is_directory:
                posix.rmdir(path)
            else:
                deleted += posix.unlink(path)
        return deleted


def _found(key: str, path: str, size: int) -> bytes | None:
    """What was there before a put of `size` bytes. Raises `InvalidRecord` when no writer can have put it."""
    limit = max(size, MAX_FOUND_BYTES)
    stored = posix.read(path, 0, limit + 1)
    if stored is not None and len(stored) > limit:
        raise InvalidRecord(f"{key}: more than {limit} bytes are there, which nobody wrote who writes this run; remove the file")
    return stored
