"""`python -m ckptsupervise.rank -- COMMAND …`: what a rank is before it becomes the training program.

It makes the kernel kill it when the supervisor dies, writes the first heartbeat, and executes the command in its own place: so
a rank never outlives its supervisor, and one that hangs before any code of ours runs in it is seen. What it says before it gives
up is recorded (`ckptsupervise.lastwords`), and so does not name the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from ckptcore import heartbeat

SUPERVISOR = "CKPT_SUPERVISOR"
"""Name of the environment variable with the supervisor's process ID."""

CANNOT_RUN = 126
NOT_FOUND = 127
"""Exit statuses of a command that cannot be executed, as shells have them."""

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Become `arguments` after `--`; returns only if that is not possible."""
    command = list(arguments[1:]) if arguments[:1] == ["--"] else list(arguments)
    if not command:
        return _say("no command to run", CANNOT_RUN)
    if not die_with_parent(os.environ):
        return _say("the supervisor has gone: not started", CANNOT_RUN)
    try:
        heartbeat.begin(os.environ[heartbeat.FOLDER], int(os.environ[heartbeat.RANK]))
    except OSError as error:  # the supervisor finds that, too, and that it cannot see a hang then
        sys.stderr.write(f"ckpt: no heartbeat can be written: {error}; the command is started all the same\n")
        sys.stderr.flush()
    return _become(command)


def die_with_parent(environment: Mapping[str, str]) -> bool:
    """Let the kernel kill this process when the thread that has started it ends; whether that one is the supervisor still.

    It holds across `exec`. What this process starts itself is not covered (`ckptsupervise.leftovers`).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return str(os.getppid()) == environment.get(SUPERVISOR, str(os.getppid()))  # it may have died before the call above


def _become(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is what the user wants to run
    except FileNotFoundError:
        return _say("there is no such command", NOT_FOUND, command[0])
    except OSError as error:
        return _say(f"the command cannot be run: {error.strerror}", CANNOT_RUN, command[0])


def _say(message: str, status: int, *details: str) -> int:
    sys.stderr.write("\n  ".join([f"ckpt supervise: {message}", *details]) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
