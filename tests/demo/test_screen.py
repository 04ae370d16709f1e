"""What the demo prints fits 100 columns, and says something while it waits."""

from __future__ import annotations

import io
import os
import signal

import pytest

from demo.screen import COLUMNS, PROGRESS_COLUMNS, Screen, wrapped
from demo.stopping import Stopped, stoppable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_lines_are_broken_between_words_and_indented() -> None:
    generation = "000001-000000000050-1"
    lines = wrapped(f"\n    ok  {' '.join([generation] * 9)}").split("\n")
    assert lines[0] == ""
    assert lines[1].startswith("    ok  0")
    assert all(line.startswith("        0") for line in lines[2:])
    assert max(map(len, lines)) <= COLUMNS
    assert " ".join(lines).split() == ["ok", *[generation] * 9]


def test_a_short_line_keeps_its_inner_spaces() -> None:
    assert wrapped("    ok      losses      120 steps") == "    ok      losses      120 steps"


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for step in range(3):
        screen.progress(lambda step=step: f"step {step}")
    assert stream.getvalue() == "  step 0\n"


def test_on_a_terminal_progress_is_overwritten_and_removed() -> None:
    stream = Terminal()
    screen = Screen(stream)
    screen.progress(lambda: "step 1 " + "x" * 100)
    assert stream.getvalue() == "\r" + ("  step 1 " + "x" * 100)[:PROGRESS_COLUMNS]
    screen.say("done")
    assert stream.getvalue().endswith("\r" + " " * PROGRESS_COLUMNS + "\rdone\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_until_it_is_asked_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stoppable() as check_stop:
        check_stop()
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=f"stopped by {number.name}"):
            check_stop()
    assert signal.getsignal(number) is before
