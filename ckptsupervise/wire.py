"""What supervisors of several nodes say to each other: a line of JSON for each message, over one connection a node and attempt.

Each message is one of the types below, and has a length at most. It has to be whole in the time that a side gives the other,
which is taken for gone otherwise: nothing is waited for without an end. Before anything else both prove that they belong to the
job (`handshake`).
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgspec
from msgspec import Struct

from ckptcore.heartbeat import Beat

MOST = 2**24
"""Bytes of a message at most."""

PIECE = 2**16
"""Bytes that are received at a time."""


class Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One line."""


class Challenge(Message, frozen=True, tag="challenge"):
    """From who listens: prove it of this `number`."""

    number: str


class Proof(Message, frozen=True, tag="proof"):
    """The `proof` of the other's number and of this side's."""

    number: str
    proof: str


class Join(Message, frozen=True, tag="join"):
    """The supervisor `nonce` is ready for its part of `attempt`. From here on both sides tick."""

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

    `asked`: how many signals asked its supervisor to stop. `over`: no rank runs. `unusable`: why no beats can be written there.
    """

    now: float
    beats: list[Beat]
    gone: list[Ended]
    processes: dict[int, int]
    asked: int = 0
    over: bool = False
    error: str = ""
    unusable: str = ""


class Signal(Message, frozen=True, tag="signal"):
    """Send a signal to ranks of that node."""

    number: int
    ranks: list[int]


class Kill(Message, frozen=True, tag="kill"):
    """SIGKILL ranks of that node; null: all that belongs to the attempt there."""

    ranks: list[int] | None = None


class Stacks(Message, frozen=True, tag="stacks"):
    """Take the stacks of ranks of that node."""

    ranks: list[int]


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


AnyMessage = Challenge | Proof | Join | Tick | Go | State | Signal | Kill | Stacks | Taken | Finish | Finished
_decoder = msgspec.json.Decoder(AnyMessage)


class LinkLost(Exception):
    """The other side has closed, is silent for too long, or does not make sense; the message says which."""


@dataclass
class Channel:
    """One connection. `silence`: seconds without a message after which the other side is taken for gone.

    One thread receives; any may send.
    """

    connection: socket.socket
    silence: float
    _reader: socket.socket = field(init=False)
    _unread: bytearray = field(default_factory=bytearray)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.connection.settimeout(self.silence)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.connection.dup()  # with a time-out of its own, beside that of who sends

    @classmethod
    def connect(cls, address: str, *, timeout: float) -> Self:
        """Connect to `host:port`; `timeout` is its `silence`, too. Raises `LinkLost`."""
        host, port = split(address)
        try:
            return cls(socket.create_connection((host, port), timeout), timeout)
        except (OSError, UnicodeError, OverflowError) as error:  # the latter for what is no name, or no port
            raise LinkLost(f"cannot be reached at {address}: {getattr(error, 'strerror', None) or error}") from error

    def send(self, message: AnyMessage) -> None:
        """Send one message, whole. Raises `LinkLost`, also if the other side takes too long to take it."""
        try:
            with self._lock:
                self.connection.sendall(msgspec.json.encode(message) + b"\n")
        except (OSError, ValueError) as error:
            raise LinkLost(f"the link is lost: {error}") from error

    def receive(self, most: int = MOST) -> AnyMessage:
        """The next message, of `most` bytes. Raises `LinkLost`, also if it is not whole after `silence` seconds."""
        line = self._line(most)
        try:
            return _decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise LinkLost(f"says what makes no sense: {error}") from error

    def _line(self, most: int) -> bytes:
        until, looked = time.monotonic() + self.silence, 0
        while (end := self._unread.find(b"\n", looked)) < 0 and len(self._unread) <= most:
            looked = len(self._unread)
            self._unread += self._read(until - time.monotonic())
        if not 0 <= end <= most:
            raise LinkLost(f"says more than {most} bytes at a time")
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _read(self, seconds: float) -> bytes:
        try:
            self._reader.settimeout(max(seconds, 1e-3))
            data = self._reader.recv(PIECE)
        except TimeoutError as error:
            raise LinkLost(f"no sign of life for {self.silence:g} s") from error
        except OSError as error:
            raise LinkLost(f"the link is lost: {error}") from error
        if not data:
            raise LinkLost("its supervisor has closed the link, or died")
        return data

    def give(self, seconds: float) -> None:
        """Wait for that long from now on, both to send and to receive."""
        self.silence = seconds
        self.connection.settimeout(seconds)

    def close(self) -> None:
        """Close it; who waits in `receive` is told."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
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
