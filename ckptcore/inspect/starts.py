"""The starts of a job: which incarnation went on from what, on how many ranks, and what it promised then. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ckptcore import names, records
from ckptcore.errors import DamageError
from ckptcore.history import History
from ckptcore.inspect.inventory import time_of
from ckptcore.names import GenerationId
from ckptcore.records import Level
from ckptcore.storereads import record_bytes


@dataclass(frozen=True, kw_only=True)
class Start:
    """One incarnation. While it has recorded no base, `based` is None and `reason` empty; `base` is None for a fresh start.

    `participants`: its ranks, and `before`: those that `base` was saved by; None where no record tells. `guarantee`: what going
    on from the base could keep, None for a fresh start.
    """

    number: int
    claimed: datetime | None
    based: datetime | None = None
    reason: str = ""
    base: GenerationId | None = None
    guarantee: Level | None = None
    framework: str = ""
    participants: int | None = None
    before: int | None = None
    rolled_forward: tuple[GenerationId, ...] = ()
    passed_over: Mapping[GenerationId, str]

    @property
    def resized(self) -> bool:
        """Whether it went on with another number of ranks."""
        return self.before is not None and self.participants is not None and self.before != self.participants


def starts(history: History, newest: int | None = None) -> tuple[Start, ...]:
    """Every incarnation, or the `newest` so many, oldest first: a read of each claim."""
    numbers = sorted(history.bases)
    return tuple(_start(history, number) for number in (numbers if newest is None else numbers[-newest:]))


def _start(history: History, number: int) -> Start:
    claimed, topology = _claimed(history, number)
    base = history.bases[number]
    if base is None:
        return Start(number=number, claimed=claimed, passed_over={}, **topology)
    generation = None if base.generation is None else GenerationId.parse(base.generation)
    return Start(
        number=number,
        claimed=claimed,
        based=time_of(base.created),
        reason=base.reason,
        base=generation,
        guarantee=base.guarantee,
        before=None if generation is None else _participants(history, generation),
        rolled_forward=tuple(GenerationId.parse(each.generation) for each in base.settled if each.decision == "commit"),
        passed_over={GenerationId.parse(each.generation): each.reason for each in base.skipped},
        **topology,
    )


def _claimed(history: History, number: int) -> tuple[datetime | None, dict[str, Any]]:
    """When, and with which topology."""
    key = names.claim_key(number)
    try:
        data = record_bytes(history.store, key)
        claim = None if data is None else records.decode(data, records.Claim, key=key)
    except DamageError:
        claim = None
    if claim is None:
        return None, {}
    return time_of(claim.created), {"framework": claim.topology.framework, "participants": claim.topology.participants}


def _participants(history: History, generation: GenerationId) -> int | None:
    decided = history.decided(generation)
    return decided.record.topology.participants if decided and isinstance(decided.record, records.Manifest) else None
