"""What supervisors say to each other, and to whom: real connections over the loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ckptcore.attempts import Member
from ckptcore.clock import Clock
from ckptcore.errors import CallError, CheckpointError, StoreUnavailable
from ckptcore.heartbeat import Beat
from ckptsupervise import endpoint, engine, stacks
from ckptsupervise.ending import Exit, LostNode, ending
from ckptsupervise.endpoint import Endpoint, answers, connect
from ckptsupervise.handshake import GREETING_BYTES, admit, enter, new_token
from ckptsupervise.leading import RunningOnNodes
from ckptsupervise.links import Link, Links
from ckptsupervise.room import Room
from ckptsupervise.wire import (
    Challenge,
    Channel,
    Ended,
    Finished,
    Go,
    Join,
    Kill,
    LinkLost,
    Proof,
    State,
    Taken,
    Tick,
    joined,
    split,
)  # fmt: skip
from tests.ckptcore.support import FakeClock

OTHER = "00bb00bb00bb00bb"
PATIENT = 60.0


@pytest.fixture
def own() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", silence=PATIENT)
    yield made
    made.close()


def pair(silence: float = PATIENT) -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return Channel(one, silence), Channel(listener.accept()[0], silence)


def join(own: Endpoint) -> Channel:
    channel = connect(own.address, own.token, timeout=PATIENT)
    channel.send(Join(nonce=OTHER, attempt=3))
    return channel


def taken(own: Endpoint) -> Channel:
    for _ in Clock().polls(10, first=0.01, most=0.05):
        found = own.take(3, OTHER)
        if found is not None:
            return found
    raise AssertionError("nobody joined")


def test_it_answers_who_knows_its_token(own: Endpoint) -> None:
    assert answers(own.address, own.token, timeout=PATIENT)
    assert not answers(own.address, new_token(), timeout=PATIENT)
    own.close()
    assert not answers(own.address, own.token, timeout=PATIENT)


def test_an_address_that_is_none() -> None:
    assert not answers("nowhere", new_token(), timeout=1)
    assert split(joined("fd00::8", 7)) == ("fd00::8", 7)
    assert split(joined("a.example", 7)) == ("a.example", 7)


def test_a_listener_that_never_answers_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(joined(*silent.getsockname()), new_token(), timeout=0.2)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(CallError, match=r"--address 192\.0\.2\.1"):
        Endpoint("192.0.2.1", silence=1)


def test_who_joins_is_taken_once(own: Endpoint) -> None:
    channel = join(own)
    link = taken(own)
    assert own.take(3, OTHER) is None
    link.send(Go(master="a:1", coordinator="a:2"))
    assert channel.receive() == Go(master="a:1", coordinator="a:2")
    channel.close()
    with pytest.raises(LinkLost, match="closed the link, or died"):
        link.receive()
    link.close()


def hung_up(stranger: socket.socket) -> bool:
    """Whether the other side is gone, after one more byte to it. Raises `TimeoutError` if it listens still."""
    try:
        stranger.sendall(b"x")
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


def refused(own: Endpoint, said: bytes) -> bool:
    """Whether the endpoint hangs up, having said nothing but that it wants a proof."""
    with socket.create_connection(split(own.address), 5) as stranger, stranger.makefile("rb") as heard:
        assert b"challenge" in heard.readline()
        stranger.sendall(said)
        return heard.read(1) == b""


STRANGE = {
    "no JSON": b"hello\n",
    "no message": b'{"type":"rm"}\n',
    "half a proof": b'{"type":"proof"}\n',
    "a wrong proof": msgspec.json.encode(Proof(number="0" * 32, proof="0" * 64)) + b"\n",
    "joins without a proof": msgspec.json.encode(Join(nonce=OTHER, attempt=3)) + b"\n",
    "kills without a proof": msgspec.json.encode(Kill()) + b"\n",
    "bytes": b"\xff" * 10 + b"\n",
    "no text": msgspec.json.encode(Proof(number="ä", proof="ä")) + b"\n",
    "nested": b'{"type":"proof","x":' + b"[" * (GREETING_BYTES - 30) + b"\n",
    "without an end": b"x" * 2 * GREETING_BYTES,
}


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_turned_away(own: Endpoint, said: bytes) -> None:
    assert refused(own, said)
    assert own.take(3, OTHER) is None
    assert answers(own.address, own.token, timeout=PATIENT)


def test_a_stranger_that_sends_byte_after_byte_is_not_waited_for(own: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "GREETING", 0.3)
    with socket.create_connection(split(own.address), 5) as stranger:
        assert b"challenge" in stranger.recv(1000)
        stranger.settimeout(0.05)
        for left in Clock().polls(10, first=0.0, most=0.0):
            assert left > 0
            with suppress(TimeoutError):
                if hung_up(stranger):
                    break


def test_more_strangers_than_places_let_others_in_after_a_while(own: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "GREETING", 0.2)
    crowd = [socket.create_connection(split(own.address), 5) for _ in range(endpoint.GREETINGS + 10)]
    for left in Clock().polls(PATIENT, first=0.01, most=0.2):  # it has as little time to prove itself as they
        if answers(own.address, own.token, timeout=PATIENT):
            break
        assert left > 0
    for each in crowd:
        each.close()


def test_a_proof_is_of_no_use_a_second_time(own: Endpoint) -> None:
    """What was overheard opens nothing: the endpoint has drawn another number."""
    near, far = pair()
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(enter, near, own.token)
        far.send(Challenge(number="1" * 32))
        overheard = far.receive()
        far.close()
        assert isinstance(entering.exception(PATIENT), LinkLost)
    assert refused(own, msgspec.json.encode(overheard) + b"\n")
    near.close()


def test_who_has_taken_over_an_address_is_not_taken_for_the_supervisor() -> None:
    """It cannot prove itself, whatever it answers: with what it was told, too."""
    near, far = pair()
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(enter, near, new_token())
        far.send(Challenge(number="1" * 32))
        far.send(far.receive())
        with pytest.raises(LinkLost, match="another supervisor"):
            entering.result(PATIENT)
    near.close()
    far.close()


def test_both_prove_that_they_know_the_token() -> None:
    near, far = pair()
    token = new_token()
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(admit, far, token)
        enter(near, token)
        listening.result(PATIENT)
    near.close()
    far.close()


def test_a_message_has_a_length_at_most() -> None:
    one, other = pair()
    other.send(Tick())
    other.send(Go(master="a" * 99, coordinator=""))
    assert one.receive(50) == Tick()
    with pytest.raises(LinkLost, match="more than 50 bytes"):
        one.receive(50)
    one.close()
    other.close()


def test_silence_is_a_loss() -> None:
    one, other = pair(0.3)
    one.send(Tick())
    assert other.receive() == Tick()
    with pytest.raises(LinkLost, match=r"no sign of life for 0\.3 s"):
        other.receive()
    one.close()
    other.close()


def test_a_link_tells_of_another_clock() -> None:
    """Whose ranks' moments are those of this one's."""
    near, far = pair()
    link = Link(Member(node="b", nonce=OTHER, address="", token=""), range(2, 4), near, Clock())
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
    link = Link(Member(node="b", nonce=OTHER, address="", token=""), range(2, 4), near, Clock())
    far.close()
    link.wait("finished", 10)
    assert link.over
    assert link.lost is not None
    assert link.lost.node == "b"
    link.tell(Tick())
    link.close()


def linked(near: Channel, clock: Clock) -> Link:
    return Link(Member(node="b", nonce=OTHER, address="", token=""), range(2, 4), near, clock)


def test_a_clock_that_falls_behind() -> None:
    """A machine that slept has a clock that did too; one without a time server has one that is slow."""
    near, far = pair()
    clock = FakeClock()
    clock.now = 5000.0
    link = linked(near, clock)
    for number, (here, there) in enumerate([(5000.0, 1000.0), (9000.0, 4997.0)]):
        clock.now = here
        beat = Beat(rank=2, pid=7, phase="train", at=there, since=0.0)
        far.send(State(now=there, beats=[beat], gone=[], processes={}))
        far.send(Taken(text=f"{number}"))
        for _ in Clock().polls(10, first=0.005, most=0.02):
            if link.stacks == f"{number}":
                break
        assert [round(each.at, 3) for each in link.beats] == [here]
    far.close()
    link.close()


@pytest.mark.parametrize(("slept", "goes_on", "node"), [(20.0, 0.0, "a"), (0.0, 0.0, "b"), (20.0, 60.0, "b")])
def test_who_stood_still_is_to_blame(monkeypatch: pytest.MonkeyPatch, slept: float, goes_on: float, node: str) -> None:
    """Not the one that left it meanwhile; and not if that was long before."""
    monkeypatch.setattr("ckptsupervise.links.TICK", 0.01)
    near, far = pair()
    near.give(60.0)
    clock = FakeClock()
    made = Links("a", silence=6.0, clock=clock)
    link = linked(near, clock)
    made.add(link)
    try:
        for step in [slept] * (slept > 0) + [5.0] * int(goes_on / 5.0):
            clock.now += step
            for _ in Clock().polls(10, first=0.001, most=0.02):
                if made._ticked == clock.now:
                    break
            far.send(Tick())
        far.close()
        link.wait("finished", 10)
        lost = made.lost()
        assert lost is not None
        assert lost.node == node
        assert ("stood still for 20 s" in lost.message) == (node == "a")
    finally:
        made.close()


def test_a_system_without_threads_for_a_moment(own: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing)
        with socket.create_connection(split(own.address), 5) as stranger:
            assert stranger.recv(1) == b""
    assert answers(own.address, own.token, timeout=5)


def failing(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("address", ["a..b:80", f"{'x' * 70}:80", "\udcff:80", f"127.0.0.1:{'9' * 99}"])
def test_what_is_recorded_as_an_address_and_is_none_stops_nobody(address: str) -> None:
    assert not answers(address, new_token(), timeout=1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "a..b", "\udcff"])  # noqa: S104 - refused
def test_addresses_that_others_cannot_use(host: str) -> None:
    with pytest.raises(CallError, match="--address"):
        Endpoint(host, silence=1).close()


def test_a_name_that_stands_for_a_loopback_on_the_node_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Debian's own name does: others know it for another address, at which the node has to listen too."""
    known = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **how: Any) -> Any:
        return known("127.0.1.1" if host == "node-7" else host, *rest, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    made = Endpoint("node-7", silence=1)
    try:
        host, port = split(made.address)
        assert host == "node-7"
        assert answers(joined("127.0.0.1", port), made.token, timeout=5)
    finally:
        made.close()


def test_who_has_joined_what_is_over_is_let_go(own: Endpoint) -> None:
    channel = join(own)
    for _ in Clock().polls(10, first=0.01, most=0.05):
        assert own.take(4, OTHER) is None
        with suppress(LinkLost):
            channel.send(Tick())
            continue
        break
    with pytest.raises(LinkLost, match="link"):
        channel.receive()
    channel.close()


def test_room_is_for_who_waits_still() -> None:
    answered: list[Any] = ["node c is there", "", StoreUnavailable("away"), "node d is there"]

    def look() -> str:
        found = answered.pop(0) if len(answered) > 1 else answered[0]
        if isinstance(found, CheckpointError):
            raise found
        return found

    seen = []
    with Room(look, pause=0.05) as room:
        for _ in Clock().polls(10, first=0.001, most=0.002):
            if not seen or seen[-1] != room.why():
                seen.append(room.why())
            if seen[-1] == "node d is there":
                break
    assert seen == ["", "node c is there", "", "node d is there"]


def test_a_link_that_has_finished_is_not_lost_when_its_node_leaves() -> None:
    """Before the leader has seen to its own ranks, a sign of life may find nobody there any more."""
    near, far = pair()
    link = linked(near, Clock())
    far.send(Finished(state=State(now=0.0, beats=[], gone=[], processes={}, over=True), left=[], words={}))
    link.wait("finished", PATIENT)
    with pytest.raises(LinkLost, match="closed the link"):
        far.receive()
    far.close()
    for _ in range(3):
        link.tell(Tick())
    assert link.lost is None
    link.close()


def test_who_joins_an_endpoint_that_has_closed_is_turned_away(own: Endpoint) -> None:
    near, far = pair()
    own.close()
    with pytest.raises(LinkLost, match="nobody listens"):
        own._let_in(Join(nonce=OTHER, attempt=3), near)
    near.close()
    far.close()


def test_this_node_has_an_address() -> None:
    assert endpoint.own_host()
    assert 0 < engine.free_port("127.0.0.1") < 65536


def test_a_lost_node_is_the_reason_unless_a_rank_had_failed_before() -> None:
    lost = LostNode(node="b", since=10.0, message="no sign of life for 6 s")
    after = ending([Exit(rank=0, status=1, at=10.2)], [], lost=lost)
    assert (after.kind, after.node, after.rank, after.outcome) == ("node", "b", None, "failed")
    before = ending([Exit(rank=0, status=1, at=9.0)], [], lost=lost)
    assert (before.kind, before.rank) == ("exit", 0)
    assert ending([], [], lost=lost, stopping="preempted").outcome == "preempted"
    assert ending([Exit(rank=0, status=0, at=11.0)], [], lost=lost).kind == "node"


def test_any_number_of_strangers_that_say_nothing_keep_out_nobody(own: Endpoint) -> None:
    address = split(own.address)
    strangers = [socket.create_connection(address) for _ in range(endpoint.GREETINGS + 20)]
    try:
        assert answers(own.address, own.token, timeout=PATIENT)
    finally:
        for each in strangers:
            each.close()


def test_stacks_of_nodes_that_do_not_answer(tmp_path: Path) -> None:
    """All together are waited for no longer than one, and no more ranks are asked for than on one node."""
    clock, asked = FakeClock(), []
    told: dict[str, Any] = {"stacks": "", "tell": asked.append, "wait": lambda _, seconds: clock.sleep(seconds)}
    made = [SimpleNamespace(member=SimpleNamespace(node=f"n{n}"), ranks=range(n, n + 1), **told) for n in range(20)]
    links: Any = SimpleNamespace(all=lambda: made)
    local: Any = None
    text = RunningOnNodes(local, links, clock=clock).stacks({rank: 100 + rank for rank in range(20)}, tmp_path)
    assert clock.now == stacks.SECONDS + stacks.PATIENCE + 1.0
    assert [each.ranks for each in asked] == [[rank] for rank in range(stacks.MOST)]
    assert text.startswith("on n0:\nnot told")


def test_beats_of_a_node_that_has_no_room_for_them(tmp_path: Path) -> None:
    states = {name: State(now=0.0, beats=[], gone=[], processes={}) for name in "bc"}
    links: Any = SimpleNamespace(
        all=lambda: [SimpleNamespace(member=SimpleNamespace(node=name), state=state) for name, state in states.items()]
    )
    local: Any = None
    running = RunningOnNodes(local, links, clock=Clock())
    assert running.unusable(tmp_path) == ""
    states["c"] = State(now=0.0, beats=[], gone=[], processes={}, unusable="no room")
    assert running.unusable(tmp_path) == "on c: no room"
    assert "No such file" in running.unusable(tmp_path / "gone")
