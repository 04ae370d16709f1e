"""What supervisors say to each other, and to whom: real connections over the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ckptcore.attempts import Member
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.heartbeat import Beat
from ckptsupervise import door
from ckptsupervise.door import Door, answers
from ckptsupervise.ending import Exit, LostNode, ending
from ckptsupervise.links import Link
from ckptsupervise.wire import Channel, Ended, Finished, Go, Join, LinkLost, State, Tick, joined, split

NONCE, OTHER = "00aa00aa00aa00aa", "00bb00bb00bb00bb"
SILENCE = 0.3


@pytest.fixture
def own() -> Iterator[Door]:
    made = Door("127.0.0.1", NONCE, silence=SILENCE)
    yield made
    made.close()


def pair() -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return Channel(one, SILENCE), Channel(listener.accept()[0], SILENCE)


def join(own: Door, *, to: str = NONCE) -> Channel:
    channel = Channel.connect(own.address, timeout=5, silence=5)
    channel.send(Join(to=to, nonce=OTHER, attempt=3))
    return channel


def taken(own: Door) -> Channel:
    for _ in Clock().polls(10, first=0.01, most=0.05):
        found = own.take(3, OTHER)
        if found is not None:
            return found
    raise AssertionError("nobody joined")


def test_it_answers_who_knows_its_nonce(own: Door) -> None:
    assert answers(own.address, NONCE, timeout=5)
    assert not answers(own.address, OTHER, timeout=5)
    own.close()
    assert not answers(own.address, NONCE, timeout=5)


def test_an_address_that_is_none() -> None:
    assert not answers("nowhere", NONCE, timeout=1)
    assert split(joined("fd00::8", 7)) == ("fd00::8", 7)
    assert split(joined("a.example", 7)) == ("a.example", 7)


def test_a_listener_that_never_answers_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(joined(*silent.getsockname()), NONCE, timeout=0.2)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(CallError, match=r"--address 192\.0\.2\.1"):
        Door("192.0.2.1", NONCE, silence=1)


def test_who_joins_is_taken_once(own: Door) -> None:
    channel = join(own)
    link = taken(own)
    assert own.take(3, OTHER) is None
    link.send(Go(master="a:1", coordinator="a:2"))
    assert channel.receive() == Go(master="a:1", coordinator="a:2")
    channel.close()
    with pytest.raises(LinkLost, match="closed the link, or died"):
        link.receive()
    link.close()


def test_who_joins_somebody_else_is_turned_away(own: Door) -> None:
    channel = join(own, to=OTHER)
    with pytest.raises(LinkLost):
        channel.receive()
    assert own.take(3, OTHER) is None
    channel.close()


@pytest.mark.parametrize("said", [b"hello\n", b'{"type":"rm"}\n', b'{"type":"ping"}\n', b"\xff" * 10 + b"\n"])
def test_what_makes_no_sense(own: Door, said: bytes) -> None:
    with socket.create_connection(split(own.address)) as stranger:
        stranger.sendall(said)
        assert stranger.recv(1) == b""
    assert answers(own.address, NONCE, timeout=5)


def test_silence_is_a_loss() -> None:
    one, other = pair()
    one.send(Tick())
    assert other.receive() == Tick()
    with pytest.raises(LinkLost, match=r"no sign of life for 0\.3 s"):
        other.receive()
    one.close()
    other.close()


def test_a_link_tells_of_another_clock() -> None:
    """Whose ranks' moments are those of this one's."""
    near, far = pair()
    link = Link(Member(node="b", nonce=OTHER, address=""), range(2, 4), near, Clock())
    now = Clock().monotonic()
    beat = Beat(rank=2, pid=7, phase="train", at=999.0, since=990.0, marks={"init": 900.0})
    state = State(now=1000.0, beats=[beat], gone=[Ended(rank=3, status=-9, at=998.0)], processes={2: 7}, asked=1, over=True)
    far.send(Finished(state=state, left=[], words={3: "ouch"}))
    link.wait("finished", 10)
    assert link.over
    assert link.words == {3: "ouch"}
    (seen,), (gone,) = link.beats, link.gone
    assert -1.0 <= seen.at - now < 9.0
    assert [round(seen.at - each, 3) for each in (seen.since, seen.marks["init"], gone.at)] == [9.0, 99.0, 1.0]
    far.close()
    link.close()


def test_a_link_that_is_lost() -> None:
    near, far = pair()
    link = Link(Member(node="b", nonce=OTHER, address=""), range(2, 4), near, Clock())
    far.close()
    link.wait("finished", 10)
    assert link.over
    assert link.lost is not None
    assert link.lost.node == "b"
    link.tell(Tick())
    link.close()


def test_this_node_has_an_address() -> None:
    assert door.own_host()
    assert 0 < door.free_port("127.0.0.1") < 65536


def test_a_lost_node_is_the_reason_unless_a_rank_had_failed_before() -> None:
    lost = LostNode(node="b", since=10.0, message="no sign of life for 6 s")
    after = ending([Exit(rank=0, status=1, at=10.2)], [], lost=lost)
    assert (after.kind, after.node, after.rank, after.outcome) == ("node", "b", None, "failed")
    before = ending([Exit(rank=0, status=1, at=9.0)], [], lost=lost)
    assert (before.kind, before.rank) == ("exit", 0)
    assert ending([], [], lost=lost, stopping="preempted").outcome == "preempted"
    assert ending([Exit(rank=0, status=0, at=11.0)], [], lost=lost).kind == "node"
