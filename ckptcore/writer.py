"""The participant: write this rank's part of a save, make it durable, sign it off (spec: save).

Runs in the background, on a snapshot that training cannot change any more. A receipt exists
only for data that is durable; a failure leaves a `failed` receipt, so that nobody waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ckptcore import ledger, names, records
from ckptcore.arrays import DatabaseWriter, StoredArray
from ckptcore.backend import Flat, Staged
from ckptcore.clock import Clock
from ckptcore.digests import digest, topology_digest, value_digest
from ckptcore.errors import CheckpointError, CommitUnknown, ProtocolViolation, StoreError, StoreFull, UnsafeStore
from ckptcore.events import Event, Listener, tell
from ckptcore.layout import Plan
from ckptcore.names import GenerationId
from ckptcore.records import ArrayLeaf, Descriptor, Receipt, Written
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes

RECEIPT_TIMEOUT = 120.0
"""Seconds in which the store has to say whether a receipt is there."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whose part of which save: what every receipt says, a failed one too."""

    run_id: str
    generation: GenerationId
    claim: str
    participants: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One rank's part of one save: the plan and the snapshot. `lead` is rank 0's alone."""

    identity: Identity
    guarantee: records.Guarantee
    topology: records.Topology
    plan: Plan
    flat: Flat
    staged: Staged
    values: Mapping[str, Any]
    """Encoded JSON leaves by layout name: part of the snapshot, since what they came from may change."""
    kept: frozenset[str]
    """The global JSON leaves that this rank stores for all."""
    lead: records.Lead | None
    phases: dict[str, int] = field(default_factory=dict)
    """Microseconds by phase."""


def write(
    store: Store,
    shard: Shard,
    *,
    clock: Clock,
    on_event: Listener | None = None,
    place: Store | None = None,
    before_receipt: Callable[[Receipt], None] | None = None,
) -> Receipt:
    """Write the shard, make it durable, and sign it off.

    `place`: where the database is written, if not into `store`; then `before_receipt`, called with the receipt that will be
    put, has to bring it there.

    Raises `CommitUnknown` when the receipt may or may not be there: then the ledger tells what became of the save.
    Anything else that is raised went wrong before: then call `give_up`.
    """
    return _Writer(store, shard, clock, on_event, place=place or store, before_receipt=before_receipt).run()


def give_up(store: Store, identity: Identity, error: Exception) -> None:
    """Tell the coordinator at once that this rank's part will not come. `error` matters more than trouble with that."""
    key, data = names.receipt_key(identity.generation, identity.rank), _failed_receipt(identity, error)
    try:
        _check_own(store.put_if_absent(key, data), data, key, identity.rank)
    except CheckpointError as also:
        error.add_note(f"(the failed receipt could not be written either: {also})")


@dataclass(frozen=True)
class _Writing:
    """A leaf whose chunks are being written, and the digest of each once it is."""

    component: str
    name: str
    chunks: Mapping[int, Future[str]]

    @property
    def done(self) -> bool:
        return all(writing.done() for writing in self.chunks.values())


class _Writer:
    def __init__(
        self,
        store: Store,
        shard: Shard,
        clock: Clock,
        on_event: Listener | None,
        *,
        place: Store,
        before_receipt: Callable[[Receipt], None] | None,
    ) -> None:
        self.store, self.shard, self.clock, self.on_event = store, shard, clock, on_event
        self.place, self.before_receipt = place, before_receipt
        self.generation, self.rank = shard.identity.generation, shard.identity.rank
        self.nonce = clock.nonce()

    def run(self) -> Receipt:
        """Arrays, values and layout first, then the receipt: it vouches for what is durable by then.

        Rank 0 begins with the layout, so that the others, who mostly have the same, find it there when they come to it.
        """
        started = self.clock.monotonic()
        early = self._write_layout() if self.rank == 0 else None
        chunks, files = self._write_arrays()
        components = self._components(chunks)
        stored_values = self._write_values()
        layout = early or self._write_layout()
        seconds = self.clock.monotonic() - started
        self.shard.phases["write"] = int(seconds * 1e6)
        self._tell("written", {"seconds": seconds, "bytes": sum(part.bytes for part in components.values())})
        receipt = self._receipt(components, files, stored_values, layout)
        if self.before_receipt is not None:
            self.before_receipt(receipt)
        self._sign_off(receipt)
        self._tell("receipt")
        return receipt

    def _write_arrays(self) -> tuple[dict[str, dict[int, str]], list[records.File]]:
        plan = self.shard.plan
        if not plan.own:
            return {}, []
        found: dict[str, dict[int, str]] = {}
        writing: deque[_Writing] = deque()
        database = DatabaseWriter(self.place, names.database_prefix(self.generation, self.rank, self.nonce))
        try:
            for component, table in plan.layout.components.items():
                for leaf in table.leaves:
                    if isinstance(leaf, ArrayLeaf) and leaf.name in plan.own:
                        name = leaf.name if table.scope == "global" else names.rank_array_name(self.rank, leaf.name)
                        array = StoredArray(name=name, dtype=leaf.stored_dtype, shape=leaf.shape, grid=plan.grids[leaf.name])
                        cells = dict(zip(plan.own[leaf.name], self.shard.staged.chunks.get(leaf.name, ()), strict=True))
                        writing.append(_Writing(component, leaf.name, database.add(array, cells)))
                        while writing and writing[0].done:
                            self._written(writing.popleft(), found)
            files = database.finish()
            for last in writing:
                self._written(last, found)
            return found, files
        finally:
            database.close()

    def _written(self, leaf: _Writing, found: dict[str, dict[int, str]]) -> None:
        found[leaf.name] = {chunk: writing.result() for chunk, writing in leaf.chunks.items()}
        self._tell("chunk-written", {"component": leaf.component, "leaf": leaf.name})

    def _components(self, chunks: Mapping[str, Mapping[int, str]]) -> dict[str, Written]:
        flat, staged = self.shard.flat, self.shard.staged
        written = {}
        for component, table in self.shard.plan.layout.components.items():
            named = {leaf.name for leaf in table.leaves}
            stated = named & self.shard.values.keys()
            if flat.components[component].rank_zero:
                stated &= self.shard.kept
            written[component] = Written(
                bytes=sum(array.nbytes for name in named & staged.chunks.keys() for array in staged.chunks[name]),
                chunks={name: sorted(chunks[name].items()) for name in sorted(named & chunks.keys())},
                values={name: value_digest(self.shard.values[name]) for name in sorted(stated)},
                replicas={name: digest(staged.whole[name]) for name in sorted(named & staged.whole.keys())},
            )
        return written

    def _write_values(self) -> Descriptor | None:
        shared: dict[str, dict[str, Any]] = {}
        own: dict[str, dict[str, Any]] = {}
        for value in self.shard.flat.values:
            if self.shard.flat.components[value.component].scope == "rank":
                own.setdefault(value.component, {})[value.name] = self.shard.values[value.name]
            elif value.name in self.shard.kept:
                shared.setdefault(value.component, {})[value.name] = self.shard.values[value.name]
        if not shared and not own:
            return None
        record = records.Values(generation=str(self.generation), rank=self.rank, shared=shared, own=own)
        return self._put(names.values_key(self.generation, self.rank), records.encode(record))

    def _write_layout(self) -> Descriptor:
        data = records.encode(self.shard.plan.layout)
        return self._put(names.layout_key(self.generation, digest(data)), data, shared=self.rank > 0)

    def _put(self, key: str, data: bytes, *, shared: bool = False) -> Descriptor:
        """Store a record. `shared`: another rank may have stored the same; then nothing is sent."""
        there = bounded_bytes(self.store, key, len(data)) if shared else None
        if (there or self.store.put_if_absent(key, data)) != data:
            raise ProtocolViolation(f"{key} holds other bytes than rank {self.rank} has: two processes act as this rank")
        return Descriptor(key=key, size=len(data), digest=digest(data))

    def _receipt(
        self, components: dict[str, Written], files: list[records.File], stored_values: Descriptor | None, layout: Descriptor
    ) -> Receipt:
        return Receipt(
            **_identity_fields(self.shard.identity),
            status="complete",
            guarantee=self.shard.guarantee,
            topology=topology_digest(self.shard.topology),
            layout=layout,
            values=stored_values,
            database=self.nonce if files else None,
            files=files,
            components=components,
            phases=self.shard.phases,
            lead=self.shard.lead,
        )

    def _sign_off(self, receipt: Receipt) -> None:
        """Put the receipt. From the first try on it may be there, unless the store is full or refuses all writes."""
        key, data = names.receipt_key(self.generation, self.rank), records.encode(receipt)
        try:
            found = ledger.insist(self.store, key, data, clock=self.clock, timeout=RECEIPT_TIMEOUT)
        except (StoreFull, UnsafeStore):
            raise
        except StoreError as error:
            if self._is_known_to_have_failed(key, error):
                raise
            raise CommitUnknown(f"rank {self.rank} does not know whether its receipt {key} is there: {error}") from error
        _check_own(found, data, key, self.rank)

    def _is_known_to_have_failed(self, key: str, error: StoreError) -> bool:
        """Whether a receipt that says so is what is stored now, so that nobody waits. The complete one may be there instead."""
        data = _failed_receipt(self.shard.identity, error)
        try:
            return self.store.put_if_absent(key, data) == data
        except CheckpointError:
            return False

    def _tell(self, kind: Any, detail: dict[str, Any] | None = None) -> None:
        tell(self.on_event, Event(kind, self.rank, self.generation, detail=detail or {}))


def _failed_receipt(identity: Identity, error: Exception) -> bytes:
    reason = records.clip(f"{type(error).__name__}: {error}")
    return records.encode(Receipt(**_identity_fields(identity), status="failed", reason=reason))


def _identity_fields(identity: Identity) -> dict[str, Any]:
    return {
        "run_id": identity.run_id,
        "generation": str(identity.generation),
        "incarnation": identity.generation.incarnation,
        "claim": identity.claim,
        "step": identity.generation.step,
        "rank": identity.rank,
        "participants": identity.participants,
    }


def _check_own(found: bytes, data: bytes, key: str, rank: int) -> None:
    if found != data:
        raise ProtocolViolation(f"{key} was written by somebody else: two processes act as rank {rank}; stop one of them")
