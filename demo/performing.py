"""A demo from its first process to its exit status, however it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from demo.processes import LaunchFailed
from demo.screen import Screen
from demo.stopping import Stopped, stoppable

Played = TypeVar("Played")


def performed(play: Callable[[Callable[[], None]], Played], screen: Screen, *, ended: str) -> tuple[Played, float] | int:
    """What `play` returned, and the seconds that it took; an exit status if it could not go on: 1, or 128 + N after signal N.

    `play` is given a function that raises `Stopped` when it is time to end; `ended` names the processes that are gone by then.
    """
    started = time.monotonic()
    try:
        with stoppable() as check_stop:
            played = play(check_stop)
    except LaunchFailed as failure:
        screen.clear()
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    except Stopped as stop:
        screen.clear()
        print(f"The demo was {stop}; {ended} were ended.", file=sys.stderr)
        return 128 + stop.signal
    return played, time.monotonic() - started
