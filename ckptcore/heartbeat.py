"""What each rank of a job tells of itself while it works: one small file on its node, overwritten at every sign of progress.

Nothing here depends on who reads it, and nothing is written unless `CKPT_HEARTBEATS` names a folder. Only the thread that
trains beats: a beat from the background would hide a hang. A beat is never in the way: it is not synced, draws nothing from
Python's random state, and an error while it is written is logged once. It is written in place, in room that the first one has
taken: a folder that others have filled does not make a rank fall silent.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal
from zlib import crc32

import msgspec
from msgspec import Meta

from ckptcore.events import log

FOLDER = "CKPT_HEARTBEATS"
"""The environment variable that names the folder of heartbeats: on this node, and of one attempt of the job."""
RANK = "RANK"
"""The environment variable by which the launcher knows this process."""
STACK_SIGNAL = signal.SIGUSR2
"""What makes a rank write the stacks of all its threads to `stack_file`, even while the interpreter hangs in native code."""

Phase = Literal["init", "restore", "train", "save", "final"]
"""What a rank does: `init` from its start to the restore, and from there to its first completed step (compilation); `restore`;
`train`; `save` while the training thread is inside `save()`, `wait()` or `SaveHandle.result()`; `final` from `close()` on. An
error that leaves the `with` does not change the phase."""

Moment = Annotated[float, Meta(ge=0, le=1e10)]
"""Seconds, fewer than a date can tell."""

SIZE = 1024
"""Bytes of a beat's file: twice what a beat takes, and no more than a block of any file system."""

_MOST_STEPS = 999_999_999_999
_NAME = re.compile(r"rank-(\d+)\.beat")
_TRIES = 10
"""How often a beat is read that is being written."""


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat. Moments are seconds of `CLOCK_MONOTONIC`, which all processes of a node share."""

    rank: Annotated[int, Meta(ge=0, le=99_999)]
    pid: int
    phase: Phase
    at: Moment
    """When this was written."""
    since: Moment
    """When the rank entered this phase."""
    step: Annotated[int, Meta(ge=0, le=_MOST_STEPS)] | None = None
    """Completed updates; None while that is not known."""
    steps: int = 0
    """How many updates this process has completed since its restore."""
    step_seconds: float | None = None
    """The rank's own time for its newest step: what `heartbeat(seconds=…)` said, else the time between two steps less that in
    `save()`. None until it is known."""
    blocked: Moment = 0.0
    """Seconds spent in the phase `save` in total."""
    restored_step: Annotated[int, Meta(ge=0, le=_MOST_STEPS)] | None = None
    """The step that this process started from, 0 for a fresh start; None before that."""
    incarnation: int | None = None
    """What this job has claimed of the run; None before that."""
    run: str | None = None
    """The run's ID; None before that."""
    marks: dict[str, Moment] = {}
    """When the rank first came to `init`, `restore`, `restored` (the end of that), and `first-step` (completed)."""


def beat_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Where the newest beat of a rank lies."""
    return Path(folder, f"rank-{rank}.beat")


def stack_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Where a rank writes its stacks at `STACK_SIGNAL`. It exists once the rank listens to that."""
    return Path(folder, f"stack-{rank}.txt")


def write(folder: str | os.PathLike[str], beat: Beat) -> None:
    """Write the beat of a rank over the one before. A reader sees whether what it finds is whole. Raises `OSError`."""
    _overwrite(os.fspath(folder) + f"/rank-{beat.rank}.beat", _encode(beat))


def unusable(folder: str | os.PathLike[str]) -> str:
    """Why no rank could beat in `folder` now, or nobody hear it; empty if that works.

    What it writes itself is as large as a beat, and stays where it is, too: so it finds what a rank would.
    """
    path, text = os.fspath(folder) + "/probe", b"%f" % time.monotonic()
    try:
        _overwrite(path, text)
        return "" if _whole(path) == text else f"{path} is not what was just written"
    except OSError as error:
        return str(error)


def begin(folder: str | os.PathLike[str], rank: int) -> None:
    """The first beat of a rank, from whoever starts its program in this process: what hangs before ours runs is seen too."""
    now = time.monotonic()
    write(folder, Beat(rank=rank, pid=os.getpid(), phase="init", at=now, since=now, marks={"init": now}))


def read(folder: str | os.PathLike[str]) -> list[Beat]:
    """The newest beat of each rank, by rank. What is gone, cannot be read, or is no beat, is left out."""
    try:
        found = os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
    ranks = sorted(int(match[1]) for name in found if (match := _NAME.fullmatch(name)))
    return [beat for rank in ranks if (beat := read_one(folder, rank)) is not None]


def read_one(folder: str | os.PathLike[str], rank: int) -> Beat | None:
    """The newest beat of one rank; None if there is none, or what is there is no beat."""
    try:
        text = _whole(beat_file(folder, rank))
        beat = None if text is None else _decode(text)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    return beat if beat is not None and beat.rank == rank else None


class Pulse:
    """Tells what the training thread of this process does. Made and used in that thread: calls from others tell nothing.

    `folder` is None for a rank that nobody listens to. `before` is what has been told of this rank in this attempt already.
    """

    def __init__(
        self, folder: str | None, rank: int, *, before: Beat | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._now, self._owner = folder, now, _here()
        started = now()
        self._rank = rank
        self._phase: Phase = before.phase if before else "init"
        self._since = before.since if before else started
        self._marks = {"init": started, **(before.marks if before else {})}
        self._blocked = before.blocked if before else 0.0
        self._step: int | None = None
        self._restored: int | None = None
        self._incarnation: int | None = None
        self._run: str | None = None
        self._steps = 0
        self._seconds: float | None = None
        self._told = self._failed = False
        self._stepped_at: float | None = None
        self._blocked_then = 0.0
        self.enter("init")

    @classmethod
    def of(cls, environ: Mapping[str, str], rank: int) -> Pulse:
        """The pulse of this process. Silent without `CKPT_HEARTBEATS`; `rank` counts where the launcher has not said one."""
        folder = environ.get(FOLDER)
        if not folder:
            return cls(None, rank)
        told = environ.get(RANK, "")
        rank = int(told) if told.isdecimal() else rank
        before = read_one(folder, rank)
        _listen(folder, rank, before)
        return cls(folder, rank, before=before)

    def enter(self, phase: Phase) -> None:
        """The training thread goes over to `phase`."""
        if _here() == self._owner:
            self._enter(phase)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """The training thread is in `phase` inside of this, then where it was. Inside of `save` and `final` nothing changes."""
        if _here() != self._owner or self._phase in ("save", "final"):
            yield
            return
        before, started = self._phase, self._now()
        self._enter(phase)
        try:
            yield
        finally:
            if self._phase == phase:
                if phase == "save":
                    self._blocked += self._now() - started
                self._enter(before)

    def opened(self, incarnation: int, run: str) -> None:
        """The run, which has that ID, is open for writing: this job's claim has that number."""
        self._incarnation, self._run = incarnation, run

    def restored(self, step: int) -> None:
        """The state after `step` updates is in place: what follows are this process's own steps."""
        if _here() == self._owner:
            self._step = self._restored = step
            self._steps, self._seconds, self._stepped_at = 0, None, None
            self._mark("restored")
            self._enter("init")

    def stepped(self, step: int | None = None, seconds: float | None = None) -> None:
        """A sign of life. `step` updates are complete, the newest of which took this rank `seconds` of its own."""
        if _here() != self._owner:
            return
        if step is not None:
            self._count(int(step))
        if seconds is not None:
            self._seconds, self._told = float(seconds), True
        self._beat()

    def _count(self, step: int) -> None:
        taken = 1 if self._step is None else step - self._step
        if taken <= 0 or not 0 <= step <= _MOST_STEPS:  # what no record has is not told
            return
        now = self._now()
        if self._stepped_at is not None and not self._told:
            spent = now - self._stepped_at - (self._blocked - self._blocked_then)
            self._seconds = max(spent, 0.0) / taken
        self._step, self._stepped_at, self._blocked_then = step, now, self._blocked
        self._steps += taken
        self._mark("first-step")
        if self._phase == "init":
            self._phase, self._since = "train", now

    def _enter(self, phase: Phase) -> None:
        if phase != self._phase:
            self._phase, self._since = phase, self._now()
        if phase == "restore":
            self._mark("restore")
        self._beat()

    def _mark(self, name: str) -> None:
        if name not in self._marks:
            self._marks[name] = self._now()

    def _beat(self) -> None:
        if self._folder is None:
            return
        beat = Beat(
            rank=self._rank,
            pid=self._owner[0],
            phase=self._phase,
            at=self._now(),
            since=self._since,
            step=self._step,
            steps=self._steps,
            step_seconds=self._seconds,
            blocked=self._blocked,
            restored_step=self._restored,
            incarnation=self._incarnation,
            run=self._run,
            marks=self._marks,
        )
        try:
            write(self._folder, beat)
        except OSError as error:
            if not self._failed:
                log.warning("rank %d cannot tell that it lives: %s; training goes on", self._rank, error)
            self._failed = True


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Beat).decode


def _here() -> tuple[int, int]:
    """This process and thread: a process that is forked off inherits a pulse that is not its own."""
    return os.getpid(), threading.get_ident()


def _overwrite(path: str, text: bytes) -> None:
    """Write a line and its check sum over what is there. Not kept open: a program may close what it does not know."""
    data = (text + b"\n%08x\n" % crc32(text)).ljust(SIZE)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if os.write(handle, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        error.filename = path  # else nobody is told which disk is full
        raise
    finally:
        os.close(handle)


def _whole(path: str | os.PathLike[str]) -> bytes | None:
    """What `_overwrite` has written; None if it is not whole, nor becomes so at once. Raises `OSError`."""
    for _ in range(_TRIES):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - one system call reads it all
            text, _, check = file.read(2 * SIZE).partition(b"\n")
        if check[:8] == b"%08x" % crc32(text):
            return text
    return None


def _listen(folder: str, rank: int, before: Beat | None) -> None:
    """Write all stacks at `STACK_SIGNAL`, unless the program has a use for that signal, or this process listens already."""
    path = stack_file(folder, rank)
    listening = before is not None and before.pid == os.getpid() and path.exists()
    if listening or signal.getsignal(STACK_SIGNAL) != signal.SIG_DFL:
        return
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # stays open as long as the process
    except OSError as error:
        log.warning("rank %d cannot write its stacks: %s", rank, error)
        return
    faulthandler.register(STACK_SIGNAL, file=handle, all_threads=True, chain=False)
