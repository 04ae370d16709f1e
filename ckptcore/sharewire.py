"""Chunks from one rank of a job to another over TCP (docs/adr/0024), on connections of `ckptcore.wire`.

| who | sends |
| --- | --- |
| client | the numbers of the chunks that it wants |
| server | each chunk as soon as it has it, or that it will not have it; meanwhile, once a second, how many it has by now |

Who asked compares a chunk with its digest.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from ckptcore import wire
from ckptcore.wire import PIECE, Broken, Place, connect, receive

STALL_TIMEOUT = 60.0
"""Seconds without a new chunk of a server, for whomever, after which it is not waited for."""

_MAGIC = b"ckpt chunks 1\r\n\0"
_COUNT = struct.Struct("!I")
_FRAME = struct.Struct("!BIQ")
_CHUNK, _GONE, _PULSE = range(3)

Take = Callable[[], Any]
"""Gives the bytes of a chunk, as an object with a buffer of them."""


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


class Server(wire.Server):
    """Hands out what lies on `shelf` to whoever knows its token, until it is closed. Raises `OSError` if it cannot listen.

    `hosts` are the names under which other ranks may reach this machine; `local`: all of them are on it.
    """

    def __init__(self, shelf: Shelf, hosts: tuple[str, ...], *, local: bool) -> None:
        super().__init__(_MAGIC, partial(_answer, shelf), hosts, local=local)
        self._shelf = shelf

    def close(self) -> None:
        """End all connections and threads."""
        self._shelf.end()
        super().close()


def _answer(shelf: Shelf, connection: socket.socket) -> None:
    wanted: dict[int, None] = {}
    (count,) = _COUNT.unpack(receive(connection, _COUNT.size))
    for _ in range(count):  # one by one: a count alone must not make us allocate
        wanted[_COUNT.unpack(receive(connection, _COUNT.size))[0]] = None
    while wanted:  # a server that closes ends its shelf and the connection
        number, take, there = shelf.next(wanted, wire.PULSE)
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
    for start in range(0, data.nbytes, PIECE):  # the time-out is that of one call
        connection.sendall(data[start : start + PIECE])


def fetch(
    place: Place, sizes: Mapping[int, int], opened: Callable[[socket.socket], object] = lambda _: None
) -> Iterator[tuple[int, bytearray]]:
    """The chunks of `sizes` (number → bytes) from a server, as they come.

    `opened` is told of the connection, so that somebody may `shut` it. Raises `Broken` or `OSError`, at the latest when all that
    will come has come and something is missing.
    """
    with closing(connect(place, _MAGIC)) as connection:
        opened(connection)
        connection.sendall(_COUNT.pack(len(sizes)) + b"".join(_COUNT.pack(number) for number in sizes))
        yield from _chunks(connection, dict(sizes))


def _chunks(connection: socket.socket, left: dict[int, int]) -> Iterator[tuple[int, bytearray]]:
    moved, known, gone = time.monotonic(), 0, 0
    while left:
        kind, number, nbytes = _FRAME.unpack(receive(connection, _FRAME.size))
        if kind == _CHUNK and left.pop(number, None) == nbytes:
            yield number, receive(connection, nbytes)
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
