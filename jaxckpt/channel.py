"""Small messages between JAX processes, through the key-value store of `jax.distributed`.

No collectives: they would hang when a process dies, and nobody could be named. Every message
has a key of its own, made of the channel's namespace and a counter, so nothing is ever
overwritten and two channels of one job cannot meet. How many channels a rank has opened is
counted by the distributed service itself, not by this process.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import jax
from jax._src import distributed  # jax.distributed does not show its client

from ckptcore import channel
from ckptcore.channel import PATIENCE, Channel, LocalChannel, joined, split, waits
from ckptcore.errors import CallError, CheckpointError, DeadlineExceeded
from ckptcore.events import log

_PREFIX = "jaxckpt"
_ALL = "all"
"""The name of what rank 0 hands out, which begins with `_CAME` or `_LATE`."""
_CAME, _LATE = b"+", b"-"
_LINGER = 2.0
"""Seconds after the deadline in which rank 0 may still hand out what has come."""


def open_channel(label: str = "") -> Channel:
    """A new channel over all processes of the JAX job; `LocalChannel` if there is one process.

    Every process must open its channels with the same `label` in the same order. Raises `CallError`
    when there are several processes but `jax.distributed` was not initialized.
    """
    if jax.process_count() == 1:
        return LocalChannel()
    client = distributed.global_state.client
    if client is None:
        raise CallError("there are several JAX processes, but no distributed client: call jax.distributed.initialize() first")
    return JaxChannel(client, rank=jax.process_index(), size=jax.process_count(), label=label)


class JaxChannel:
    """A `ckptcore.channel.Channel` over JAX's distributed client. Used in the main thread only."""

    def __init__(self, client: Any, *, rank: int, size: int, label: str) -> None:
        self.rank = rank
        self.size = size
        self._client = client
        name = hashlib.sha256(label.encode()).hexdigest()[:16]
        opening = client.key_value_increment(f"{_PREFIX}/openings/{name}/{rank}", 1)
        self._namespace = f"{_PREFIX}/channel/{name}/{opening}"
        self._exchanges = 0
        self._written: list[str] = []

    @property
    def coordinator(self) -> str | None:
        """The host of the coordinator that `jax.distributed.initialize` was told, or has found."""
        address = distributed.global_state.coordinator_address
        return None if address is None else address.rpartition(":")[0].strip("[]")

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:
        """Rank 0's `data` on every rank; `timeout` in seconds. Raises `DeadlineExceeded` when it does not come."""
        self._exchanges += 1
        if self.rank == 0:
            if data is None:
                raise CallError(f"{what}: rank 0 broadcasts without data")
            self._put(data, what)
            return data
        return self._collect([0], timeout, what)[0]

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        """Every rank's `data`, in rank order; `timeout` in seconds. `DeadlineExceeded` names all late ranks, alike on all.

        Rank 0 collects and hands out: a few requests a rank, where one for each other rank would be a million for a thousand.
        """
        self._exchanges += 1
        earlier, self._written = self._written, []
        self._put(data, what)
        collected = self._hand_out(timeout, what) if self.rank == 0 else self._receive(timeout, what)
        # Whoever takes part in this exchange has read all earlier ones: their keys are done with.
        for key in earlier:
            self._client.key_value_delete(key)
        return collected

    def _hand_out(self, timeout: float, what: str) -> list[bytes]:
        """On rank 0: all messages, which the others get from here; or why there are none, which they get too."""
        try:
            collected = self._collect(range(self.size), timeout, what)
        except DeadlineExceeded as error:
            self._put(_LATE + str(error).encode(), what, _ALL)
            raise
        self._put(_CAME + joined(collected), what, _ALL)
        return collected

    def _receive(self, timeout: float, what: str) -> list[bytes]:
        """On every other rank: what rank 0 hands out. It needs a moment longer than the last message."""
        deadline = time.monotonic() + timeout
        outcome = self._wait(0, deadline + _LINGER, what, _ALL)
        if outcome is None:  # rank 0 has died, or never came
            ranks = [0] if self._ask("0", 0.0, what) is None else range(self.size)
            missing = [rank for rank in ranks if self._ask(f"{rank}", 0.0, what) is None]
            raise channel.late(what, missing or [0], self.size, timeout)
        if outcome.startswith(_LATE):
            raise DeadlineExceeded(outcome.removeprefix(_LATE).decode())
        return split(outcome.removeprefix(_CAME))

    def _key(self, name: str) -> str:
        return f"{self._namespace}/{self._exchanges}/{name}"

    def _put(self, data: bytes, what: str, name: str | None = None) -> None:
        """Store a message, by default under this rank's number."""
        key = self._key(f"{self.rank}" if name is None else name)
        try:
            self._client.key_value_set_bytes(key, data)
        except jax.errors.JaxRuntimeError as error:
            raise _failed(what, error) from error
        self._written.append(key)

    def _collect(self, ranks: Any, timeout: float, what: str) -> list[bytes]:
        deadline = time.monotonic() + timeout
        found: dict[int, bytes] = {}
        late: list[int] = []
        for rank in ranks:
            data = self._wait(rank, deadline, what)
            if data is None:
                late.append(rank)
            else:
                found[rank] = data
        if late:
            raise channel.late(what, late, self.size, timeout)
        return [found[rank] for rank in ranks]

    def _wait(self, rank: int, deadline: float, what: str, name: str | None = None) -> bytes | None:
        """A rank's message, or None when it is not there at the deadline. A long wait is told in the log."""
        name = f"{rank}" if name is None else name
        patience = min(deadline, time.monotonic() + PATIENCE)
        found = self._ask(name, patience, what)
        if found is None and patience < deadline:
            log.warning("%s", waits(what, self.rank, rank))
            found = self._ask(name, deadline, what)
        return found

    def _ask(self, name: str, deadline: float, what: str) -> bytes | None:
        left = round((deadline - time.monotonic()) * 1000)
        try:
            if left > 0:
                return self._client.blocking_key_value_get_bytes(self._key(name), left)
            return self._client.key_value_try_get_bytes(self._key(name))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error) or "NOT_FOUND" in str(error):
                return None
            raise _failed(what, error) from error


def _failed(what: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"{what}: the distributed service of the JAX job failed ({error}). Restart the job.")
