"""When an attempt came how far, from the heartbeats that were seen while it ran. Pure.

What a rank tells in its marks is exact; that training has caught up with the attempt before is known as exactly as the beats are
looked at. An attempt has come to a point once all of its ranks have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

from ckptcore.clock import Clock
from ckptcore.heartbeat import Beat
from ckptsupervise.deadlines import hindmost


@dataclass(frozen=True, kw_only=True)
class Instant:
    """One moment on both clocks: `monotonic` as heartbeats have it, `utc` in seconds since 1970, as records have it."""

    monotonic: float
    utc: float

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """Now."""
        return cls(monotonic=clock.monotonic(), utc=datetime.fromisoformat(clock.utc()).timestamp())

    def date(self, monotonic: float) -> datetime:
        """The time of a moment of `CLOCK_MONOTONIC`."""
        return datetime.fromtimestamp(self.utc + monotonic - self.monotonic, UTC)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """An attempt so far. Immutable: `seen` returns the next one. Moments are of `CLOCK_MONOTONIC`.

    `launched`: when its `size` ranks were started. `target`: the step that an attempt before had got to at the furthest, 0 if
    there was none. `recovered`: when all ranks had made a step and were at `target` again.
    """

    launched: float
    size: int
    target: int = 0
    beats: Mapping[int, Beat] = field(default_factory=dict)
    recovered: float | None = None

    def seen(self, beats: Sequence[Beat]) -> Timeline:
        """The timeline after a look at the newest beat of each rank. A rank that is not among them keeps its last one."""
        after = replace(self, beats={**self.beats, **{beat.rank: beat for beat in beats}})
        return after if self.recovered is not None else replace(after, recovered=_caught_up(after))

    @property
    def restoring(self) -> float | None:
        """When the last rank began to restore; None before that."""
        return self._all("restore")

    @property
    def restored(self) -> float | None:
        """When the last rank had restored, or found that there is nothing to restore."""
        return self._all("restored")

    @property
    def first_step(self) -> float | None:
        """When the last rank had completed its first step."""
        return self._all("first-step")

    @property
    def restored_step(self) -> int | None:
        """The step that training began from, 0 if fresh; None while no rank has told."""
        return min((beat.restored_step for beat in self.beats.values() if beat.restored_step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """The furthest step that all ranks have completed; None while one of them is not known to have any."""
        steps = [beat.step for beat in self.beats.values() if beat.step is not None]
        return min(steps) if len(steps) == self.size else None

    @property
    def blocked(self) -> float:
        """Seconds that saves have stopped training: the most of any rank."""
        return max((beat.blocked for beat in self.beats.values()), default=0.0)

    @property
    def trained(self) -> float:
        """Seconds of training after the first step, saves not counted: the most of any rank."""
        spans = [beat.at - beat.marks["first-step"] - beat.blocked for beat in self.beats.values() if "first-step" in beat.marks]
        return max([0.0, *spans])

    def last_sign(self, rank: int | None = None) -> float:
        """The last sign of life of `rank`, or of the rank that is behind all others; of nobody: the launch."""
        if rank is not None and rank in self.beats:
            return self.beats[rank].at
        return min(self.beats.values(), key=hindmost).at if self.beats else self.launched

    def _all(self, mark: str) -> float | None:
        moments = [beat.marks[mark] for beat in self.beats.values() if mark in beat.marks]
        return max(moments) if len(moments) == self.size else None


def _caught_up(line: Timeline) -> float | None:
    """When all were at the target, as far as can be told: by the beats of those who came last, no later than the newest look."""
    step, first = line.last_step, line.first_step
    if step is None or first is None or step < line.target:
        return None
    if min(beat.restored_step or 0 for beat in line.beats.values()) >= line.target:
        return first
    return max(first, *(beat.at for beat in line.beats.values() if beat.step == step))
