"""Which ranks hang, by their heartbeats. Pure: the time is an argument.

A rank hangs when it has given no sign of life for longer than its phase allows. Ranks wait for one another, in collectives and at
saves, so all of them fall silent when one does, and a rank in a short phase may be waiting for one in a long phase: that has to
run out of time first. Whoever is behind all others is named first, since it waits for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ckptcore.errors import CallError
from ckptcore.heartbeat import Beat, Phase


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds without a sign of life after which a rank in a phase hangs. Raises `CallError` for what is not positive.

    `init` holds from the start to the restore, and from its end to the first step: compilation. `save` is for the part of a save
    that stops training, and for waits for its end.
    """

    init: float = 1800.0
    restore: float = 1800.0
    train: float = 600.0
    save: float = 1800.0
    final: float = 1800.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise CallError(f"deadline {field.name}={getattr(self, field.name)!r}: expected seconds, more than 0")

    def of(self, phase: Phase) -> float:
        """Seconds for one phase."""
        return getattr(self, phase)


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A rank that hangs: silent for `seconds`, in `phase`, after `step` completed updates (None: not known)."""

    rank: int
    pid: int
    phase: Phase
    seconds: float
    step: int | None


def hung(beats: Sequence[Beat], now: float, deadlines: Deadlines) -> list[Hang]:
    """The ranks that hang at `now` (`CLOCK_MONOTONIC`), the one that the others most likely wait for first; empty: none.

    `beats` is the newest of each rank. Nobody hangs who may be waiting for a rank that is behind it and still has time.
    """
    late = [beat for beat in beats if now - beat.at > deadlines.of(beat.phase)]
    in_time = [beat for beat in beats if now - beat.at <= deadlines.of(beat.phase)]
    found = [beat for beat in late if not any(_may_wait_for(beat, other) for other in in_time)]
    return [
        Hang(rank=beat.rank, pid=beat.pid, phase=beat.phase, seconds=now - beat.at, step=beat.step)
        for beat in sorted(found, key=hindmost)
    ]


def hindmost(beat: Beat) -> tuple[int, int, float, int]:
    """The order in which ranks are suspected of holding up the others: least progress first, then longest silence."""
    return (*position(beat), beat.at, beat.rank)


def position(beat: Beat) -> tuple[int, int]:
    """How far a rank has got: before, in, and after the restore, at the end; and in there its step."""
    begun = "restored" in beat.marks or beat.phase in ("train", "save")
    stage = 3 if beat.phase == "final" else 1 if beat.phase == "restore" else 2 if begun else 0
    return stage, -1 if beat.step is None else beat.step


def _may_wait_for(late: Beat, other: Beat) -> bool:
    """Whether `other` is behind, in a phase of its own or just out of one, so that `late` cannot go on.

    Of two that have been training side by side, none is excused by the other's later beat: it hangs as well, or does not depend
    on this one.
    """
    side_by_side = late.phase == other.phase == "train" and other.since <= late.at
    return position(other) <= position(late) and not side_by_side
