"""The starts of a job, as JSON has them and as people read them: on how many ranks it went on, and what it promised then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ckptcli import text
from ckptcore.inspect.starts import Start

RESIZED = 3
"""Of how many starts with another number of ranks people are told, besides the newest."""


class Started(msgspec.Struct, kw_only=True):
    """One incarnation. `base`: what it went on from, null for a fresh start; `base_participants`: the ranks that had saved that.

    `guarantee`: what the job could promise when it went on: null for a fresh start, and while no base is recorded.
    """

    incarnation: int
    claimed: datetime | None
    participants: int | None
    base: str | None
    base_participants: int | None
    reason: str
    guarantee: str | None


def started(start: Start) -> Started:
    """A start as JSON has it."""
    return Started(
        incarnation=start.number,
        claimed=start.claimed,
        participants=start.participants,
        base=None if start.base is None else str(start.base),
        base_participants=start.before,
        reason=start.reason,
        guarantee=start.guarantee,
    )


def ranks_line(start: Start) -> str:
    """`4 → 3 ranks: coverage`, or without a change `3 ranks: exact`; of a fresh start the ranks alone."""
    before = f"{start.before:,} → " if start.resized else ""
    ranks = "" if start.participants is None else before + text.plural(start.participants, "rank")
    return ": ".join(filter(None, (ranks, start.guarantee)))


def start_facts(starts: Sequence[Start]) -> list[tuple[str, str]]:
    """The newest start, and those before that went on with another number of ranks."""
    if not starts:
        return []
    resized = [f"incarnation {each.number}: {ranks_line(each)}" for each in starts[:-1] if each.resized]
    return [("newest start", _line(starts[-1])), ("ranks changed", "; ".join(resized[-RESIZED:]))]


def _line(start: Start) -> str:
    base = "no base recorded yet" if start.based is None else "" if start.base is None else f"from {start.base}"
    fresh = "fresh" if start.based is not None and start.base is None else ""
    return ", ".join(filter(None, (f"incarnation {start.number}", ranks_line(start), base, fresh)))
