"""Signals that end a run: all of them do what Ctrl-C does, so that processes are ended and files removed."""

from __future__ import annotations

import signal
import threading


def end_as_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt`, but where the caller ignores them (`nohup`)."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
