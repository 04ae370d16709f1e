"""What is a failure at the end of a process of a JAX job, and what is none."""

from __future__ import annotations

import sys

import pytest

from ckptcore.errors import Preempted
from jaxckpt import ending


class Exits:
    """What is registered, and with what status the process would end at once; None: it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status: int | None = None
        self.handlers: list = []
        self.shown: list[type[BaseException]] = []
        monkeypatch.setattr(sys, "excepthook", lambda kind, *_: self.shown.append(kind))
        monkeypatch.setattr(ending.atexit, "register", self.handlers.append)
        monkeypatch.setattr(ending.os, "_exit", self._exit)
        monkeypatch.setattr(ending.logging, "shutdown", lambda: None)

    def _exit(self, status: int) -> None:
        self.status = status

    def end(self) -> int | None:
        (handler,) = self.handlers
        handler()
        return self.status


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    made = Exits(monkeypatch)
    ending.end_when_failed()
    return made


def test_a_process_that_has_not_failed_ends_as_ever(exits: Exits) -> None:
    assert exits.end() is None


@pytest.mark.parametrize(("error", "status"), [(ValueError("x"), 1), (KeyboardInterrupt(), 130)])
def test_an_exception_that_nobody_catches_is_shown_and_ends_it(exits: Exits, error: BaseException, status: int) -> None:
    sys.excepthook(type(error), error, None)
    assert exits.shown == [type(error)]
    assert exits.end() == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, None),
        (ValueError("who knows who catches it"), None),
        (SystemExit(), None),
        (SystemExit(0), None),
        (SystemExit(3), 3),
        (SystemExit("no such sample"), 1),
        (Preempted("step 7 is saved"), None),
    ],
)
def test_what_leaves_the_block_that_trains(exits: Exits, error: BaseException | None, status: int | None) -> None:
    ending.left_by(error)
    assert exits.end() == status


def test_without_a_job_of_several_processes_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    exits = Exits(monkeypatch)
    ending.left_by(SystemExit(3))
    assert exits.handlers == []


def test_what_is_printed_is_not_lost_and_a_closed_stream_does_no_harm(
    exits: Exits, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending.left_by(SystemExit(3))
    monkeypatch.setattr(sys, "stderr", None)
    assert exits.end() == 3
    assert capsys.readouterr().out == ""
