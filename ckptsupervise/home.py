"""Where a supervisor keeps, on its node, what must not outlive it by much: heartbeats, and through them its processes.

`TOP/ckpt-supervise-UID/RUN/NONCE/ATTEMPT/`. A supervisor holds a lock on its folder `NONCE`, which the kernel releases when it
dies: a folder without a lock belongs to a dead supervisor, whose processes the next one ends before it starts its own. What its
ranks had told is what is known of how far they had come.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ckptcore import heartbeat
from ckptcore.errors import CallError
from ckptcore.heartbeat import Beat
from ckptsupervise import leftovers

_MEMORY = "/dev/shm"  # noqa: S108 - a folder of this user's alone is made in it


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What a dead supervisor has left. `found`: processes, ended now. `orphans`: those that even SIGKILL did not end.

    `beats`: attempt → the last heartbeats of its ranks.
    """

    nonce: str
    found: int
    orphans: tuple[int, ...]
    beats: Mapping[int, list[Beat]]


@dataclass
class Home:
    """The folder of one supervisor, and what the ones before it have left on this node."""

    path: Path
    lost: tuple[Lost, ...]
    living: tuple[str, ...]
    """The nonces of other supervisors of this run that live on this node."""
    _lock: int

    @classmethod
    def make(cls, url: str, nonce: str, *, top: Path | None = None) -> Self:
        """Make the folder of a new supervisor of the run at `url`, once what dead ones left behind has ended."""
        run = (top or _top()) / hashlib.sha256(f"{_boot()} {url}".encode()).hexdigest()[:16]
        with _locked(run):  # nobody takes a folder whose owner has not locked it yet for one of a dead owner
            lost, living = _sweep(run)
            path = _private(run / nonce)
            lock = _lock(path)
        if lock is None:
            raise CallError(f"{path} is locked by somebody else")
        return cls(path, tuple(lost), tuple(living), lock)

    def attempt(self, number: int) -> Path:
        """The folder of an attempt's heartbeats, made now. If that fails, so does the start of ranks, which says why."""
        path = self.path / f"{number:08d}"
        with suppress(OSError):
            _private(path)
        return path

    def close(self) -> None:
        """End whatever is left of this supervisor's attempts, and remove its folder; that of the run with the last one."""
        leftovers.end(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        with suppress(OSError), _locked(self.path.parent):
            self.path.parent.rmdir()


def _sweep(run: Path) -> tuple[list[Lost], list[str]]:
    lost, living = [], []
    for folder in sorted(run.iterdir()):
        lock = _lock(folder)
        if lock is None:
            if folder.exists():
                living.append(folder.name)
            continue
        lost.append(_cleared(folder))
        os.close(lock)
    return lost, living


def _cleared(folder: Path) -> Lost:
    found = leftovers.members(folder)
    orphans = leftovers.end(folder)
    beats = {int(each.name): heartbeat.read(each) for each in sorted(folder.iterdir()) if each.name.isdecimal()}
    if not orphans:
        shutil.rmtree(folder, ignore_errors=True)
    return Lost(nonce=folder.name, found=len(found), orphans=tuple(orphans), beats=beats)


def _boot() -> str:
    """Heartbeats tell the time since the machine was started: those of another start say nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _top() -> Path:
    """In memory if it stays there, for a disk that is full or busy must not stop heartbeats; TMPDIR goes before all.

    Of people, whose user IDs begin with 1000, systemd removes what is in /dev/shm, and in XDG_RUNTIME_DIR, when they log out. In
    /tmp it spares a folder that is locked.
    """
    memory = os.getuid() < 1000 and os.access(_MEMORY, os.W_OK | os.X_OK)
    chosen = os.environ.get("TMPDIR") or (_MEMORY if memory else tempfile.gettempdir())
    return _private(Path(chosen).absolute() / f"ckpt-supervise-{os.getuid()}")


def _private(path: Path) -> Path:
    """A folder of this user's alone; raises `CallError` if somebody else has made it."""
    with suppress(FileExistsError):  # also of one that was there, and is gone when Python looks what it is
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise CallError(f"{path} belongs to somebody else: set TMPDIR to a folder of your own")
    return path


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None if somebody else does, or there is no such folder (any more)."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle, folder):
            return handle
    os.close(handle)
    return None


def _is_at(handle: int, folder: Path) -> bool:
    """Whether the open folder is still there: its owner may have removed it before the lock was had."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a private folder, which is made if there is none."""
    handle = _turn(folder)
    while handle is None:
        handle = _turn(folder)
    try:
        yield
    finally:
        os.close(handle)


def _turn(folder: Path) -> int | None:
    """Wait for the folder's lock; a descriptor that holds it, None if whoever had it has removed the folder."""
    try:
        handle = os.open(_private(folder), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    fcntl.flock(handle, fcntl.LOCK_EX)
    if _is_at(handle, folder):
        return handle
    os.close(handle)
    return None
