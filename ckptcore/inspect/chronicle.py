"""What happened in a run: its starts, its generations, and who delivered what to them. For reports; reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptcore import records
from ckptcore.attempts import Attempt
from ckptcore.errors import DamageError
from ckptcore.history import History
from ckptcore.inspect import unbegun
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.inspect.starts import Start, starts
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.verify import whole_receipt
from ckptcore.workers import Workers

NEWEST = 40
"""Of how many commits the receipts are read, unless somebody asks for more."""


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

    `run`: None while a supervisor has been here, and no job has begun the run. `deliveries`: of the newest commits, in order of
    rank; without those that cannot be read. `attempts`: of supervisors.
    """

    url: str
    run: records.Run | None
    starts: tuple[Start, ...]
    entries: tuple[Entry, ...]
    deliveries: Mapping[GenerationId, tuple[Delivery, ...]]
    attempts: tuple[Attempt, ...] = ()


def chronicle(store: Store, *, newest: int = NEWEST) -> Chronicle:
    """Read it all. `newest`: of how many commits receipts are read. Raises `NotFound` where there is no run, nor attempts."""
    history, attempts = unbegun.look(store)
    if history is None:
        return Chronicle(url=store.url, run=None, starts=(), entries=(), deliveries={}, attempts=tuple(attempts))
    entries = inventory(store, history)
    commits = [entry.generation for entry in entries if entry.guarantee is not None and entry.state != "retired"][-newest:]
    told = {generation: _deliveries(history, generation) for generation in commits}
    return Chronicle(
        url=store.url,
        run=history.run,
        starts=starts(history),
        entries=tuple(entries),
        deliveries={generation: found for generation, found in told.items() if found},
        attempts=tuple(attempts),
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
