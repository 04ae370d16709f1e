"""Chunks from one rank of a job to another over TCP: a small server, and its client (docs/adr/0024).

| who | sends |
| --- | --- |
| client | what it speaks, and a nonce |
| server | a nonce, and the proof that it knows the token of that server, which only ranks of the job do |
| client | the same proof of its own, then the numbers of the chunks that it wants |
| server | each chunk as soon as it has it, or that it will not have it; meanwhile, once a second, how many it has by now |

Every message has a length that the receiver knows beforehand, and every wait has a deadline. Nothing that comes is believed: who
asked compares a chunk with its digest. Whatever goes wrong ends the connection.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

TOKEN_BYTES = 32
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 20.0
"""Seconds without a byte after which the other side counts as dead."""
STALL_TIMEOUT = 60.0
"""Seconds without a new chunk of a server, for whomever, after which it is not waited for."""
PULSE = 1.0
CONNECTIONS = 256
"""The most clients that a server answers at a time; others wait."""

_MAGIC = b"ckpt chunks 1\r\n\0"
_HELLO = struct.Struct("!16s32s")
_PROOFS = struct.Struct("!32s32s")
_COUNT = struct.Struct("!I")
_FRAME = struct.Struct("!BIQ")
_CHUNK, _GONE, _PULSE = range(3)
_PIECE = 1 << 20

Take = Callable[[], Any]
"""Gives the bytes of a chunk, as an object with a buffer of them."""


class Broken(Exception):
    """A connection that is of no use any longer, and why."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank's server is, and what proves that it is that server. Without a port there is none."""

    hosts: tuple[str, ...]
    port: int
    token: bytes


class Shelf:
    """What a server has to give: chunks by number, each from when it is there. Used by several threads."""

    def __init__(self) -> None:
        self._expected: frozenset[int] | None = None
        self._takes: dict[int, Take] = {}
        self._over = False
        self._changed = threading.Condition()

    def expect(self, numbers: Collection[int]) -> None:
        """Say what will be there; until then, whoever asks waits."""
        with self._changed:
            self._expected = frozenset(numbers)
            self._changed.notify_all()

    def put(self, number: int, take: Take) -> None:
        """A chunk is there. One that is not expected is left out."""
        with self._changed:
            if self._expected is not None and number in self._expected:
                self._takes[number] = take
                self._changed.notify_all()

    def end(self) -> None:
        """What is not there by now will not come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def next(self, wanted: Collection[int], seconds: float) -> tuple[int | None, Take | None, int]:
        """One of `wanted`, how to take it (None: it will not come), and how many there are; no number if there is none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._found(wanted) is not None, seconds)
            number = self._found(wanted)
            return number, None if number is None else self._takes.get(number), len(self._takes)

    def _found(self, wanted: Collection[int]) -> int | None:
        there = next((number for number in wanted if number in self._takes), None)
        if there is not None or (self._expected is None and not self._over):
            return there
        return next((number for number in wanted if self._over or number not in (self._expected or ())), None)


class Server:
    """Hands out what lies on `shelf` to whoever knows its token, until it is closed. Raises `OSError` if it cannot listen.

    `hosts` are the names under which other ranks may reach this machine; `local`: all of them are on it.
    """

    def __init__(self, shelf: Shelf, hosts: tuple[str, ...], *, local: bool) -> None:
        self._shelf = shelf
        self._listener = _listen(hosts[0] if local else None)
        self.place = Place(hosts=hosts, port=self._listener.getsockname()[1], token=secrets.token_bytes(TOKEN_BYTES))
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, name="share-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End all connections and threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._shelf.end()
        shut(self._listener)
        self._accepting.join()  # so that there are no more connections
        self._listener.close()
        with self._changed:
            ending = dict(self._connections)
            for connection in ending:
                shut(connection)
        for thread in ending.values():
            thread.join()

    def _accept(self) -> None:
        self._listener.settimeout(PULSE)  # for systems where shutting it down wakes nobody
        while self._has_room():
            with suppress(OSError):  # a client that is gone again, too many open files, the end
                self._begin(self._listener.accept()[0])

    def _has_room(self) -> bool:
        """Wait until one more client may be answered; whether the server goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._connections) < CONNECTIONS)
            return not self._closed

    def _begin(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="share-serve", daemon=True)
        with self._changed:
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads for us
            self._drop(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError, Broken, MemoryError):
                connection.settimeout(ANSWER_TIMEOUT)
                self._answer(connection)
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._changed:  # so that nobody shuts down a descriptor that is another's by then
            del self._connections[connection]
            connection.close()
            self._changed.notify_all()

    def _answer(self, connection: socket.socket) -> None:
        magic, theirs = _HELLO.unpack(_receive(connection, _HELLO.size))
        if magic != _MAGIC:
            raise Broken("another protocol")
        ours = secrets.token_bytes(32)
        connection.sendall(_PROOFS.pack(ours, _proof(self.place.token, b"server", theirs, ours)))
        if not hmac.compare_digest(_receive(connection, 32), _proof(self.place.token, b"client", theirs, ours)):
            raise Broken("who asks does not know the token")
        wanted: dict[int, None] = {}
        (count,) = _COUNT.unpack(_receive(connection, _COUNT.size))
        for _ in range(count):  # one by one: a count alone must not make us allocate
            wanted[_COUNT.unpack(_receive(connection, _COUNT.size))[0]] = None
        while wanted and not self._closed:
            number, take, there = self._shelf.next(wanted, PULSE)
            if number is None:
                connection.sendall(_FRAME.pack(_PULSE, there, 0))
                continue
            del wanted[number]
            _send(connection, number, take)


def _send(connection: socket.socket, number: int, take: Take | None) -> None:
    if take is None:
        connection.sendall(_FRAME.pack(_GONE, number, 0))
        return
    data = memoryview(take()).cast("B")
    connection.sendall(_FRAME.pack(_CHUNK, number, data.nbytes))
    for start in range(0, data.nbytes, _PIECE):  # the time-out is that of one call
        connection.sendall(data[start : start + _PIECE])


def fetch(
    place: Place, sizes: Mapping[int, int], opened: Callable[[socket.socket], object] = lambda _: None
) -> Iterator[tuple[int, bytearray]]:
    """The chunks of `sizes` (number → bytes) from a server, as they come.

    `opened` is told of the connection, so that somebody may `shut` it. Raises `Broken` or `OSError`, at the latest when all that
    will come has come and something is missing.
    """
    with closing(_connect(place)) as connection:
        opened(connection)
        connection.sendall(_COUNT.pack(len(sizes)) + b"".join(_COUNT.pack(number) for number in sizes))
        yield from _chunks(connection, dict(sizes))


def _chunks(connection: socket.socket, left: dict[int, int]) -> Iterator[tuple[int, bytearray]]:
    moved, known, gone = time.monotonic(), 0, 0
    while left:
        kind, number, nbytes = _FRAME.unpack(_receive(connection, _FRAME.size))
        if kind == _CHUNK and left.pop(number, None) == nbytes:
            yield number, _receive(connection, nbytes)
            moved = time.monotonic()
        elif kind == _GONE and nbytes == 0 and left.pop(number, None) is not None:
            gone += 1
        elif kind == _PULSE and nbytes == 0:
            moved, known = (time.monotonic(), number) if number > known else (moved, known)
            if time.monotonic() - moved > STALL_TIMEOUT:
                raise Broken(f"no new chunk for {STALL_TIMEOUT:g} s")
        else:
            raise Broken("it sent something else than what it was asked for")
    if gone:
        raise Broken(f"it could not read {gone} of them itself")


def _connect(place: Place) -> socket.socket:
    """A connection to the server, which has proven to be that server and knows that we belong to the job."""
    reason: Exception = Broken("it has no address")
    for host in place.hosts:
        try:
            connection = socket.create_connection((host, place.port), CONNECT_TIMEOUT)
        except OSError as error:
            reason = error
            continue
        try:
            connection.settimeout(ANSWER_TIMEOUT)
            _introduce(connection, place.token)
        except (OSError, Broken) as error:  # another machine under that address, perhaps
            connection.close()
            reason = error
        else:
            return connection
    raise reason


def _introduce(connection: socket.socket, token: bytes) -> None:
    ours = secrets.token_bytes(32)
    connection.sendall(_HELLO.pack(_MAGIC, ours))
    theirs, proof = _PROOFS.unpack(_receive(connection, _PROOFS.size))
    if not hmac.compare_digest(proof, _proof(token, b"server", ours, theirs)):
        raise Broken("what answers is not that rank")
    connection.sendall(_proof(token, b"client", ours, theirs))


def _proof(token: bytes, who: bytes, one: bytes, other: bytes) -> bytes:
    return hmac.digest(token, who + one + other, "sha256")


def _receive(connection: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise Broken("it ended the connection")
        view = view[got:]
    return data


def shut(connection: socket.socket) -> None:
    """End a connection, or wake who listens, from another thread."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(host: str | None) -> socket.socket:
    """A socket at a port of the system's choice, of `host` or of all addresses of this machine."""
    if host is not None:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is there, and switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def reached_at(coordinator: str | None) -> tuple[tuple[str, ...], bool]:
    """Under which names and addresses other ranks may reach this machine, and whether all of them are on it.

    The likeliest first: the address from which this machine reaches the job's coordinator; where that is a loopback, the
    coordinator is here, under the name that the others know; then what the machine's own name stands for.
    """
    found = [] if coordinator is None else _towards(coordinator)
    if found and _is_loopback(found[0]):
        if coordinator in ("localhost", found[0]) or _is_loopback(coordinator):
            return tuple(found), True
        found = [coordinator]
    with suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    return tuple(dict.fromkeys(name for name in found if name)), False


def _towards(host: str) -> list[str]:
    """The address of this machine in packets to `host`; nothing if that is not known."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            return [probe.getsockname()[0]]
    return []


def _is_loopback(host: str | None) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return False
