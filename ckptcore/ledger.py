"""The ledger: one decision per generation, created once, never changed (spec: protocol, decision).

The put-if-absent of the decision is the single linearization point of a save. Whoever comes
second reads what was decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ckptcore import names, records, values
from ckptcore.clock import Clock
from ckptcore.digests import digest
from ckptcore.errors import CommitUnknown, DamageError, NotFound, ProtocolViolation, StoreError, StoreUnavailable
from ckptcore.events import log
from ckptcore.names import GenerationId
from ckptcore.store import Store
from ckptcore.storereads import exists, record_bytes


@dataclass(frozen=True)
class Decided:
    """A decision as it is stored: the record and the digest of its bytes."""

    generation: GenerationId
    record: records.Decision
    digest: str

    @property
    def committed(self) -> bool:
        """Whether the generation is a checkpoint."""
        return isinstance(self.record, records.Manifest)


def decode(generation: GenerationId, data: bytes, run_id: str) -> Decided:
    """Decode and check a stored decision. Raises `DamageError`."""
    key = names.ledger_key(generation)
    record = records.decode_decision(data, key=key)
    records.expect(key, run_id=(record.run_id, run_id), generation=(record.generation, str(generation)))
    return Decided(generation, record, digest(data))


def read(store: Store, run_id: str, generation: GenerationId) -> Decided | None:
    """The decision about `generation`, or None while there is none."""
    data = record_bytes(store, names.ledger_key(generation))
    return None if data is None else decode(generation, data, run_id)


def commit(store: Store, run_id: str, generation: GenerationId) -> Decided:
    """The commit of `generation`. Raises `NotFound` unless there is one, a `DamageError` if its record cannot be read."""
    decided = read(store, run_id, generation)
    if decided is None:
        raise NotFound(
            f"run {store.url} has no checkpoint {generation}; Run.generations() lists them, a save under way needs its result()"
        )
    manifest_of(decided)
    return decided


Entry = tuple[GenerationId, bool]
"""A generation, and whether the record is that it is retired."""


def entries(store: Store, known: dict[str, Entry | None] | None = None) -> Iterator[Entry]:
    """Every entry of the ledger; foreign files are passed over.

    `known` keeps what each key says: a job lists its ledger at every save, and most of it is as it was.
    """
    parsed = {} if known is None else known
    for key in store.list(names.LEDGER):
        if key not in parsed:
            parsed[key] = names.parse_ledger_key(key)
        entry = parsed[key]
        if entry is not None:
            yield entry


def decide(store: Store, record: records.Decision, *, clock: Clock, timeout: float) -> Decided:
    """Put `record` into the ledger if nothing is there, and return what is there.

    An I/O error on this put may hide a success, so the same put is repeated until the store
    answers. Raises `CommitUnknown` when it has not by `timeout` seconds, and
    `ProtocolViolation` when another manifest of the same generation is there.
    """
    generation = GenerationId.parse(record.generation)
    data = records.encode(record)
    found = insist(store, names.ledger_key(generation), data, clock=clock, timeout=timeout)
    if found == data:
        return Decided(generation, record, digest(data))
    other = decode(generation, found, record.run_id)
    if other.committed and isinstance(record, records.Manifest):
        raise ProtocolViolation(
            f"{names.ledger_key(generation)} holds another manifest ({other.digest}) than the one derived from the stored"
            f" receipts ({digest(data)}). Nothing was overwritten. Do not delete either; report this."
        )
    return other


def retire(store: Store, decided: Decided, policy: str, *, clock: Clock) -> None:
    """Say in the ledger that a commit may be deleted. Once said, it stays said."""
    record = records.RetiredRecord(
        run_id=decided.record.run_id,
        generation=str(decided.generation),
        manifest=decided.digest,
        decided=clock.utc(),
        policy=policy,
    )
    store.put_if_absent(names.retired_key(decided.generation), records.encode(record))


def is_retired(store: Store, generation: GenerationId) -> bool:
    """Whether the ledger says that `generation` may be deleted."""
    return exists(store, names.retired_key(generation))


def may_be_deleted(store: Store, decided: Decided) -> bool:
    """Whether a retired record that is there is about this very commit: no stray file makes anybody delete data."""
    key = names.retired_key(decided.generation)
    try:
        data = record_bytes(store, key)
        if data is None:
            return False
        record = records.decode(data, records.RetiredRecord, key=key)
        records.expect(key, run_id=(record.run_id, decided.record.run_id), manifest=(record.manifest, decided.digest))
    except DamageError as error:
        log.warning("the data of %s is kept: %s", decided.generation, error)
        return False
    return True


def insist(store: Store, key: str, data: bytes, *, clock: Clock, timeout: float) -> bytes:
    """Put `data` if nothing is there, again and again until the store answers; return what is there.

    Raises `CommitUnknown` when it has not answered by `timeout` seconds: the put may have been applied all the same.
    A store that has no room, or refuses, says so at the first try: of a later one that proves nothing about those before.
    """
    failure: StoreError | None = None
    for _ in clock.polls(timeout, first=0.05, most=5.0):
        try:
            return store.put_if_absent(key, data)
        except StoreError as error:
            if failure is None and not isinstance(error, StoreUnavailable):
                raise
            failure = error
    raise CommitUnknown(
        f"the store gave no answer about {key} for {timeout:g} s; it may have committed. Ask again later."
    ) from failure


def metadata_of(manifest: records.Manifest) -> Any:
    """What `save(metadata=…)` was given. Raises `InvalidRecord` when the manifest holds anything else."""
    return None if manifest.metadata is None else values.decode(manifest.metadata, where="metadata")


def manifest_of(decided: Decided) -> records.Manifest:
    """The manifest of a commit. Raises `NotFound` for an aborted generation."""
    if not isinstance(decided.record, records.Manifest):
        raise NotFound(f"generation {decided.generation} was aborted: {decided.record.reason}")
    return decided.record
