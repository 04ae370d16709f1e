"""What a run's newest saves have cost, from their receipts, and how often it saves, for whoever computes an interval. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ckptcore.inspect.chronicle import Delivery
from ckptcore.inspect.inventory import Entry
from ckptcore.names import GenerationId


@dataclass(frozen=True)
class Measured:
    """The median over `saves` saves, in seconds: the snapshot of the slowest rank, and from there until the commit.

    `whole`: whether the latter has the wait for receipts and the commit in it; else it is what the slowest rank wrote for.
    """

    blocking: float
    persist: float
    saves: int
    whole: bool


def measured(deliveries: Mapping[GenerationId, Sequence[Delivery]]) -> Measured | None:
    """What saves cost, by the deliveries to each of some commits; None if no receipt tells its phases."""
    ordered = [(generation, found) for generation, found in sorted(deliveries.items()) if _longest(found, "stage") > 0]
    if not ordered:
        return None
    complete = [
        _lead(found, "write") + _lead(following, "previous_wait") + _lead(following, "previous_commit")
        for (generation, found), (later, following) in itertools.pairwise(ordered)
        if generation.incarnation == later.incarnation and _lead(following, "previous_commit") > 0
    ]
    persist = complete or [_longest(found, "write") for _, found in ordered]
    return Measured(median(_longest(found, "stage") for _, found in ordered), median(persist), len(ordered), bool(complete))


def kept(entries: Iterable[Entry]) -> float | None:
    """The median time from one commit to the next of the same incarnation, in seconds; None before there are two."""
    dated = [(entry.generation.incarnation, entry.at) for entry in entries if entry.at is not None and entry.bytes is not None]
    spans = sorted(
        (later - earlier).total_seconds()
        for (one, earlier), (other, later) in itertools.pairwise(dated)
        if one == other and later > earlier
    )
    return spans[len(spans) // 2] if spans else None


def _longest(found: Sequence[Delivery], phase: str) -> float:
    return max((delivery.phases.get(phase, 0.0) for delivery in found), default=0.0)


def _lead(found: Sequence[Delivery], phase: str) -> float:
    """Of rank 0."""
    return next((delivery.phases.get(phase, 0.0) for delivery in found if delivery.rank == 0), 0.0)
