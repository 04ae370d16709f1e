"""`python -m ckptsupervise.guard FOLDER`: ends what a supervisor leaves behind when it is killed, at once.

Its standard input is a pipe whose other end only the supervisor has: it ends when that one has gone, however it went.
Ranks themselves die with the supervisor (`ckptsupervise.rank`); what they have started does not.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from ckptsupervise import leftovers

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Guard:
    """A process that watches over this one. Leaving the context lets it look whether anything is left, and ends it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "ckptsupervise.guard", str(folder)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=30)
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> int:
    """Wait until standard input ends, then end everything that belongs to the folder."""
    for number in _SIGNALS:  # whoever ends the supervisor's whole group or service ends this one last
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    leftovers.end(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
