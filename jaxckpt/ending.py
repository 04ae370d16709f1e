"""A process of a JAX job that fails ends at once, so that its job ends too.

At the end of a process JAX waits for the other processes of the job, five minutes at most. That is right after the last step.
After an error in one process the others wait for it, in a collective, and nobody would go on or end. So what is known to fail
does not wait.

An exception that nobody catches is known, by `sys.excepthook`; so is `sys.exit` with a status other than 0 inside of the `with`
of a `Checkpointer`. Python tells nobody of a `sys.exit` elsewhere, nor of what a hook that is set later keeps to itself: those
wait, as do processes that have a thread which does not end. `Preempted` is no failure: all ranks raise it alike.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
from contextlib import suppress
from types import TracebackType

from ckptcore.preemption import is_failure

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


class _Ending:
    """What is known of the end of this process. `previous`: the hook that shows exceptions."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.previous = sys.excepthook

    def uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """In place of `sys.excepthook`."""
        self.status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        self.previous(kind, error, trace)

    def leave(self) -> None:
        """End this process now if it has failed. Handlers of `atexit` that were registered earlier, as JAX's, do not run."""
        if self.status is None:
            return
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()  # one that was forked has JAX's handler of SIGTERM, which does not end it
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # it is closed, or nobody reads it
                stream.flush()
        os._exit(self.status)


def end_when_failed() -> None:
    """From now on this process waits for no other at its end if it has failed. Call it after `jax.distributed.initialize`."""
    ending = _Ending()
    sys.excepthook = ending.uncaught
    atexit.register(ending.leave)


def left_by(error: BaseException | None) -> None:
    """An exception leaves the block that trains: if it is to end this process, with a status other than 0, it has failed."""
    ending = getattr(sys.excepthook, "__self__", None)
    if isinstance(ending, _Ending) and isinstance(error, SystemExit) and is_failure(error):
        ending.status = error.code & 0xFF if isinstance(error.code, int) else 1
