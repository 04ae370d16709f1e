"""A collection by hand: what it retires, deletes and holds back, with sizes (spec: retention, "a command run by a person")."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcore import names, records
from ckptcore.clock import Clock
from ckptcore.errors import DamageError
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.keep import Keep
from ckptcore.names import GenerationId
from ckptcore.retention import Collected, Collector
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes
from ckptcore.workers import Workers

UNDECIDED = "it is undecided: its own job decides it, `ckpt recover` if it is complete, or the next start"


@dataclass(frozen=True)
class Piece:
    """The data of one generation. `bytes`: what its store holds of it; `reason`: why it goes, or stays."""

    generation: GenerationId
    bytes: int
    reason: str


@dataclass(frozen=True)
class Collection:
    """What a collection does or has done. `retired`, with the reasons, is among `deleted` or `held` where there is data of it."""

    retired: tuple[tuple[GenerationId, str], ...]
    deleted: tuple[Piece, ...]
    held: tuple[Piece, ...]


def collect(
    store: Store, keep: Keep | None, *, apply: bool, dead_claims: frozenset[int] = frozenset(), clock: Clock | None = None
) -> Collection:
    """Collect without an incarnation; without `apply` only say what would be done. `keep` None retires nothing.

    Raises what `Collector.collect` raises.
    """
    run = read_run(store)
    collector = Collector(store, None, clock or Clock(), dead_claims=dead_claims)
    found = collector.collect(keep, dry_run=True)
    left = undecided(store)
    sizes = {each: stored_bytes(store, run.run_id, each) for each in (*found.deleted, *found.held, *left)}
    done = collector.collect(keep) if apply else found
    held = {**done.held, **dict.fromkeys(left, UNDECIDED)}
    return Collection(
        tuple(done.reasons.items()),
        tuple(Piece(each, sizes.get(each, 0), _why(done, each)) for each in done.deleted),
        tuple(Piece(each, sizes.get(each, 0), why) for each, why in sorted(held.items())),
    )


def _why(done: Collected, generation: GenerationId) -> str:
    return done.reasons.get(generation, "it was given up before")


def stored_bytes(store: Store, run_id: str, generation: GenerationId) -> int:
    """The bytes of a generation's files: as a file system tells them, or as its receipts list them.

    An object store is not asked for the size of every object; what no receipt vouches for is not counted there.
    """
    with Workers(store.limits.requests, "sizes") as pool:
        if store.driver == "file":
            found = pool.map(store.size, store.list(names.generation_prefix(generation)))
            return sum(size or 0 for size in found)
        prefix = names.receipts_prefix(generation)
        return sum(pool.map(lambda name: _delivered(store, run_id, f"{prefix}{name}"), store.children(prefix)))


def _delivered(store: Store, run_id: str, key: str) -> int:
    data = bounded_bytes(store, key) or b""
    try:
        receipt = records.decode(data, records.Receipt, key=key)
        records.expect(key, run_id=(receipt.run_id, run_id))
    except DamageError:
        return len(data)  # nobody knows what it lists, and it is deleted like any other
    return len(data) + sum(file.size for file in receipt.files) + (receipt.values.size if receipt.values else 0)
