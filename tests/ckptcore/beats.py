"""What a test asks of heartbeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore import heartbeat
from ckptcore.heartbeat import Beat, read_one


def listen_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process tell of itself in `folder` from now on. It leaves the signal for stacks alone: tests share a process."""
    monkeypatch.setenv(heartbeat.FOLDER, str(folder))
    monkeypatch.delenv(heartbeat.RANK, raising=False)
    monkeypatch.setattr(heartbeat, "_listen", lambda *_: None)


def told(folder: Path, rank: int = 0) -> Beat:
    """The newest beat of a rank."""
    found = read_one(folder, rank)
    assert found is not None
    return found
