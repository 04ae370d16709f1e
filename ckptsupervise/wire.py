"""What supervisors of several nodes say to each other: a line of JSON for each message, over one connection a node and attempt.

Each message is one of the types below. Whoever opens a connection names the nonce of the supervisor that it wants, which only
those know who can read the run. Nothing is ever waited for without an end: a side that has heard nothing for the time that it
gives the other takes the link for cut.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, Self

import msgspec
from msgspec import Struct

from ckptcore.heartbeat import Beat

MOST = 2**24
"""Bytes of a message at most."""


class Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One line."""


class Ping(Message, frozen=True, tag="ping"):
    """Is the supervisor with the nonce `to` there?"""

    to: str


class Pong(Message, frozen=True, tag="pong"):
    """It is."""


class Join(Message, frozen=True, tag="join"):
    """The supervisor `nonce` is ready for its part of `attempt`, which `to` leads. From here on both sides tick."""

    to: str
    nonce: str
    attempt: int


class Tick(Message, frozen=True, tag="tick"):
    """A sign of life."""


class Go(Message, frozen=True, tag="go"):
    """Start ranks. `master` and `coordinator`: `host:port` where torch's and JAX's ranks meet."""

    master: str
    coordinator: str


class Ended(Struct, frozen=True, kw_only=True):
    """A rank has ended: as `engine.Gone`."""

    rank: int
    status: int | None
    at: float


class State(Message, frozen=True, tag="state"):
    """How a node's ranks are. `now`, and all moments in it, are of this node's `CLOCK_MONOTONIC`.

    `asked`: how many signals asked its supervisor to stop. `over`: no rank runs.
    """

    now: float
    beats: list[Beat]
    gone: list[Ended]
    processes: dict[int, int]
    asked: int = 0
    over: bool = False
    error: str = ""


class Signal(Message, frozen=True, tag="signal"):
    """Send a signal to ranks of that node."""

    number: int
    ranks: list[int]


class Kill(Message, frozen=True, tag="kill"):
    """SIGKILL ranks of that node; null: all that belongs to the attempt there."""

    ranks: list[int] | None = None


class Stacks(Message, frozen=True, tag="stacks"):
    """Take the stacks of processes of that node, by rank."""

    processes: dict[int, int]


class Taken(Message, frozen=True, tag="taken"):
    """The stacks."""

    text: str


class Finish(Message, frozen=True, tag="finish"):
    """End what is left; it is over."""

    timeout: float


class Finished(Message, frozen=True, tag="finished"):
    """Nothing is left on the node but `left`. `words`: the last words of its ranks."""

    state: State
    left: list[int]
    words: dict[int, str]


Any = Ping | Pong | Join | Tick | Go | State | Signal | Kill | Stacks | Taken | Finish | Finished
_decoder = msgspec.json.Decoder(Any)


class LinkLost(Exception):
    """The other side has closed, is silent for too long, or does not make sense; the message says which."""


@dataclass
class Channel:
    """One connection. `silence`: seconds without a message after which the other side is taken for gone."""

    connection: socket.socket
    silence: float
    _file: BinaryIO = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.connection.settimeout(self.silence)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.connection.makefile("rb")

    @classmethod
    def connect(cls, address: str, *, timeout: float, silence: float) -> Self:
        """Connect to `host:port`. Raises `LinkLost`."""
        host, port = split(address)
        try:
            return cls(socket.create_connection((host, port), timeout), silence)
        except OSError as error:
            raise LinkLost(f"cannot be reached at {address}: {error.strerror or error}") from error

    def send(self, message: Any) -> None:
        """Send one message, whole. Raises `LinkLost`, also if the other side takes too long to take it."""
        try:
            with self._lock:
                self.connection.sendall(msgspec.json.encode(message) + b"\n")
        except (OSError, ValueError) as error:
            raise LinkLost(f"the link is lost: {error}") from error

    def receive(self) -> Any:
        """The next message. Raises `LinkLost`."""
        try:
            line = self._file.readline(MOST)
        except TimeoutError as error:
            raise LinkLost(f"no sign of life for {self.silence:g} s") from error
        except (OSError, ValueError) as error:
            raise LinkLost(f"the link is lost: {error}") from error
        if not line.endswith(b"\n"):
            raise LinkLost("its supervisor has closed the link, or died")
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise LinkLost(f"says what makes no sense: {error}") from error

    def close(self) -> None:
        """Close it; who waits in `receive` is told."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._file.close()  # it has a share in the connection
        self.connection.close()


def split(address: str) -> tuple[str, int]:
    """`host:port`, or `[host]:port`, in two. Raises `LinkLost` where it is neither."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LinkLost(f"{address!r} is no address")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined(host: str, port: int) -> str:
    """The two as one."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
