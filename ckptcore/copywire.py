"""A rank's part of a save from its node to another one over TCP (docs/adr/0029), on connections of `ckptcore.wire`.

| who | sends |
| --- | --- |
| client | the generation |
| server | once a second that the part is not whole on its node yet; then that it will not come, or its receipt |
| server | after a receipt the files that it lists, at their sizes, `manifest.ocdbt` last |

Who asked decides from the receipt what may come, and proves it (`ckptcore.copies`).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from ckptcore import posix, wire
from ckptcore.names import GenerationId
from ckptcore.nodes import Held
from ckptcore.records import MAX_RECORD_BYTES
from ckptcore.store import Store
from ckptcore.wire import PIECE, Broken, Place, connect, pieces, receive

_MAGIC = b"ckpt copies 1\r\n\0"
_REQUEST = struct.Struct("!IQI")
_FRAME = struct.Struct("!BI")
_PULSE, _GONE, _PART = range(3)


class Gone(Broken):
    """The other rank says that its part will not come."""


class Offer:
    """What a rank has to give: its part of the save under way, from when it is whole on its node. Used by several threads."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._ended: GenerationId | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, held: Held) -> None:
        """A part is whole, and takes the place of the one before."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    def end(self, generation: GenerationId) -> None:
        """What was not asked for of this generation, or of an older one, will not be given."""
        with self._changed:
            self._ended = generation
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing will be given any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, generation: GenerationId, seconds: float) -> tuple[bool, Held | None]:
        """Whether it is known what becomes of this rank's part, and the part; None if it will not come."""
        with self._changed:
            known = self._changed.wait_for(lambda: self._is_over(generation) or self._has(generation), seconds)
            return known, None if self._is_over(generation) else self._held

    def _is_over(self, generation: GenerationId) -> bool:
        if self._closed or (self._ended is not None and generation <= self._ended):
            return True
        return self._held is not None and generation < self._held.generation

    def _has(self, generation: GenerationId) -> bool:
        return self._held is not None and self._held.generation == generation


class Server(wire.Server):
    """Gives what `offer` has, from the node store `node`, until it is closed. Raises `OSError` if it cannot listen.

    `hosts` are the names under which other ranks may reach this machine; `local`: all of them are on it.
    """

    def __init__(self, offer: Offer, node: Store, hosts: tuple[str, ...], *, local: bool) -> None:
        super().__init__(_MAGIC, partial(_answer, offer, node), hosts, local=local)
        self._offer = offer

    def close(self) -> None:
        """End all connections and threads."""
        self._offer.close()
        super().close()


def _answer(offer: Offer, node: Store, connection: socket.socket) -> None:
    generation = GenerationId(*_REQUEST.unpack(receive(connection, _REQUEST.size)))
    known, held = offer.wait(generation, 0.0)
    while not known:
        connection.sendall(_FRAME.pack(_PULSE, 0))
        known, held = offer.wait(generation, wire.PULSE)
    if held is None:
        connection.sendall(_FRAME.pack(_GONE, 0))
        return
    connection.sendall(_FRAME.pack(_PART, len(held.data)))
    data = memoryview(held.data)
    for start in range(0, len(data), PIECE):  # the time-out is that of one call
        connection.sendall(data[start : start + PIECE])
    folder = node.kvstore(held.prefix)["path"]
    for file in held.files:
        _send(connection, folder + file.path, file.size)


def _send(connection: socket.socket, path: str, size: int) -> None:
    """Send a file as it lies there: the system does it, so that training keeps its cores, and Python's lock."""
    with posix.opened(path) as descriptor:
        if descriptor is None:
            raise Broken(f"{path} is gone")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            if size and connection.sendfile(file, 0, size) != size:
                raise Broken(f"{path} is not whole any more")


@dataclass(frozen=True)
class Coming:
    """A part that comes: the bytes of its receipt are here, those of its files follow."""

    data: bytes
    connection: socket.socket

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, piece by piece; each is overwritten by the next. Raises `Broken` or `OSError`."""
        return pieces(self.connection, size)


@contextmanager
def asked(place: Place, generation: GenerationId, opened: Callable[[socket.socket], object] = lambda _: None) -> Iterator[Coming]:
    """The part of a rank, once it is whole on its node: waits for as long as its server says that it is not.

    `opened` is told of the connection, so that somebody may `shut` it. Raises `Gone`, `Broken` or `OSError`.
    """
    with closing(connect(place, _MAGIC)) as connection:
        opened(connection)
        connection.sendall(_REQUEST.pack(generation.incarnation, generation.step, generation.attempt))
        kind, nbytes = _PULSE, 0
        while (kind, nbytes) == (_PULSE, 0):
            kind, nbytes = _FRAME.unpack(receive(connection, _FRAME.size))
        if (kind, nbytes) == (_GONE, 0):
            raise Gone("it says that its part will not come")
        if kind != _PART or nbytes > MAX_RECORD_BYTES:
            raise Broken("it sent something else than what it was asked for")
        yield Coming(b"".join(map(bytes, pieces(connection, nbytes))), connection)
