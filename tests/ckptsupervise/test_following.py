"""A node that does not lead, at the end of an attempt: without processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import Member
from ckptcore.clock import Clock
from ckptsupervise import following
from ckptsupervise.endpoint import Endpoint
from ckptsupervise.following import Following
from ckptsupervise.watching import Asked
from ckptsupervise.wire import Channel, Finish, Finished, State, Tick

PATIENT = 60.0
OWN = "00aa00aa00aa00aa"


@pytest.fixture
def leader() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", silence=PATIENT)
    yield made
    made.close()


def taken(leader: Endpoint) -> Channel:
    for _ in Clock().polls(PATIENT, first=0.01, most=0.05):
        found = leader.take(3, OWN)
        if found is not None:
            return found
    raise AssertionError("nobody joined")


def follow(leader: Endpoint, folder: Path) -> Following:
    member = Member(node="a", nonce="00bb00bb00bb00bb", address=leader.address, token=leader.token)
    asked: dict[str, Any] = {"start": None, "asked": Asked(), "folder": folder, "size": 2}
    return Following(attempt=3, leader=member, nonce=OWN, timeout=PATIENT, silence=PATIENT, clock=Clock(), **asked)


def test_who_has_finished_stays_until_that_was_heard(leader: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ticks on; else a sign of life of the leader, on its way to who has left, would take the last message with it."""
    monkeypatch.setattr(following, "TICK", 0.02)
    node = follow(leader, tmp_path)
    thread = threading.Thread(target=node.run)
    thread.start()
    link = taken(leader)
    link.send(Finish(timeout=1.0))
    while isinstance(said := link.receive(), Tick | State):
        pass
    assert isinstance(said, Finished)
    assert [link.receive() for _ in range(5)] == [Tick()] * 5
    link.close()
    thread.join(PATIENT)
    assert not thread.is_alive()
    assert node.lost == ""
