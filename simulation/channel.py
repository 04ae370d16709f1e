"""The channel between the ranks of one simulated job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptcore.channel import late
from simulation.scheduler import Scheduler


@dataclass
class Hub:
    """What the channels of one job have in common."""

    scheduler: Scheduler
    size: int
    told: dict[tuple[int, int], bytes] = field(default_factory=dict)


class HubChannel:
    """See `ckptcore.channel.Channel`. A message of a rank that has died meanwhile still arrives."""

    coordinator = None

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.turn = hub, rank, hub.size, 0

    def broadcast(self, data: bytes | None, *, timeout: float, what: str) -> bytes:
        """See `Channel.broadcast`."""
        return self._exchange(data, [0], timeout, what)[0]

    def gather(self, data: bytes, *, timeout: float, what: str) -> list[bytes]:
        """See `Channel.gather`."""
        return self._exchange(data, range(self.size), timeout, what)

    def _exchange(self, data: bytes | None, ranks: Sequence[int], timeout: float, what: str) -> list[bytes]:
        self.turn += 1
        told, turn = self.hub.told, self.turn
        if data is not None:
            told[turn, self.rank] = data
            self.hub.scheduler.notify()
        if not self.hub.scheduler.wait(lambda: all((turn, rank) in told for rank in ranks), what, timeout):
            raise late(what, [rank for rank in ranks if (turn, rank) not in told], self.size, timeout)
        return [told[turn, rank] for rank in ranks]
