"""What happened in a run: its starts, its generations, and who delivered what to them. For reports; reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ckptcore import names, records
from ckptcore.attempts import Attempt, Attempts
from ckptcore.errors import DamageError
from ckptcore.history import History
from ckptcore.inspect.inventory import Entry, inventory, time_of
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.storereads import record_bytes
from ckptcore.verify import whole_receipt
from ckptcore.workers import Workers

NEWEST = 40
"""Of how many commits the receipts are read, unless somebody asks for more."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One incarnation. While it has recorded no base, `based` is None and `reason` empty; `base` is None for a fresh start."""

    number: int
    claimed: datetime | None
    based: datetime | None = None
    reason: str = ""
    base: GenerationId | None = None
    framework: str = ""
    participants: int | None = None
    rolled_forward: tuple[GenerationId, ...] = ()
    passed_over: Mapping[GenerationId, str]


@dataclass(frozen=True)
class Delivery:
    """What one rank delivered to one generation. `phases`: name → seconds; `bytes`: component → logical bytes."""

    rank: int
    phases: Mapping[str, float]
    bytes: Mapping[str, int]
    files: int


@dataclass(frozen=True, kw_only=True)
class Chronicle:
    """A run as a report tells it.

    `deliveries`: of the newest commits, in order of rank; without those that cannot be read. `attempts`: of supervisors.
    """

    url: str
    run: records.Run
    starts: tuple[Start, ...]
    entries: tuple[Entry, ...]
    deliveries: Mapping[GenerationId, tuple[Delivery, ...]]
    attempts: tuple[Attempt, ...] = ()


def chronicle(store: Store, *, newest: int = NEWEST) -> Chronicle:
    """Read it all. `newest`: of how many commits the receipts are read. Raises `NotFound` where there is no run."""
    history = History.load(store)
    entries = inventory(store)
    commits = [entry.generation for entry in entries if entry.guarantee is not None and entry.state != "retired"][-newest:]
    told = {generation: _deliveries(history, generation) for generation in commits}
    return Chronicle(
        url=store.url,
        run=history.run,
        starts=tuple(_start(store, history, number) for number in sorted(history.bases)),
        entries=tuple(entries),
        deliveries={generation: found for generation, found in told.items() if found},
        attempts=tuple(Attempts(store, history.run.run_id).load()),
    )


def deliveries(checkpoint: Checkpoint) -> tuple[Delivery, ...]:
    """What each rank delivered to a commit, by its receipts. Raises a `DamageError` for one that is not what the roster says."""
    with Workers(checkpoint.store.limits.requests, "receipts") as pool:
        found = pool.map(lambda delivered: whole_receipt(checkpoint.store, delivered), checkpoint.roster.ranks)
        return tuple(map(_delivery, found))


def _deliveries(history: History, generation: GenerationId) -> tuple[Delivery, ...]:
    decided = history.decided(generation)
    try:
        return () if decided is None else deliveries(Checkpoint(history.store, decided))
    except DamageError:
        return ()  # `ckpt verify` says what is wrong with it


def _delivery(receipt: records.Receipt) -> Delivery:
    return Delivery(
        receipt.rank,
        {name: microseconds / 1e6 for name, microseconds in receipt.phases.items()},
        {name: written.bytes for name, written in receipt.components.items()},
        len(receipt.files),
    )


def _start(store: Store, history: History, number: int) -> Start:
    key = names.claim_key(number)
    try:
        data = record_bytes(store, key)
        claim = None if data is None else records.decode(data, records.Claim, key=key)
    except DamageError:
        claim = None
    claimed = None if claim is None else time_of(claim.created)
    topology = {} if claim is None else {"framework": claim.topology.framework, "participants": claim.topology.participants}
    base = history.bases[number]
    if base is None:
        return Start(number=number, claimed=claimed, passed_over={}, **topology)
    return Start(
        number=number,
        claimed=claimed,
        based=time_of(base.created),
        reason=base.reason,
        base=None if base.generation is None else GenerationId.parse(base.generation),
        rolled_forward=tuple(GenerationId.parse(each.generation) for each in base.settled if each.decision == "commit"),
        passed_over={GenerationId.parse(each.generation): each.reason for each in base.skipped},
        **topology,
    )
