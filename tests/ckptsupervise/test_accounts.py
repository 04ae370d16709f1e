"""How a supervisor waits for the run's store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import Supervisor
from ckptcore.errors import StoreUnavailable
from ckptsupervise import accounts
from tests.ckptcore.failing import WrappedStore
from tests.ckptcore.support import file_store


def test_a_store_that_never_answers_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a file system whose server is gone: it says nothing, not even that it cannot be reached."""
    monkeypatch.setattr(accounts, "PATIENCE", 0.2)
    monkeypatch.setattr(accounts, "HURRY", 0.3)
    answered = threading.Event()

    class Silent(WrappedStore):
        def around(self, operation: str, key: str, call: Callable[[], Any]) -> Any:  # noqa: ARG002
            assert answered.wait(60)
            return call()

    own = Supervisor(nonce="00aa00aa00aa00aa", host="here", pid=7)
    waiting = accounts.Accounts(Silent(file_store(tmp_path / "run")), own, "here")
    try:
        with pytest.raises(StoreUnavailable, match="no answer within"):
            waiting.load()
    finally:
        answered.set()
        waiting.close()
