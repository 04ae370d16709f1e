"""Small messages between torch processes, through the key-value store of the process group.

No collectives: they would hang when a process dies, nobody could be named, and a gloo group and an NCCL group differ;
their store is the same. Every message has a key of its own, made of the channel's namespace and a counter, so nothing
is ever overwritten and two channels of one job cannot meet. How many channels a rank has opened is counted by the
store itself, not by this process.

The store is asked again and again, in short requests: its own blocking wait would hold back signals, and every other
thread that uses the store, for as long as it lasts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] -- documented, but not in __all__

from ckptcore.channel import PATIENCE, Channel, LocalChannel, joined, late, split, waits
from ckptcore.clock import Clock
from ckptcore.errors import CallError, CheckpointError, DeadlineExceeded
from ckptcore.events import log

PART_BYTES = 4 << 20
"""The most bytes of one value: a TCPStore closes the connection of whoever sends it more than 8 MiB."""
_PREFIX = "torchckpt"
_ALL_CAME = b"all"
_LINGER = 2.0  # seconds


def world() -> tuple[int, int]:
    """This process's rank, and the number of ranks: (0, 1) without a process group.

    Raises `CallError` when the job was launched as several processes but has no process group yet.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched != "1":
        raise CallError(
            f"WORLD_SIZE is {launched}, but there is no process group: call torch.distributed.init_process_group() first"
        )
    return 0, 1


def open_channel(label: str = "") -> Channel:
    """A new channel over all ranks of the default process group; `LocalChannel` if there is one rank.

    Every rank must open its channels with the same `label` in the same order. Raises `CallError` when there are
    several processes without a process group.
    """
    rank, size = world()
    if size == 1:
        return LocalChannel()
    return TorchChannel(open_store("channel", label), rank=rank, size=size)


def open_store(kind: str, label: str) -> Any:
    """A part of the process group's store, the same on all ranks that open as many of this `kind` and `label`.

    Raises `CallError` when the group has no store. (Untyped: torch's stubs know of no values that are bytes.)
    """
    group = dist.group.WORLD
    store = group.get_group_store() if group is not None else None
    if store is None:
        raise CallError("the process group has no store to pass messages through: initialize it with gloo or nccl")
    name = hashlib.sha256(label.encode()).hexdigest()[:16]
    ours = PrefixStore(f"{_PREFIX}/{kind}/{name}", store)
    opening = ours.add(f"openings/{dist.get_rank()}", 1)
    return PrefixStore(f"{opening}", ours)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn a failure of the store into a `CheckpointError`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{what}: the store of the process group failed ({reason}). Restart the job.") from error


class TorchChannel:
    """A `ckptcore.channel.Channel` over a c10d store. Used in the main thread only."""

    def __init__(self, store: Any, *, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._clock = Clock()
        self._exchanges = 0
        self._written: list[str] = []

    @property
    def coordinator(self) -> str | None:
        """The host of the process group's store; `MASTER_ADDR` where that does not tell."""
        store: Any = self._store
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        return store.host if isinstance(store, TCPStore) else os.environ.get("MASTER_ADDR")

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:
        """Rank 0's `data` on every rank; `timeout` in seconds. Raises `DeadlineExceeded` when it does not come."""
        self._exchanges += 1
        if self.rank == 0 and data is None:
            raise CallError(f"{what}: rank 0 broadcasts without data")
        with asking(what):
            if data is not None and self.rank == 0:
                self._put("0", data)
                return data
            if not self._comes("0", self._clock.monotonic() + timeout, waits(what, self.rank, 0)):
                raise late(what, [0], self.size, timeout)
            return self._get("0")

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        """Every rank's `data`, in rank order; `timeout` in seconds. `DeadlineExceeded` names all late ranks, alike on all.

        Rank 0 collects and hands out: a few requests a rank. The first rank to know how it ends writes that down,
        and what is written is the outcome of every rank: those that come later fail, too, once one has given up.
        """
        self._exchanges += 1
        deadline = self._clock.monotonic() + timeout
        with asking(what):
            done = len(self._written)
            self._put(f"{self.rank}", data)
            if self.rank == 0:
                outcome, messages = self._collect(deadline, timeout, what)
            else:
                outcome, messages = self._receive(deadline, timeout, what)
            if outcome == _ALL_CAME:
                # Whoever takes part in this exchange has read all earlier ones: their keys are done with.
                for key in self._written[:done]:
                    self._store.delete_key(key)
                del self._written[:done]
            self._leave()
        if outcome != _ALL_CAME:
            raise DeadlineExceeded(outcome.decode())
        return messages

    def _collect(self, deadline: float, timeout: float, what: str) -> tuple[bytes, list[bytes]]:
        """On rank 0: the outcome, and the messages when all came."""
        missing = self._missing(deadline, what)
        if missing:
            return self._decide(str(late(what, missing, self.size, timeout)).encode()), []
        messages = [self._get(f"{rank}") for rank in range(self.size)]
        self._put("messages", joined(messages))
        self._written.append(self._key("outcome"))
        return self._decide(_ALL_CAME), messages

    def _receive(self, deadline: float, timeout: float, what: str) -> tuple[bytes, list[bytes]]:
        """On every other rank: the same."""
        if self._comes("outcome", deadline, waits(what, self.rank, 0)):
            outcome = self._store.get(self._key("outcome"))
        else:
            # Nobody is missing but rank 0's answer: it died in between, or is about to.
            missing = self._missing(deadline, what) or [0]
            outcome = self._decide(str(late(what, missing, self.size, timeout)).encode())
        return outcome, split(self._get("messages")) if outcome == _ALL_CAME else []

    def _leave(self) -> None:
        """Rank 0 leaves last, if it does not take long: its process may hold the store, and end over what it was told."""
        taken = self._key("taken")
        if self.rank != 0:
            self._store.add(taken, 1)
            return
        self._written.append(taken)
        for _ in self._clock.polls(_LINGER, first=0.001):
            if self._store.add(taken, 0) == self.size - 1:
                return

    def _decide(self, outcome: bytes) -> bytes:
        """Write down how the exchange ends, unless somebody has; what is written."""
        return self._store.compare_set(self._key("outcome"), "", outcome)

    def _missing(self, deadline: float, what: str) -> list[int]:
        """The ranks whose message is not there at the deadline."""
        return [rank for rank in range(self.size) if not self._comes(f"{rank}", deadline, waits(what, self.rank, rank))]

    def _comes(self, name: str, deadline: float, waiting: str) -> bool:
        """Wait for a message; whether it is there at the deadline. A long wait is told once: `waiting`."""
        began = self._clock.monotonic()
        told = False
        for _ in self._clock.polls(deadline - began, first=0.001, most=0.25):
            if self._store.check([self._key(name)]):
                return True
            if not told and self._clock.monotonic() - began > PATIENCE:
                log.warning("%s", waiting)
                told = True
        return False

    def _key(self, name: str) -> str:
        return f"{self._exchanges}/{name}"

    def _put(self, name: str, data: bytes) -> None:
        """Store a message in parts. The first one, which counts them, comes last: the store keeps the order."""
        key = self._key(name)
        parts = [data[start : start + PART_BYTES] for start in range(0, max(len(data), 1), PART_BYTES)]
        for number, part in enumerate(parts[1:], 1):
            self._set(f"{key}/{number}", part)
        self._set(key, len(parts).to_bytes(8, "big") + parts[0])

    def _set(self, key: str, part: bytes) -> None:
        self._store.set(key, part)
        self._written.append(key)

    def _get(self, name: str) -> bytes:
        """A message that is there."""
        key = self._key(name)
        first = self._store.get(key)
        others = range(1, int.from_bytes(first[:8], "big"))
        return b"".join([first[8:], *(self._store.get(f"{key}/{number}") for number in others)])
