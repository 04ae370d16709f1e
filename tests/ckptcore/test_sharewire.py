"""The server and the client that pass chunks on: what they give each other, and what they make of a bad one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from ckptcore import sharewire, wire
from ckptcore.sharewire import Server, Shelf, fetch
from ckptcore.wire import Broken, Place, reached_at
from tests.threads import no_thread_stays

HERE = ("127.0.0.1",)


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    with no_thread_stays():
        yield


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[Server]:
    server = Server(shelf, HERE, local=True)
    yield server
    server.close()


def got(place: Place, sizes: dict[int, int]) -> dict[int, bytes]:
    return {number: bytes(data) for number, data in fetch(place, sizes)}


def hung_up(connection: socket.socket) -> bool:
    """Whether the other side has ended the connection without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_chunks_come_whole_in_the_order_in_which_they_are_there(shelf: Shelf, server: Server) -> None:
    large = bytes(range(256)) * (3 << 12)
    shelf.expect([1, 2, 3])
    shelf.put(2, lambda: large)
    coming = fetch(server.place, {1: 4, 2: len(large)})
    number, data = next(coming)
    assert (number, bytes(data)) == (2, large)
    shelf.put(1, lambda: b"abcd")
    assert [(number, bytes(data)) for number, data in coming] == [(1, b"abcd")]


def test_several_clients_at_a_time(shelf: Shelf, server: Server) -> None:
    shelf.expect(range(8))
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(got(server.place, dict.fromkeys(range(8), 2)))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for number in range(8):
        shelf.put(number, lambda number=number: f"{number:02}".encode())
    for thread in threads:
        thread.join(30)
    assert results == [{number: f"{number:02}".encode() for number in range(8)}] * 5


def test_clients_beyond_the_most_wait_for_their_turn(shelf: Shelf, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONNECTIONS", 1)
    shelf.expect([0, 1])
    shelf.put(0, lambda: b"a")
    first = fetch(server.place, {0: 1, 1: 1})
    assert next(first) == (0, b"a")
    second: list[Any] = []
    thread = threading.Thread(target=lambda: second.append(got(server.place, {0: 1})))
    thread.start()
    shelf.put(1, lambda: b"b")
    assert list(first) == [(1, b"b")]
    thread.join(30)
    assert second == [{0: b"a"}]


def test_what_will_be_there_is_waited_for_until_it_is_known_what_that_is(shelf: Shelf) -> None:
    assert shelf.next([7], 0.0) == (None, None, 0)
    shelf.expect([1])
    assert shelf.next([7], 0.0) == (7, None, 0)
    assert shelf.next([1], 0.0) == (None, None, 0)


def test_a_client_may_come_before_it_is_known_what_there_will_be(shelf: Shelf, server: Server) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(got(server.place, {7: 3})))
    thread.start()
    shelf.expect([7])
    shelf.put(7, lambda: b"xyz")
    thread.join(30)
    assert results == [{7: b"xyz"}]


@pytest.mark.parametrize("end", [Shelf.end, lambda _: None])
def test_what_will_not_come_is_said(shelf: Shelf, server: Server, end: Callable[[Shelf], None]) -> None:
    """Of a chunk that the server's rank does not own, or could not read."""
    shelf.expect([1])
    shelf.put(1, lambda: b"a")
    end(shelf)
    found = []
    with pytest.raises(Broken, match="could not read 1 of them itself"):
        found.extend(fetch(server.place, {1: 1, 2: 5}))
    assert found in ([], [(1, b"a")])


# Who may ask, and who may answer


def test_who_does_not_know_the_token_gets_nothing(shelf: Shelf, server: Server) -> None:
    shelf.expect([0])
    shelf.put(0, lambda: b"secret")
    with pytest.raises(Broken, match="not that rank"):
        got(replace(server.place, token=bytes(32)), {0: 6})
    with closing(socket.create_connection(("127.0.0.1", server.place.port), 5)) as raw:
        raw.sendall(wire.HELLO.pack(sharewire._MAGIC, bytes(32)))
        wire.receive(raw, wire.PROOFS.size)
        raw.sendall(bytes(32) + struct.pack("!II", 1, 0))
        assert hung_up(raw)
    assert got(server.place, {0: 6}) == {0: b"secret"}


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64), b"\0"])
def test_who_speaks_something_else_is_hung_up_on(shelf: Shelf, server: Server, sent: bytes) -> None:
    shelf.expect([0])
    shelf.put(0, lambda: b"a")
    with closing(socket.create_connection(("127.0.0.1", server.place.port), 5)) as raw:
        with suppress(OSError):  # it may have hung up by now
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
        assert hung_up(raw)
    assert got(server.place, {0: 1}) == {0: b"a"}


def test_nobody_listens() -> None:
    with closing(socket.socket()) as taken:  # the port stays taken: nobody else comes to listen there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Broken, match="refused"):
            got(Place(hosts=HERE, port=port, token=bytes(32)), {0: 1})
    with pytest.raises(Broken, match="no address"):
        got(Place(hosts=(), port=port, token=bytes(32)), {0: 1})


def test_the_next_address_is_tried(shelf: Shelf, server: Server) -> None:
    shelf.expect([0])
    shelf.put(0, lambda: b"a")
    assert got(replace(server.place, hosts=("127.0.0.9", "127.0.0.1")), {0: 1}) == {0: b"a"}


# A server that is not what it should be


def scripted(place: Place, frames: bytes) -> tuple[Place, threading.Thread]:
    """A server of one client that knows the token, and then sends `frames` and ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            _, theirs = wire.HELLO.unpack(wire.receive(connection, wire.HELLO.size))
            connection.sendall(wire.PROOFS.pack(bytes(32), wire.proof(place.token, b"server", theirs, bytes(32))))
            wire.receive(connection, 32 + 4 + 4)
            connection.sendall(frames)

    thread = threading.Thread(target=serve)
    thread.start()
    return replace(place, port=listener.getsockname()[1]), thread


def frame(kind: int, number: int, nbytes: int) -> bytes:
    return sharewire._FRAME.pack(kind, number, nbytes)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (b"", "ended the connection"),
        (frame(0, 5, 8) + b"abc", "ended the connection"),
        (frame(0, 5, 9) + b"123456789", "something else"),
        (frame(0, 4, 8) + b"12345678", "something else"),
        (frame(0, 5, 1 << 60), "something else"),
        (frame(1, 4, 0), "something else"),
        (frame(1, 5, 3), "something else"),
        (frame(2, 1, 7), "something else"),
        (frame(9, 5, 8), "something else"),
        (frame(1, 5, 0), "could not read 1"),
    ],
)
def test_what_a_server_sends_is_checked(frames: bytes, reason: str) -> None:
    place, thread = scripted(Place(hosts=HERE, port=0, token=b"t" * 32), frames)
    with pytest.raises(Broken, match=reason):
        got(place, {5: 8})
    thread.join(30)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ANSWER_TIMEOUT", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, pytest.raises(Broken, match="timed out"):
        got(Place(hosts=HERE, port=silent.getsockname()[1], token=bytes(32)), {0: 1})


def test_a_server_that_gets_no_further_is_given_up(shelf: Shelf, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PULSE", 0.01)
    monkeypatch.setattr(sharewire, "STALL_TIMEOUT", 0.05)
    shelf.expect([0, 1])
    shelf.put(1, lambda: b"another's")
    with pytest.raises(Broken, match=r"no new chunk for 0\.05 s"):
        got(server.place, {0: 1})


def test_a_server_that_closes_ends_its_clients(shelf: Shelf, server: Server) -> None:
    shelf.expect([0, 1])
    shelf.put(0, lambda: b"a")
    coming = fetch(server.place, {0: 1, 1: 1})
    assert next(coming) == (0, b"a")
    server.close()
    with pytest.raises((Broken, OSError)):
        next(coming)


def test_closing_waits_for_who_reads_the_results(shelf: Shelf, server: Server) -> None:
    """Whoever has closed it may change them."""
    began, go_on = threading.Event(), threading.Event()

    def take() -> bytes:
        began.set()
        assert go_on.wait(30)
        return b"a"

    def ask() -> None:
        with pytest.raises((Broken, OSError)):
            got(server.place, {0: 1})

    shelf.expect([0])
    shelf.put(0, take)
    client = threading.Thread(target=ask)
    client.start()
    assert began.wait(30)
    closing_ = threading.Thread(target=server.close)
    closing_.start()
    client.join(30)  # its connection has ended, so the server is about to wait
    assert closing_.is_alive()
    go_on.set()
    closing_.join(30)
    assert not closing_.is_alive()


def test_a_connection_can_be_shut_from_another_thread(shelf: Shelf, server: Server) -> None:
    shelf.expect([0])
    opened: list[socket.socket] = []
    failed: list[Exception] = []
    ready = threading.Event()

    def client() -> None:
        try:
            list(fetch(server.place, {0: 1}, lambda connection: (opened.append(connection), ready.set())))
        except (Broken, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    assert ready.wait(30)
    wire.shut(opened[0])
    thread.join(30)
    assert len(failed) == 1


def test_a_client_that_goes_away_harms_nobody(shelf: Shelf, server: Server) -> None:
    shelf.expect([0, 1])
    shelf.put(0, lambda: bytes(1 << 22))
    coming = fetch(server.place, {0: 1 << 22, 1: 1})
    next(coming)
    coming.close()  # pyright: ignore[reportAttributeAccessIssue]
    shelf.put(1, lambda: b"b")
    assert got(server.place, {1: 1}) == {1: b"b"}


# Addresses


def test_a_job_on_one_machine_stays_on_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: pytest.fail("nobody has to be asked"))
    assert reached_at("127.0.0.1") == (("127.0.0.1",), True)
    assert reached_at("localhost")[1] is True


def test_a_coordinator_here_is_known_by_its_name_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems say that their own name is a loopback."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **more: real("127.0.1.1", *rest, **more))
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    assert reached_at("node-0.cluster") == (("node-0.cluster", "127.0.1.1"), False)


def test_without_a_coordinator_the_name_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.2.3")
    assert reached_at(None) == (("10.1.2.3",), False)


def test_a_machine_that_knows_no_address_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert reached_at("nowhere.invalid") == ((), False)


def test_all_addresses_are_listened_to_where_other_machines_must_reach_it(shelf: Shelf) -> None:
    server = Server(shelf, HERE, local=False)
    shelf.expect([0])
    shelf.put(0, lambda: b"a")
    assert got(server.place, {0: 1}) == {0: b"a"}
    assert ip_address(server._listener.getsockname()[0]).is_unspecified
    server.close()
