"""What the demo prints: lines that fit 100 columns, and a sign of life while it waits."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import TextIO

COLUMNS = 100
PROGRESS_COLUMNS = 60
PROGRESS_SECONDS = 5.0
TERMINAL_SECONDS = 0.5


def wrapped(text: str) -> str:
    """The text's lines, broken between words where they exceed 100 columns; what follows is indented four deeper."""
    return "\n".join(_wrapped_line(line) for line in text.split("\n"))


def _wrapped_line(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class Screen:
    """Where lines go. On a terminal, progress is one line that is written anew; elsewhere, a line every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._due = 0.0

    def say(self, text: str) -> None:
        """Print lines of text."""
        self.clear()
        print(wrapped(text), file=self._stream, flush=True)

    def progress(self, describe: Callable[[], str]) -> None:
        """Show what `describe` returns (up to 58 characters), unless progress was shown just now."""
        if time.monotonic() < self._due:
            return
        line = f"  {describe()}"
        if self._terminal:
            print("\r" + line[:PROGRESS_COLUMNS].ljust(PROGRESS_COLUMNS), end="", file=self._stream, flush=True)
        else:
            self.say(line)
        self._due = time.monotonic() + (TERMINAL_SECONDS if self._terminal else PROGRESS_SECONDS)

    def clear(self) -> None:
        """Remove the line of progress from the terminal."""
        if self._terminal:
            print("\r" + " " * PROGRESS_COLUMNS + "\r", end="", file=self._stream, flush=True)
