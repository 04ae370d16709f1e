"""A channel that counts what is sent through it."""

from __future__ import annotations

from ckptcore.channel import Channel


class CountingChannel:
    """Passes gathers on to `channel`; `sent` has the bytes of each. Nothing is broadcast."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.rank, self.size, self.coordinator = channel.rank, channel.size, channel.coordinator
        self.sent: list[int] = []

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        self.sent.append(len(data))
        return self._channel.gather(data, timeout=timeout, what=what)

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:  # noqa: ARG002
        raise AssertionError
