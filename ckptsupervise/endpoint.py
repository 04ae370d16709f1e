"""Where the supervisor of a node is reached by those of others: it proves that it lives, and takes in who joins what it leads.

Whoever does not know its token is told nothing and cannot ask for anything. It may take one of `GREETINGS` places for `GREETING`
seconds, or until others have taken all: so those who say nothing keep out nobody.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from contextlib import suppress

from ckptcore.errors import CallError
from ckptcore.wire import PAUSE, towards
from ckptsupervise.handshake import GREETING, GREETING_BYTES, admit, enter, new_token
from ckptsupervise.wire import AnyMessage, Channel, Join, LinkLost, joined

GREETINGS = 256
"""How many that have connected are asked what for at a time; one more takes the place of the one that came first."""


class Endpoint:
    """Listens at a free port of `host` until it is closed. Raises `CallError` if that is no address of this node.

    `address`, `token`: what others need to reach it. `silence`: seconds after which a link that says nothing is cut.
    """

    def __init__(self, host: str, *, silence: float) -> None:
        self.token, self._silence = new_token(), silence
        self._greeted: list[socket.socket] = []
        self._joins: dict[tuple[int, str], Channel] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        try:
            family, where = _listened_at(host)
            self._listener = socket.create_server((where, 0), family=family, backlog=1024)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CallError(f"--address {host}: this node cannot listen there: {reason}") from error
        self.address = joined(host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)
        self._thread.start()

    def take(self, attempt: int, nonce: str) -> Channel | None:
        """The link to a supervisor that has joined `attempt`; None if it has not come yet. Those of older attempts are closed."""
        with self._lock:
            for key in [key for key in self._joins if key[0] < attempt]:
                self._joins.pop(key).close()
            return self._joins.pop((attempt, nonce), None)

    def close(self) -> None:
        """Listen no longer; links that nobody took are closed."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(GREETING)
        with self._lock:
            for channel in self._joins.values():
                channel.close()
            self._joins.clear()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or too many open files for a moment
                self._closed.wait(PAUSE)
                continue
            self._place(connection)
            try:
                threading.Thread(target=self._greet, args=(connection,), name="greeting", daemon=True).start()
            except RuntimeError:  # the system has no more threads for us, for a moment
                self._forget(connection)
                connection.close()
                self._closed.wait(PAUSE)

    def _place(self, connection: socket.socket) -> None:
        with self._lock:
            first = self._greeted.pop(0) if len(self._greeted) >= GREETINGS else None
            self._greeted.append(connection)
        if first is not None:
            with suppress(OSError):
                first.shutdown(socket.SHUT_RDWR)  # its thread is told

    def _greet(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, GREETING)
        except OSError:  # gone already
            connection.close()
        else:
            self._admit(channel)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._greeted = [each for each in self._greeted if each is not connection]

    def _admit(self, channel: Channel) -> None:
        try:
            admit(channel, self.token)
            self._let_in(channel.receive(GREETING_BYTES), channel)
        except LinkLost:  # who proves nothing, or has seen by now that this one lives
            channel.close()

    def _let_in(self, said: AnyMessage, channel: Channel) -> None:
        if not isinstance(said, Join):
            raise LinkLost("does not want to join")
        channel.give(self._silence)
        with self._lock:
            if self._closed.is_set():
                raise LinkLost("nobody listens any more")
            before = self._joins.pop((said.attempt, said.nonce), None)
            self._joins[said.attempt, said.nonce] = channel
        if before is not None:
            before.close()


def _listened_at(host: str) -> tuple[socket.AddressFamily, str]:
    """The family of addresses, and the name to listen at, for others to reach this node at `host`.

    A node's own name may stand for a loopback on the node itself, as Debian has it, and for another address elsewhere. Raises
    `CallError` for what stands for any address: others would look for this node on theirs.
    """
    family, _, _, _, found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    address = ipaddress.ip_address(str(found[0]).partition("%")[0])
    if address.is_unspecified:
        raise CallError(f"--address {host}: at that others do not reach this node; expected its address in the job's network")
    is_named = host not in ("localhost", str(found[0]))
    return family, "" if address.is_loopback and is_named else host


def connect(address: str, token: str, *, timeout: float) -> Channel:
    """A link to the supervisor with that token, which lives at `address`. Raises `LinkLost`; each step has `timeout` seconds."""
    channel = Channel.connect(address, timeout=timeout)
    try:
        enter(channel, token)
    except LinkLost:
        channel.close()
        raise
    return channel


def answers(address: str, token: str, *, timeout: float) -> bool:
    """Whether the supervisor with that token lives at `address`."""
    try:
        connect(address, token, timeout=timeout).close()
    except LinkLost:
        return False
    return True


def own_host() -> str:
    """The address of this node that its route to other networks begins at; the host's name where there is no such route."""
    return next(iter(towards("192.0.2.1") or towards("2001:db8::1")), socket.gethostname())
