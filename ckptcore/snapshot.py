"""The main-thread half of one save: plan it, and take the snapshot (spec: save, snapshot boundary)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcore import guarantees, names, records, values
from ckptcore.backend import Backend, Flat
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.guarantees import Derived
from ckptcore.layout import Plan, make_plan
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.session import Session
from ckptcore.writer import Identity, Shard


@dataclass(frozen=True, kw_only=True)
class Order:
    """One save as the caller asked for it. `latest` is the commit it continues from, None for the first."""

    components: Mapping[str, Any]
    derived: Derived
    guarantee: records.Level | None
    require: records.Level | None
    metadata: Any
    unchanged: Sequence[str]
    latest: Decided | None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A save whose layout is formed and whose values are taken; its arrays are not staged yet."""

    flat: Flat
    plan: Plan
    promised: records.Guarantee
    encoded: Mapping[str, Any]
    metadata: Any
    references: Mapping[str, records.Generation]


def prepare(backend: Backend, session: Session, order: Order, *, chunk_bytes: int) -> Prepared:
    """Flatten, prove the guarantee, lay out. Raises a `CallError` that names the leaf; nothing has happened then."""
    references = _references(order)
    flat = backend.flatten(order.components)
    for name, component in flat.components.items():
        if component.rank_zero and component.kind in ("data", "rng"):
            raise CallError(
                f"component {name!r} cannot be RankZero: ranks with other {component.kind} would resume with rank 0's."
                " Use PerRank"
            )
    facts = {**flat.components, **{name: manifest_of(source).components[name] for name, source in references.items()}}
    least = None if order.guarantee == "weights" else order.require
    return Prepared(
        flat=flat,
        plan=make_plan(flat.components, flat.arrays, flat.values, rank=session.rank, chunk_bytes=chunk_bytes),
        promised=guarantees.resolve(facts, order.derived, guarantee=order.guarantee, require=least),
        encoded={
            value.name: values.encode(value.value, where=names.show_path(value.component, value.path)) for value in flat.values
        },
        metadata=None if order.metadata is None else values.encode(order.metadata, where="metadata"),
        references={name: str(source.generation) for name, source in references.items()},
    )


def identify(backend: Backend, session: Session, prepared: Prepared, generation: GenerationId) -> Identity:
    """What all receipts of the save say alike."""
    return Identity(
        run_id=session.run_id,
        generation=generation,
        claim=session.incarnation.claim.nonce,
        participants=session.channel.size,
        guarantee=prepared.promised,
        topology=backend.topology(prepared.flat.meshes),
    )


def stage(
    backend: Backend,
    session: Session,
    prepared: Prepared,
    identity: Identity,
    latest: Decided | None,
    *,
    limit: int | None,
    clock: Clock,
) -> Shard:
    """Copy what this rank writes to where no later step can change it. Raises `StagingLimit` before it copies anything."""
    flat, plan = prepared.flat, prepared.plan
    own = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    replicated = [array.name for array in flat.arrays if array.host_replicated and array.alias is None]
    captured = clock.utc()
    staged = flat.stage(own, replicated, limit)
    lead = None
    if session.rank == 0:
        lead = records.Lead(
            captured=captured,
            topology=identity.topology,
            parent=str(latest.generation) if latest else None,
            parent_manifest=latest.digest if latest else None,
            versions=backend.versions(),
            references=dict(prepared.references),
            metadata=prepared.metadata,
        )
    return Shard(identity=identity, rank=session.rank, plan=plan, flat=flat, staged=staged, values=prepared.encoded, lead=lead)


def _references(order: Order) -> dict[str, Decided]:
    for name in order.unchanged:
        if name in order.components:
            raise CallError(f"component {name!r} is both given and declared unchanged")
        if order.latest is None or name not in manifest_of(order.latest).components:
            raise CallError(f"component {name!r} is declared unchanged, but the checkpoint before lacks it; save it once")
    return {name: order.latest for name in order.unchanged if order.latest is not None}
