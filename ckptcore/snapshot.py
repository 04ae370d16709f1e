"""The main-thread half of one save: plan it, and take the snapshot (spec: save, snapshot boundary)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ckptcore import guarantees, names, notes, records, union, values
from ckptcore.backend import Backend, Flat
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.guarantees import Derived, Described
from ckptcore.layout import ArrayFacts, ComponentFacts, make_plan
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.session import together_telling
from ckptcore.union import EXCHANGE_TIMEOUT, Exchange, United
from ckptcore.writer import Identity, Shard


@dataclass(frozen=True, kw_only=True)
class Order:
    """One save as the caller asked for it.

    `latest` is the commit it continues from, None for the first; `remapped` says that the ranks took one another's
    state from it. `obstacle` says why nothing may refer to a commit, None if it may.
    """

    components: Mapping[str, Any]
    derived: Derived
    guarantee: records.Level | None
    require: records.Level | None
    metadata: Any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    unchanged: Sequence[str]
    latest: Decided | None
    remapped: bool
    obstacle: Callable[[GenerationId], str | None]
    clock: Clock


@dataclass(frozen=True)
class Limits:
    """The most bytes of one chunk, and of one snapshot (None: no bound)."""

    chunk_bytes: int
    staging_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """What this rank knows by itself before anything is copied."""

    flat: Flat
    references: Mapping[str, Decided]
    guarantee: records.Guarantee
    encoded: Mapping[str, Any]
    metadata: Any


def take(backend: Backend, identity: Identity, order: Order, exchange: Exchange, limits: Limits) -> Shard:
    """Flatten, prove the guarantee, lay out, and copy what this rank writes to where no later step can change it.

    Raises a `CallError` that names the leaf, or `StagingLimit` before anything is copied.
    """
    captured = order.clock.utc()
    prepared, united = _agreed(backend, identity, order, exchange)
    flat, references = prepared.flat, prepared.references
    plan = make_plan(
        flat.components,
        united.arrays,
        united.values,
        rank=identity.rank,
        chunk_bytes=limits.chunk_bytes,
        elsewhere=united.elsewhere,
    )
    topology = backend.topology(united.meshes)
    own = {name: [plan.grids[name].cell(cell) for cell in cells] for name, cells in plan.own.items()}
    lead = None
    if identity.rank == 0:
        lead = records.Lead(
            captured=captured,
            topology=topology,
            parent=str(order.latest.generation) if order.latest else None,
            parent_manifest=order.latest.digest if order.latest else None,
            versions=backend.versions(),
            references={name: str(source.generation) for name, source in references.items()},
            metadata=prepared.metadata,
        )
    return Shard(
        identity=identity,
        guarantee=prepared.guarantee,
        topology=topology,
        plan=plan,
        flat=flat,
        staged=flat.stage(own, [array.name for array in united.arrays if _is_compared(array)], limits.staging_bytes),
        values=prepared.encoded,
        kept=frozenset(value.name for value in united.values if value.keeper == identity.rank),
        lead=lead,
    )


def _agreed(backend: Backend, identity: Identity, order: Order, exchange: Exchange) -> tuple[_Prepared, United]:
    """What is to be saved, with all holders of every leaf. Where ranks have leaves of their own they exchange them."""

    def prepare() -> _Prepared:
        return _prepare(backend, identity, order)

    if not backend.partial:
        prepared = prepare()
        flat = prepared.flat
        return prepared, United(arrays=flat.arrays, values=flat.values, meshes=flat.meshes)
    what = "whether every rank can save its state"

    def tell(done: _Prepared) -> bytes:
        return f"{identity.generation} ".encode() + union.digest_of(union.describe(done.flat))

    prepared, told = together_telling(exchange.channel, prepare, tell, timeout=EXCHANGE_TIMEOUT, what=what)
    return prepared, exchange.complete(prepared.flat, _of_one_save(identity, told))


def _of_one_save(identity: Identity, told: Sequence[bytes]) -> list[bytes]:
    """The digests of all ranks' tables. Raises `CallError` on every rank unless all of them make the same save."""
    split = [message.partition(b" ") for message in told]
    for rank, (generation, _, _) in enumerate(split):
        if generation != str(identity.generation).encode():
            raise CallError(
                f"rank {identity.rank} saves {identity.generation}, rank {rank} {generation.decode()}: all ranks have to call"
                " save alike, with the same steps. If one of them left a save by an exception of its own, restart the job"
            )
    return [digest for _, _, digest in split]


def _prepare(backend: Backend, identity: Identity, order: Order) -> _Prepared:
    for name in order.components:
        names.check_component(name)
    notes.numbers(order.metrics)  # a rank that has others must not raise before the ranks have met
    references = _references(order, identity)
    flat = backend.flatten(order.components)
    _check_rank_zero(flat, order.derived)
    described = {name: _as_far_as_exact(component, identity) for name, component in flat.components.items()}
    facts = {**described, **{name: manifest_of(source).components[name] for name, source in references.items()}}
    return _Prepared(
        flat=flat,
        references=references,
        guarantee=_promise(order, facts),
        encoded={leaf.name: values.encode(leaf.value, where=names.show_path(leaf.component, leaf.path)) for leaf in flat.values},
        metadata=None if order.metadata is None else values.encode(order.metadata, where="metadata"),
    )


def _as_far_as_exact(component: ComponentFacts, identity: Identity) -> ComponentFacts:
    """What a component that training goes on from says of `exact`: that one rank's copy counts is no proof that all are equal."""
    if component.rank_zero and identity.participants > 1 and component.kind in guarantees.NEEDS:
        reason = "it is RankZero, so other ranks go on with rank 0's copy, which may not be theirs"
        return replace(component, inexact=component.inexact or reason)
    return component


def _is_compared(array: ArrayFacts) -> bool:
    """Whether several ranks hold the array by themselves and have to agree on it."""
    return array.host_replicated and array.alias is None and any(len(holders) > 1 for holders in array.shards.values())


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


def _references(order: Order, identity: Identity) -> dict[str, Decided]:
    """The commit that each unchanged component is taken from."""
    references: dict[str, Decided] = {}
    for name in order.unchanged:
        if name in order.components:
            raise CallError(f"component {name!r} is both given and declared unchanged")
        if order.latest is None or name not in manifest_of(order.latest).components:
            raise CallError(f"component {name!r} is declared unchanged, but the checkpoint before lacks it; save it once")
        _check_reference(name, manifest_of(order.latest), order, identity.participants)
        if identity.rank == 0:  # one rank asks the store; the others hear of it
            _check_source(name, order.latest, order)
        references[name] = order.latest
    return references


def _check_source(name: str, latest: Decided, order: Order) -> None:
    source = manifest_of(latest).components[name].source
    home = latest.generation if source is None else GenerationId.parse(source)
    found = order.obstacle(home)
    if found is not None:
        raise CallError(f"component {name!r} is declared unchanged, but {home}, which holds it, is {found}; save it again")


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
