"""How the ranks of one job pass each other small messages.

A channel is the framework's own (JAX's distributed client, torch's store). It is used in the
main thread only, at start-up and where all ranks must agree; never by a commit. Every rank
makes the same calls in the same order. Every wait has a deadline, so a dead rank is named
and makes nobody hang.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from ckptcore.errors import CallError, DeadlineExceeded


class Channel(Protocol):
    """Small messages between the ranks of one job (at most a few MiB each).

    `timeout` is in seconds; `what` says in errors what is being exchanged. A wait that ends
    without its messages raises `DeadlineExceeded`, which names the late ranks.
    """

    @property
    def rank(self) -> int:
        """This process's number, 0 to `size - 1`."""
        ...

    @property
    def size(self) -> int:
        """How many processes the job has."""
        ...

    @property
    def coordinator(self) -> str | None:
        """The host at which all ranks of the job reach its coordinator, as they were told; None if they were not."""
        ...

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:
        """Rank 0's `data` on every rank. The other ranks pass None."""
        ...

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        """Every rank's `data` on every rank, in rank order. Also serves as a barrier."""
        ...


class LocalChannel:
    """The channel of a job of one process: rank 0 of 1. Nothing ever waits."""

    rank = 0
    size = 1
    coordinator = None

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:  # noqa: ARG002 -- nothing waits
        """`data` itself. Raises `CallError` when rank 0 has none to give."""
        if data is None:
            raise CallError(f"{what}: rank 0 broadcasts without data")
        return data

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:  # noqa: ARG002
        """`[data]`."""
        return [data]


def joined(messages: Iterable[bytes]) -> bytes:
    """The messages of all ranks as one, to be handed to every rank. What most of them say alike takes hardly any room.

    A thousand ranks that say the same would otherwise be handed a thousand times a thousand messages.
    """
    return zlib.compress(b"".join(len(message).to_bytes(8, "big") + message for message in messages), 1)


def split(handed: bytes) -> list[bytes]:
    """The messages that `joined` has made one."""
    plain, start = zlib.decompress(handed), 0
    messages = []
    while start < len(plain):
        stop = start + 8 + int.from_bytes(plain[start : start + 8], "big")
        messages.append(plain[start + 8 : stop])
        start = stop
    return messages


PATIENCE = 15.0
"""Seconds after which a rank that waits for another says so in the log."""


def waits(what: str, rank: int, other: int) -> str:
    """What the log is told then. Most likely the other rank does not make the call at all."""
    return (
        f"rank {rank} waits for rank {other} ({what}). All ranks have to make the same calls: is one of them in an if of its own?"
    )


def late(what: str, ranks: Sequence[int], size: int, timeout: float) -> DeadlineExceeded:
    """The error of an exchange in which nothing came from `ranks` within `timeout` seconds."""
    names = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    return DeadlineExceeded(
        f"{what}: nothing from {names} of {size} after {timeout:g} s. Look at the logs there, then restart the job."
    )
