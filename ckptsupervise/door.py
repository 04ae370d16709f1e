"""Where the supervisor of a node is reached by those of others: it says that it lives, and takes in who joins what it leads."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from ckptcore.errors import CallError
from ckptsupervise.wire import Channel, Join, LinkLost, Ping, Pong, joined

GREETING = 5.0
"""Seconds in which whoever connects has to say what for."""


class Door:
    """Listens at a free port of `host`, as long as the supervisor with `nonce` lives. Raises `CallError` for no own address.

    `silence`: seconds after which a link that says nothing is cut.
    """

    def __init__(self, host: str, nonce: str, *, silence: float) -> None:
        self._nonce, self._silence = nonce, silence
        self._joins: dict[tuple[int, str], Channel] = {}
        self._lock = threading.Lock()
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        except OSError as error:
            raise CallError(f"--address {host}: this node cannot listen there: {error.strerror or error}") from error
        self.address = joined(host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._thread.start()

    def take(self, attempt: int, nonce: str) -> Channel | None:
        """The link to a supervisor that has joined `attempt`; None if it has not come yet."""
        with self._lock:
            return self._joins.pop((attempt, nonce), None)

    def close(self) -> None:
        """Listen no longer; links that nobody took are closed."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(GREETING)
        with self._lock:
            for channel in self._joins.values():
                channel.close()
            self._joins.clear()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._greet, args=(connection,), name="greeting", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        channel = Channel(connection, GREETING)
        try:
            said = channel.receive()
            if isinstance(said, Ping) and said.to == self._nonce:
                channel.send(Pong())
            if isinstance(said, Join) and said.to == self._nonce:
                connection.settimeout(self._silence)
                channel.silence = self._silence
                self._let_in(said, channel)
                return
        except LinkLost:
            pass  # who says nothing that makes sense is not waited for
        channel.close()

    def _let_in(self, said: Join, channel: Channel) -> None:
        with self._lock:
            before = self._joins.pop((said.attempt, said.nonce), None)
            self._joins[said.attempt, said.nonce] = channel
        if before is not None:
            before.close()


def answers(address: str, nonce: str, *, timeout: float) -> bool:
    """Whether the supervisor with that nonce lives at `address`."""
    try:
        channel = Channel.connect(address, timeout=timeout, silence=timeout)
    except LinkLost:
        return False
    try:
        channel.send(Ping(to=nonce))
        return isinstance(channel.receive(), Pong)
    except LinkLost:
        return False
    finally:
        channel.close()


def own_host() -> str:
    """The address of this node that its route to other networks begins at; the host's name where there is no such route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return socket.gethostname()
        return probe.getsockname()[0]


def free_port(host: str) -> int:
    """A port of `host` that nobody listens on at the moment."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
