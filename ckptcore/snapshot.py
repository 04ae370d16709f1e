"""The main-thread half of one save: plan it, and take the snapshot (spec: save, snapshot boundary)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcore import guarantees, names, records, values
from ckptcore.backend import Backend, Flat
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.guarantees import Derived, Described
from ckptcore.layout import make_plan
from ckptcore.ledger import Decided, manifest_of
from ckptcore.writer import Identity, Shard


@dataclass(frozen=True, kw_only=True)
class Order:
    """One save as the caller asked for it.

    `latest` is the commit it continues from, None for the first; `remapped` says that the ranks took one another's
    state from it.
    """

    components: Mapping[str, Any]
    derived: Derived
    guarantee: records.Level | None
    require: records.Level | None
    metadata: Any
    unchanged: Sequence[str]
    latest: Decided | None
    remapped: bool
    clock: Clock


def take(backend: Backend, identity: Identity, order: Order, *, chunk_bytes: int, limit: int | None) -> Shard:
    """Flatten, prove the guarantee, lay out, and copy what this rank writes to where no later step can change it.

    `limit` bounds the bytes staged. Raises a `CallError` that names the leaf, or `StagingLimit` before anything is copied.
    """
    captured = order.clock.utc()
    references = _references(order, identity.participants)
    flat = backend.flatten(order.components)
    _check_rank_zero(flat, order.derived)
    plan = make_plan(flat.components, flat.arrays, flat.values, rank=identity.rank, chunk_bytes=chunk_bytes)
    facts = {**flat.components, **{name: manifest_of(source).components[name] for name, source in references.items()}}
    guarantee = _promise(order, facts)
    encoded = {
        value.name: values.encode(value.value, where=names.show_path(value.component, value.path)) for value in flat.values
    }
    metadata = None if order.metadata is None else values.encode(order.metadata, where="metadata")
    topology = backend.topology(flat.meshes)
    own = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    replicated = [array.name for array in flat.arrays if array.host_replicated and array.alias is None]
    lead = None
    if identity.rank == 0:
        lead = records.Lead(
            captured=captured,
            topology=topology,
            parent=str(order.latest.generation) if order.latest else None,
            parent_manifest=order.latest.digest if order.latest else None,
            versions=backend.versions(),
            references={name: str(source.generation) for name, source in references.items()},
            metadata=metadata,
        )
    return Shard(
        identity=identity,
        guarantee=guarantee,
        topology=topology,
        plan=plan,
        flat=flat,
        staged=flat.stage(own, replicated, limit),
        values=encoded,
        lead=lead,
    )


def _promise(order: Order, facts: Mapping[str, Described]) -> records.Guarantee:
    """The guarantee to record. A save of weights needs none of the declarations about the rest."""
    if order.guarantee == "weights":
        derived = {need: source for need, source in order.derived.items() if need == "parameters"}
        return guarantees.resolve(facts, derived, guarantee="weights")
    return guarantees.resolve(facts, order.derived, guarantee=order.guarantee, require=order.require)


def _check_rank_zero(flat: Flat, derived: Derived) -> None:
    for need in ("data", "rng"):
        for name, component in flat.components.items():
            if component.rank_zero and (component.kind == need or derived.get(need) == name):
                raise CallError(
                    f"component {name!r} cannot be RankZero: it holds {need}, and ranks with another {need} would resume with"
                    " rank 0's. Use PerRank"
                )


def _references(order: Order, participants: int) -> dict[str, Decided]:
    """The commit that each unchanged component is taken from."""
    references: dict[str, Decided] = {}
    for name in order.unchanged:
        if name in order.components:
            raise CallError(f"component {name!r} is both given and declared unchanged")
        if order.latest is None or name not in manifest_of(order.latest).components:
            raise CallError(f"component {name!r} is declared unchanged, but the checkpoint before lacks it; save it once")
        _check_reference(name, manifest_of(order.latest), order, participants)
        references[name] = order.latest
    return references


def _check_reference(name: str, before: records.Manifest, order: Order, participants: int) -> None:
    entry, derived = before.components[name], order.derived
    if entry.scope == "rank" and order.remapped:
        raise CallError(f"component {name!r} is declared unchanged, but the ranks took one another's copy of it; save it again")
    if entry.scope == "rank" and before.topology.participants != participants:
        raise CallError(
            f"component {name!r} is declared unchanged, but the checkpoint before holds that of {before.topology.participants}"
            f" ranks, not of {participants}; save it again"
        )
    for need in ("data", "rng"):
        # Whether it was RankZero is not recorded: only a save that declared the same has refused that.
        if derived.get(need) == name and entry.kind != need and before.guarantee.derived.get(need) != name:
            raise CallError(
                f"component {name!r} is declared unchanged, but the checkpoint before does not declare that it holds {need};"
                " save it again"
            )
