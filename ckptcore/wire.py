"""Connections between the ranks of one job over TCP, on which both sides have proven that they belong to it.

| who | sends |
| --- | --- |
| client | what it speaks, and a nonce |
| server | a nonce, and the proof that it knows the token of that server, which only ranks of the job do |
| client | the same proof of its own, then what its protocol says (`ckptcore.sharewire`, `ckptcore.copywire`) |

Every message has a length that the receiver knows beforehand, and every wait has a deadline. Nothing that comes is believed.
Whatever goes wrong ends the connection.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ckptcore.errors import CheckpointError

TOKEN_BYTES = 32
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 20.0
"""Seconds without a byte after which the other side counts as dead."""
PULSE = 1.0
"""Seconds between two signs of life of a server that has nothing else to send."""
CONNECTIONS = 256
"""The most clients that a server answers at a time; others wait."""
PAUSE = 0.1
"""Seconds until a server listens again after an error."""
PIECE = 1 << 20
"""Bytes that are sent, or received, at a time."""

HELLO = struct.Struct("!16s32s")
PROOFS = struct.Struct("!32s32s")


class Broken(Exception):
    """A connection that is of no use any longer, and why."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank's server is, and what proves that it is that server. Without a port there is none."""

    hosts: tuple[str, ...]
    port: int
    token: bytes

    def told(self) -> list[Any]:
        """What a message to the other ranks says of it."""
        return [list(self.hosts), self.port, self.token.hex()]

    @classmethod
    def of(cls, told: Any) -> Place | None:
        """What such a message says; None for a rank that has no server."""
        return None if told is None else cls(hosts=tuple(told[0]), port=told[1], token=bytes.fromhex(told[2]))


class Server:
    """Calls `answer(connection)` in a thread for each client that speaks `magic` and knows the token, until it is closed.

    `hosts` are the names under which other ranks may reach this machine; `local`: all of them are on it. Raises `OSError` if it
    cannot listen.
    """

    def __init__(self, magic: bytes, answer: Callable[[socket.socket], object], hosts: tuple[str, ...], *, local: bool) -> None:
        self._magic, self._answer = magic, answer
        self._listener = _listen(hosts[0] if local else None)
        self.place = Place(hosts=hosts, port=self._listener.getsockname()[1], token=secrets.token_bytes(TOKEN_BYTES))
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, name="wire-accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End all connections and threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
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
            try:
                self._begin(self._listener.accept()[0])
            except TimeoutError:
                continue
            except OSError:  # a client that is gone again, the end, or too many open files, as there will be in a moment
                self._pause()

    def _has_room(self) -> bool:
        """Wait until one more client may be answered; whether the server goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._connections) < CONNECTIONS)
            return not self._closed

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, PAUSE)

    def _begin(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="wire-serve", daemon=True)
        with self._changed:
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads for us
            self._drop(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError, Broken, MemoryError, CheckpointError):
                connection.settimeout(ANSWER_TIMEOUT)
                self._prove(connection)
                self._answer(connection)
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._changed:  # so that nobody shuts down a descriptor that is another's by then
            del self._connections[connection]
            connection.close()
            self._changed.notify_all()

    def _prove(self, connection: socket.socket) -> None:
        """Hear that the client belongs to the job, and show it that this is the server that it means."""
        magic, theirs = HELLO.unpack(receive(connection, HELLO.size))
        if magic != self._magic:
            raise Broken("another protocol")
        ours = secrets.token_bytes(32)
        connection.sendall(PROOFS.pack(ours, proof(self.place.token, b"server", theirs, ours)))
        if not hmac.compare_digest(receive(connection, 32), proof(self.place.token, b"client", theirs, ours)):
            raise Broken("who asks does not know the token")


def connect(place: Place, magic: bytes) -> socket.socket:
    """A connection to the server, which has proven to be that server and knows that we belong to the job.

    Raises `Broken`.
    """
    reasons = []
    for host in place.hosts:
        try:
            connection = socket.create_connection((host, place.port), CONNECT_TIMEOUT)
        except (OSError, UnicodeError) as error:
            reasons.append(f"{host}: {error}")
            continue
        try:
            connection.settimeout(ANSWER_TIMEOUT)
            _introduce(connection, magic, place.token)
        except (OSError, Broken) as error:  # another machine under that address, perhaps
            connection.close()
            reasons.append(f"{host}: {error}")
        else:
            return connection
    raise Broken(f"it cannot be reached at port {place.port} of {'; '.join(reasons) or 'no address'}")


def _introduce(connection: socket.socket, magic: bytes, token: bytes) -> None:
    ours = secrets.token_bytes(32)
    connection.sendall(HELLO.pack(magic, ours))
    theirs, shown = PROOFS.unpack(receive(connection, PROOFS.size))
    if not hmac.compare_digest(shown, proof(token, b"server", ours, theirs)):
        raise Broken("what answers is not that rank")
    connection.sendall(proof(token, b"client", ours, theirs))


def proof(token: bytes, who: bytes, one: bytes, other: bytes) -> bytes:
    """What only who knows the token can say after these two nonces."""
    return hmac.digest(token, who + one + other, "sha256")


def receive(connection: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes. Raises `Broken` when the connection ends before."""
    data = bytearray(count)
    fill(connection, memoryview(data))
    return data


def fill(connection: socket.socket, view: memoryview) -> None:
    """Receive exactly as many bytes as `view` has. Raises `Broken` when the connection ends before."""
    while view:
        got = connection.recv_into(view)
        if not got:
            raise Broken("it ended the connection")
        view = view[got:]


def pieces(connection: socket.socket, count: int) -> Iterator[memoryview]:
    """`count` bytes as they come, in memory that the next piece takes again: a count alone makes nobody allocate."""
    buffer = memoryview(bytearray(min(count, PIECE)))
    while count:
        piece = buffer[: min(count, PIECE)]
        fill(connection, piece)
        yield piece
        count -= len(piece)


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
    found = [] if coordinator is None else towards(coordinator)
    if found and _is_loopback(found[0]):
        if coordinator in ("localhost", found[0]) or _is_loopback(coordinator):
            return tuple(found), True
        found = [coordinator]
    with suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    return tuple(dict.fromkeys(name for name in found if name)), False


def towards(host: str) -> list[str]:
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
