"""The server and the client that copy parts from node to node: what they give each other, and what they make of a bad one."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from ckptcore import copywire, wire
from ckptcore.copywire import Gone, Offer, Server, asked
from ckptcore.history import read_run
from ckptcore.names import GenerationId
from ckptcore.nodes import Held, Local, NodeStore
from ckptcore.wire import Broken, Place
from tests.ckptcore.cluster import Cluster
from tests.ckptcore.support import FakeClock, memory_directory
from tests.threads import no_thread_stays

HERE = ("127.0.0.1",)
OTHER = GenerationId(1, 20, 1)


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    with no_thread_stays():
        yield


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[NodeStore, Held]]:
    """A node store, and a part that is whole there."""
    with memory_directory() as folder:
        cluster = Cluster(folder)
        cluster.save(10)
        (held,) = cluster.held(0)
        yield NodeStore.of(Local(cluster.node(0)), read_run(cluster.store).run_id, FakeClock()), held


@pytest.fixture
def held(kept: tuple[NodeStore, Held]) -> Held:
    return kept[1]


@pytest.fixture
def offer() -> Offer:
    return Offer()


@pytest.fixture
def server(kept: tuple[NodeStore, Held], offer: Offer) -> Iterator[Server]:
    server = Server(offer, kept[0].store, HERE, local=True)
    yield server
    server.close()


def got(place: Place, held: Held) -> tuple[bytes, list[bytes]]:
    """The receipt, and the files."""
    with asked(place, held.generation) as coming:
        return coming.data, [b"".join(map(bytes, coming.pieces(file.size))) for file in held.files]


def test_a_part_comes_as_it_lies_on_the_node(kept: tuple[NodeStore, Held], offer: Offer, server: Server) -> None:
    node, held = kept
    offer.put(held)
    files = [node.store.get(held.prefix + file.path) for file in held.files]
    assert len(files) > 1
    assert got(server.place, held) == (held.data, files)


def test_what_is_larger_than_a_piece(
    kept: tuple[NodeStore, Held], offer: Offer, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (copywire, wire):
        monkeypatch.setattr(module, "PIECE", 100)
    offer.put(kept[1])
    data, files = got(server.place, kept[1])
    assert data == kept[1].data
    assert [len(each) for each in files] == [file.size for file in kept[1].files]


def test_who_asks_before_it_is_whole_waits(held: Held, offer: Offer, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PULSE", 0.01)
    results: list[Any] = []
    waiting = threading.Event()
    real = copywire.Offer.wait

    def wait(self: Offer, generation: GenerationId, seconds: float) -> Any:
        waiting.set() if seconds else None
        return real(self, generation, seconds)

    monkeypatch.setattr(copywire.Offer, "wait", wait)
    thread = threading.Thread(target=lambda: results.append(got(server.place, held)))
    thread.start()
    assert waiting.wait(30)
    offer.put(held)
    thread.join(30)
    assert results
    assert results[0][0] == held.data


@pytest.mark.parametrize("how", ["ended", "a later one ended", "a later one is whole", "closed"])
def test_what_will_not_come_is_said(held: Held, offer: Offer, server: Server, how: str) -> None:
    asked_for = GenerationId(1, 5, 1) if how == "a later one is whole" else held.generation
    if how == "closed":
        offer.close()
    elif how == "a later one is whole":
        offer.put(held)
    else:
        offer.put(held)
        offer.end(held.generation if how == "ended" else OTHER)
    with pytest.raises(Gone), asked(server.place, asked_for):
        pytest.fail("it came")


def test_a_file_that_changes_meanwhile_ends_the_connection(offer: Offer) -> None:
    with memory_directory() as folder:
        cluster = Cluster(folder)
        cluster.save(10)
        (own,) = cluster.held(0)
        node = NodeStore.of(Local(cluster.node(0)), own.receipt.run_id, FakeClock())
        offer.put(own)
        with closing(Server(offer, node.store, HERE, local=True)) as server:
            for path in cluster.node(0).rglob("d/*"):
                path.write_bytes(path.read_bytes()[:-1])
            with pytest.raises((Broken, OSError)):
                got(server.place, own)


# Who may ask, and who may answer


def test_who_does_not_know_the_token_gets_nothing(held: Held, offer: Offer, server: Server) -> None:
    offer.put(held)
    with pytest.raises(Broken, match="not that rank"), asked(replace(server.place, token=bytes(32)), held.generation):
        pytest.fail("it came")
    with closing(socket.create_connection(("127.0.0.1", server.place.port), 5)) as raw:
        raw.sendall(wire.HELLO.pack(copywire._MAGIC, bytes(32)))
        wire.receive(raw, wire.PROOFS.size)
        with suppress(OSError):
            raw.sendall(bytes(32) + copywire._REQUEST.pack(1, 10, 1))
            assert raw.recv(1) == b""
    assert got(server.place, held)[0] == held.data


def test_the_server_of_chunks_is_not_that_of_copies(server: Server) -> None:
    with pytest.raises((Broken, OSError)):
        wire.connect(server.place, b"ckpt chunks 1\r\n\0")


@pytest.mark.parametrize("request_", [(0, 10, 1), (1, 1 << 62, 1), (1, 10, 0)])
def test_a_request_for_no_generation_is_hung_up_on(held: Held, offer: Offer, server: Server, request_: tuple[int, ...]) -> None:
    offer.put(held)
    with closing(wire.connect(server.place, copywire._MAGIC)) as connection:
        connection.sendall(struct.pack("!IQI", *request_))
        with pytest.raises((Broken, OSError)):
            wire.receive(connection, 1)
    assert got(server.place, held)[0] == held.data


@pytest.mark.parametrize("seed", range(8))
def test_noise_harms_no_server(held: Held, offer: Offer, server: Server, seed: int) -> None:
    offer.put(held)
    noise = hashlib.shake_128(bytes([seed])).digest(8 * (seed + 1))
    with closing(socket.create_connection(("127.0.0.1", server.place.port), 5)) as raw, suppress(OSError):
        raw.sendall(noise)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1 << 10):
            pass
    assert got(server.place, held)[0] == held.data


# A server that is not what it should be


def scripted(frames: bytes) -> tuple[Place, threading.Thread]:
    """A server of one client that knows the token, and then sends `frames` and ends."""
    place, listener = Place(hosts=HERE, port=0, token=b"t" * 32), socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            _, theirs = wire.HELLO.unpack(wire.receive(connection, wire.HELLO.size))
            connection.sendall(wire.PROOFS.pack(bytes(32), wire.proof(place.token, b"server", theirs, bytes(32))))
            wire.receive(connection, 32 + copywire._REQUEST.size)
            connection.sendall(frames)

    thread = threading.Thread(target=serve)
    thread.start()
    return replace(place, port=listener.getsockname()[1]), thread


def frame(kind: int, nbytes: int) -> bytes:
    return copywire._FRAME.pack(kind, nbytes)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (b"", "ended the connection"),
        (frame(0, 0) * 3, "ended the connection"),
        (frame(0, 1), "something else"),
        (frame(1, 1), "something else"),
        (frame(3, 0), "something else"),
        (frame(2, (1 << 30) + 1), "something else"),
        (frame(2, 1 << 30) + b"abc", "ended the connection"),
        (frame(2, 3) + b"ab", "ended the connection"),
        (frame(0, 0) + frame(1, 0), "will not come"),
    ],
)
def test_what_a_server_sends_is_checked(frames: bytes, reason: str) -> None:
    place, thread = scripted(frames)
    with pytest.raises(Broken, match=reason), asked(place, OTHER):
        pytest.fail("it came")
    thread.join(30)


def test_files_that_end_early() -> None:
    place, thread = scripted(frame(2, 1) + b"x" + b"abc")
    with asked(place, OTHER) as coming:
        assert coming.data == b"x"
        with pytest.raises(Broken, match="ended the connection"):
            list(coming.pieces(4))
    thread.join(30)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ANSWER_TIMEOUT", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        place = Place(hosts=HERE, port=silent.getsockname()[1], token=bytes(32))
        with pytest.raises(Broken, match="timed out"), asked(place, OTHER):
            pytest.fail("it came")


def test_where_a_server_was_looked_for_is_said(server: Server) -> None:
    server.close()
    with pytest.raises(Broken, match=rf"cannot be reached at port {server.place.port} of 127\.0\.0\.1: .*refused"):
        wire.connect(server.place, copywire._MAGIC)
    with pytest.raises(Broken, match=r"of a\.\.b: .*idna.*; 127\.0\.0\.1: .*refused"):
        wire.connect(replace(server.place, hosts=("a..b", "127.0.0.1")), copywire._MAGIC)


def test_a_server_without_descriptors_does_not_spin(
    kept: tuple[NodeStore, Held], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PAUSE", 1e6)
    tried: list[int] = []
    failed = threading.Event()

    def accept(_: socket.socket) -> None:
        tried.append(1)
        failed.set()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    server = Server(offer, kept[0].store, HERE, local=True)
    assert failed.wait(30)
    server.close()
    assert tried == [1]


def test_a_server_that_closes_ends_its_clients(server: Server) -> None:
    failed: list[Exception] = []
    ready = threading.Event()

    def client() -> None:
        try:
            with asked(server.place, OTHER, lambda _: ready.set()):
                pytest.fail("it came")
        except (Broken, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    assert ready.wait(30)
    server.close()
    thread.join(30)
    assert len(failed) == 1
