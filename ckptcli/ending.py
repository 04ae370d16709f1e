"""How a command ends: its exit status, and one line for everything that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from ckptcli.text import plain
from ckptcore.errors import CallError, CheckpointError, DamageError, NotFound, StoreError


class Status(IntEnum):
    """Exit statuses (docs/command.md)."""

    DONE = 0
    NEGATIVE = 1
    """The command did its work, and the answer is no: not whole, not equal, nothing to resume from."""
    CALL = 2
    """The command line cannot be served as it is."""
    STORE = 3
    """The store did not answer, refused, or has no room."""
    DAMAGED = 4
    """Stored bytes are missing or differ from what was recorded."""
    NOT_FOUND = 5
    """There is no such run, generation, step, component or leaf."""
    PROTOCOL = 6
    """Another job has the run, or a save's outcome is not known."""
    DEFECT = 70
    """A defect of the command itself."""
    INTERRUPTED = 130
    PREEMPTED = 143
    """SIGTERM, which schedulers know: what was supervised has saved and ended, as far as its grace allowed."""


def status_of(error: CheckpointError) -> Status:
    """The exit status for an error."""
    kinds = {
        NotFound: Status.NOT_FOUND,
        CallError: Status.CALL,
        StoreError: Status.STORE,
        DamageError: Status.DAMAGED,
    }
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), Status.PROTOCOL)


def guarded(work: Callable[[], object], *, debug: bool) -> int:
    """Do `work`; return its exit status. Errors become one line on standard error, with `debug` a traceback."""
    try:
        result = work()
        with printing():
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _say("interrupted", Status.INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # Typer makes the second of the first
        _drop_output()
        return Status.DONE
    except Exception as error:
        _flush_rest()
        if debug:
            raise
        return ended(error)
    return result if isinstance(result, int) else Status.DONE


def tell(error: CheckpointError, about: str) -> Status:
    """Say what is wrong with one of several, in one line; returns the exit status that it would have alone."""
    return _say(f"{about}: {_line(error)}", status_of(error))


def ended(error: Exception) -> Status:
    """Say what an error is, in one line; returns the exit status."""
    if isinstance(error, CheckpointError):
        return _say(_line(error), status_of(error))
    if isinstance(error, FileNotFoundError) and error.filename is None:  # getcwd(2)
        return _say("the current folder does not exist any more: change to another one", Status.CALL)
    if isinstance(error, OSError):  # what no store has translated
        return _say(str(error), Status.STORE)
    kind = type(error).__name__
    return _say(f"this is a defect of ckpt, please report it ({kind}: {error}); --debug shows where", Status.DEFECT)


@contextmanager
def printing() -> Iterator[None]:
    """Around writes to standard output: a full disk behind it is a `StoreError`; that a reader has gone stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"standard output: {error.strerror}") from error


def _flush_rest() -> None:
    """Print what an error leaves to be printed. Where that is what fails, nothing is left to do at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    sys.stdout = None  # pyright: ignore[reportAttributeAccessIssue] -- whoever read it has gone: nothing is left to flush


def _line(error: CheckpointError) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def _say(message: str, status: Status) -> Status:
    sys.stderr.write(f"ckpt: {plain(' '.join(message.split()))}\n")  # it may quote what somebody stored
    return status
