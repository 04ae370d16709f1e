"""SIGTERM: the first is noted, the next one ends the process, unless whoever supervises it does that."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ckptcore import heartbeat
from ckptcore.signals import Handler


@pytest.fixture
def handler() -> Iterator[Handler]:
    before = signal.getsignal(signal.SIGTERM)
    made = Handler()
    made.listen()
    yield made
    made.leave()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("folder", "after"), [("", signal.SIG_DFL), ("/dev/shm/beats", signal.SIG_IGN)])
def test_the_second_signal(handler: Handler, monkeypatch: pytest.MonkeyPatch, folder: str, after: signal.Handlers) -> None:
    monkeypatch.setenv(heartbeat.FOLDER, folder)
    if not folder:
        monkeypatch.delenv(heartbeat.FOLDER)
    signal.raise_signal(signal.SIGTERM)
    assert handler.asked
    assert signal.getsignal(signal.SIGTERM) == after
