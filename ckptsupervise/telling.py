"""What a supervisor tells while it works: one record for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

Event = Literal[
    "left-over",
    "lost",
    "launched",
    "recovered",
    "slow",
    "hung",
    "died",
    "stopping",
    "killing",
    "ended",
    "waiting",
    "warning",
    "finished",
    "preempted",
    "superseded",
    "given-up",
]
"""`left-over`: processes of a dead supervisor were ended. `lost`: an attempt whose supervisor died. `launched`: an attempt.
`recovered`: training has caught up. `slow`, `hung`, `died`: a rank. `stopping`: all ranks were asked to. `killing`: those that
are left. `ended`: an attempt. `waiting`: before the next one, or for the store. `warning`: something that only a person can
mend, while ranks train on. The rest ends the supervision."""


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that has happened. `at`: UTC. What does not apply is null. `seconds`: as the message has it."""

    at: str
    event: Event
    message: str
    attempt: int | None = None
    rank: int | None = None
    slot: int | None = None
    slots: list[int] | None = None
    step: int | None = None
    status: int | None = None
    seconds: float | None = None
    details: list[str] = []


Listener = Callable[[Told], None]


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 processes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def begins(committed: str | None) -> str:
    """Where a launch begins, as far as a supervisor knows: nodes may hold something newer."""
    return "nothing committed yet" if committed is None else f"from {committed}"
