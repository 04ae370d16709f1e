"""A node that does not lead, at the end of an attempt, and a rendezvous that is over: without processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptcore.attempts import AttemptNode, Member, Supervisor
from ckptcore.clock import Clock
from ckptsupervise import following
from ckptsupervise.endpoint import Endpoint
from ckptsupervise.following import Following
from ckptsupervise.rendezvous import Rendezvous, Waits
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
    found: list[Any] = []
    node = follow(leader, tmp_path)
    thread = threading.Thread(target=lambda: found.append(node.run()))
    thread.start()
    link = taken(leader)
    link.send(Finish(timeout=1.0))
    while isinstance(said := link.receive(), Tick | State):
        pass
    assert isinstance(said, Finished)
    assert [link.receive() for _ in range(5)] == [Tick()] * 5
    link.close()
    thread.join(PATIENT)
    assert found == [None]


def test_a_rendezvous_that_is_closed_reaches_nobody() -> None:
    """Whoever looks for nodes that wait does so in a thread that is not waited for."""
    own = Supervisor(nonce=OWN, host="here", pid=1)
    rest: dict[str, Any] = dict.fromkeys(("accounts", "policy", "tell", "close_open", "settle"))
    place: dict[str, Any] = {"node": "a", "address": "127.0.0.1:1", "token": "0a" * 32, "slots": 2}
    met = Rendezvous(own=own, waits=Waits(), asked=Asked(), clock=Clock(), **place, **rest)
    at = "2026-01-31T12:00:00.000000Z"
    node = AttemptNode(run_id=None, attempt=1, created=at, supervisor=own, started=at, since=1, **place)
    assert met.reached([node]) == [node]
    met.close()
    assert met.reached([node]) == []
