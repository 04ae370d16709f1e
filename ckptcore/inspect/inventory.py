"""Every generation of a run with what became of it, as somebody on call wants to see it. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ckptcore import names, records
from ckptcore.errors import DamageError
from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.listing import Generation, describe
from ckptcore.names import GenerationId
from ckptcore.records import Level, Manifest
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes, record_bytes
from ckptcore.workers import Workers

State = Literal["committed", "verified", "stray", "quarantined", "damaged", "retired", "aborted", "undecided", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One generation.

    `state`: the word that matters most to whoever wants to resume; `is_head`: the next start resumes from it, as far as the
    records tell. `bytes`: logical bytes of all its components; `own_bytes`: without those that lie in other generations.
    `at`: when its state was captured, or when it was aborted; None while nobody has said. `missing`: the ranks that have
    delivered no receipt, of `participants`; where that is None of an undecided one, nobody can tell. `reason`: why it was
    aborted, is marked, or cannot be read.
    `on_nodes`: nobody has decided it, and at `at` it was whole on the nodes: a start there finishes it.
    """

    generation: GenerationId
    state: State
    is_head: bool = False
    guarantee: Level | None = None
    bytes: int | None = None
    own_bytes: int | None = None
    at: datetime | None = None
    participants: int | None = None
    missing: tuple[int, ...] = ()
    reason: str = ""
    on_nodes: bool = False
    listed: Generation

    @property
    def restorable(self) -> bool:
        """Whether a job could be started from it, by hand if it is a stray."""
        return self.state in ("committed", "verified", "stray") and self.guarantee != "weights"


def inventory(store: Store, known: History | None = None) -> list[Entry]:
    """All generations, oldest first, also those that have files but no decision yet. Raises `NotFound` where there is no run.

    `known`: the history of the run as it has just been read, if it was.
    """
    history = known or History.load(store)
    undecided = [generation for generation in stored(store) if generation not in history.generations]
    with Workers(store.limits.requests, "inventory") as pool:
        list(pool.map(history.decided, history.generations))  # at a time: an object store takes its time for each
    found = [describe(history, generation) for generation in (*history.generations, *undecided)]
    path, head = _path(history)
    entries = [_undecided(store, each) if each.state == "undecided" else _decided(history, each, path, head) for each in found]
    return sorted(entries, key=lambda entry: entry.generation)


def _path(history: History) -> tuple[set[GenerationId], GenerationId | None]:
    """What lies on the path from the head, and the head. Both are empty where a lost record leaves the head unknown."""
    try:
        head = history.head()
        return set(history.lineage()), head.generation if head else None
    except DamageError:
        return set(history.generations), None


def _decided(history: History, listed: Generation, path: set[GenerationId], head: GenerationId | None) -> Entry:
    generation, decided = listed.id, history.decided(listed.id)
    if decided is None:
        return Entry(generation=generation, state="unreadable", reason=listed.obstacle or "", listed=listed)
    if isinstance(decided.record, records.Abort):
        abort = decided.record
        state = {"at": time_of(abort.decided), "missing": tuple(abort.missing), "reason": abort.reason}
        return Entry(generation=generation, state="aborted", listed=listed, **state)
    manifest = decided.record
    state, reason = _committed(history, listed, manifest, path)
    return Entry(
        generation=generation,
        state=state,
        is_head=generation == head,
        guarantee=manifest.guarantee.level,
        bytes=sum(entry.bytes for entry in manifest.components.values()),
        own_bytes=sum(entry.bytes for entry in manifest.components.values() if entry.source is None),
        at=time_of(manifest.captured),
        participants=manifest.topology.participants,
        reason=reason,
        listed=listed,
    )


def _committed(history: History, listed: Generation, manifest: Manifest, path: set[GenerationId]) -> tuple[State, str]:
    if listed.state == "retired" and listed.obstacle is not None:
        return "retired", ""
    mark = next((note for note in history.notes.get(listed.id, []) if note.kind in ("quarantine", "damaged")), None)
    if mark is not None:
        return ("quarantined" if mark.kind == "quarantine" else "damaged"), mark.text
    if listed.id not in path and manifest.guarantee.level != "weights":
        return "stray", "left behind: the run went on from elsewhere"
    return ("verified" if listed.verified else "committed"), ""


def _undecided(store: Store, listed: Generation) -> Entry:
    """Who has delivered: the ranks of the claim, or of a receipt, that have no receipt are missing."""
    generation = listed.id
    named = (
        names.parse_receipt_key(names.receipts_prefix(generation) + name)
        for name in store.children(names.receipts_prefix(generation))
    )
    delivered = sorted(rank for rank in named if rank is not None)
    participants, there = _participants(store, generation, delivered), set(delivered)
    missing = tuple(rank for rank in range(participants or 0) if rank not in there)
    told = {"participants": participants, "missing": missing, "listed": listed}
    staged = staged_record(store, generation)
    if staged is None:
        return Entry(generation=generation, state="undecided", **told)
    reason = "whole on the nodes: a start there uploads it and commits it"
    return Entry(generation=generation, state="undecided", on_nodes=True, at=time_of(staged.decided), reason=reason, **told)


def staged_record(store: Store, generation: GenerationId) -> records.StagedRecord | None:
    """What says that a generation was whole on the nodes; None if nothing readable does."""
    key = names.on_nodes_key(generation)
    data = record_bytes(store, key)
    try:
        return None if data is None else records.decode(data, records.StagedRecord, key=key)
    except DamageError:
        return None


def _participants(store: Store, generation: GenerationId, delivered: Iterable[int]) -> int | None:
    """How many ranks the save has: by the first receipt that can be read, else by the claim; None where none tells."""
    return next(_told(store, generation, delivered), None)


def _told(store: Store, generation: GenerationId, delivered: Iterable[int]) -> Iterator[int]:
    for rank in delivered:
        key = names.receipt_key(generation, rank)
        with suppress(DamageError):
            yield records.decode(bounded_bytes(store, key) or b"", records.Receipt, key=key).participants
    key = names.claim_key(generation.incarnation)
    with suppress(DamageError):
        yield records.decode(record_bytes(store, key) or b"", records.Claim, key=key).topology.participants


def time_of(text: str) -> datetime | None:
    """When a record says that something happened; None for a date that no calendar has, which no reader refuses."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
