"""The handle of one save: its outcome, when it is known."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from threading import Thread, main_thread
from typing import Any

from ckptcore.errors import CallError, DeadlineExceeded
from ckptcore.events import log
from ckptcore.names import GenerationId
from ckptcore.records import Manifest


class SaveHandle:
    """A save whose snapshot is safe; the rest happens in the background.

    `generation` is the save's ID. Whether it became a checkpoint is what `result` tells. `run(*args)` is the background
    work; the handle lets go of `args` when it is over. `waiting` is entered while `result` waits.
    """

    def __init__(
        self,
        generation: GenerationId,
        run: Callable[..., Manifest],
        *args: Any,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.generation = generation
        self._waiting = waiting
        self._future: Future[Manifest] = Future()
        self._delivered = False
        self._process = os.getpid()
        self._thread = Thread(target=self._work, args=(run, args), name=f"ckpt-save-{generation}")
        self._thread.start()

    def result(self, timeout: float | None = None) -> Manifest:
        """Wait for the decision and return the manifest of the committed checkpoint.

        `timeout` is in seconds; without one the wait still ends, since every background wait has a deadline.
        Raises `SaveAborted`, `SaveFailed`, `CommitUnknown` or `Superseded`; `DeadlineExceeded` when `timeout` passes first;
        `CallError` in a process that was forked off: the save goes on in the one that began it.
        """
        self._check_process()
        with self._waiting():
            decided = wait([self._future], timeout).done
        if not decided:
            raise DeadlineExceeded(f"save {self.generation} is not decided after {timeout:g} s; it goes on, call result() again")
        self._delivered = True
        return self._future.result()

    def __repr__(self) -> str:
        return f"SaveHandle({str(self.generation)!r}, {self._outcome()})"

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[SaveHandle], None]) -> None:
        """Call `callback(handle)` when the outcome is known, in the background thread or at once."""
        self._future.add_done_callback(lambda _: callback(self))

    def wait(self) -> BaseException | None:
        """Wait for the end of the background work. Returns an error that nobody has been told of, once.

        Raises `CallError` in a process that was forked off.
        """
        self._check_process()
        self._thread.join()
        error = self._future.exception()
        if error is None or self._delivered:
            return None
        self._delivered = True
        return error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise CallError(
                f"save {self.generation} was begun by process {self._process}, of which this one ({os.getpid()}) was forked off:"
                " its outcome is known there only"
            )

    def _outcome(self) -> str:
        if not self._future.done():
            return "under way"
        error = self._future.exception()
        return "committed" if error is None else type(error).__name__

    def _work(self, run: Callable[..., Manifest], args: tuple[Any, ...]) -> None:
        try:
            manifest = run(*args)
        except BaseException as error:  # noqa: BLE001 -- whatever it is, it reaches the caller through the future
            del args  # this frame is one of them
            _release(error)
            if not main_thread().is_alive():
                log.error("save %s failed after the main thread had ended: %s", self.generation, error)
            self._future.set_exception(error)
        else:
            self._future.set_result(manifest)


def _release(error: BaseException) -> None:
    """Empty the frames that an error and its causes came through, for they hold the snapshot, as large as the training state."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
