"""The proof that a generation is complete, and the manifest that follows from it: pure (spec: commit).

`prove` looks at nothing but the stored receipts and layouts, so two coordinators derive the same
bytes. It either returns everything that a commit consists of, or says why there is no proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ckptcore import guarantees, names, records
from ckptcore.arrays import StoredArray
from ckptcore.digests import component_digest, digest, leaf_digest, topology_digest, value_digest
from ckptcore.errors import DamageError, UnsupportedFormat
from ckptcore.geometry import in_grid_order, tiling_problems
from ckptcore.layout import ComponentFacts, grid_of
from ckptcore.leafunion import Leaf, LeafUnion, show_ranks, unite
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.records import ArrayLeaf, Committed, Descriptor, IndexedLeaf, Layout, Receipt

MAX_PROBLEMS = 12
_FORGOTTEN = {
    True: "do all ranks train one model (in torch: was DDP forgotten?), from equal seeds?",
    False: "do all ranks make it alike, from equal seeds?",
}
"""Whether it is an array → why what should be equal on all ranks most likely is not."""
T = TypeVar("T")
_Chunks = Sequence[tuple[int, str]]
"""`(chunk, digest)` of what one rank wrote of one array."""


@dataclass(frozen=True)
class Evidence:
    """What the store holds of one generation.

    Receipts and values by rank, layouts by digest, and the commits referred to by component.
    """

    receipts: Mapping[int, bytes]
    layouts: Mapping[str, bytes]
    values: Mapping[int, bytes]
    references: Mapping[str, Decided]
    decoded: Mapping[bytes, Receipt] = field(default_factory=dict)
    """What some receipts say, by their bytes: whoever has decoded them to find the rest hands that over."""


@dataclass(frozen=True)
class Refuted:
    """The generation is proven incomplete or inconsistent."""

    reason: str
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Proven:
    """A complete generation: its manifest, and what has to be there before the manifest is published."""

    manifest: records.Manifest
    objects: Mapping[str, bytes]
    """Index files and roster, by key."""
    arrays: Mapping[str, StoredArray]
    """Every stored array, by stored name."""
    layouts: Sequence[Layout]
    receipts: Sequence[Receipt]
    """In rank order, without the digests of chunks: the indexes have them, and they take more memory than all the rest."""

    @property
    def generation(self) -> GenerationId:
        """The generation that is proven."""
        return GenerationId.parse(self.manifest.generation)


class _Problems(Exception):
    """Collected reasons; stays inside of this module."""


def prove(run_id: str, generation: GenerationId, evidence: Evidence) -> Proven | Refuted:
    """Prove that `generation` is complete and consistent, or say why it is not."""
    decoded: dict[int, Receipt] = {}
    for rank, data in sorted(evidence.receipts.items()):
        key = names.receipt_key(generation, rank)
        try:
            decoded[rank] = evidence.decoded.get(data) or records.decode(data, Receipt, key=key)
            records.expect(key, run_id=(decoded[rank].run_id, run_id), rank=(decoded[rank].rank, rank))
        except UnsupportedFormat:
            raise
        except DamageError as error:
            return Refuted(f"receipt of rank {rank} is unusable: {error}")
    if not decoded:
        return Refuted("no receipt was delivered")
    failed = [f"rank {rank}: {receipt.reason}" for rank, receipt in decoded.items() if receipt.status == "failed"]
    if failed:
        return Refuted("a rank could not write its part. " + "; ".join(failed[:MAX_PROBLEMS]))
    participants = min(receipt.participants for receipt in decoded.values())
    missing = tuple(rank for rank in range(participants) if rank not in decoded)
    if missing:
        return Refuted(f"no receipt from {show_ranks(missing)} of {participants}", missing)
    try:
        return _Prover(generation, list(decoded.values()), evidence).proven()
    except _Problems as problems:
        return Refuted(str(problems))


class _Prover:
    """The steps of the proof over the receipts of all participants, in rank order."""

    def __init__(self, generation: GenerationId, receipts: list[Receipt], evidence: Evidence) -> None:
        self.generation = generation
        self.receipts = receipts
        self.evidence = evidence
        self.lead = receipts[0].lead
        self.problems: list[str] = []
        self.layouts: dict[str, Layout] = {}
        self.described: dict[str, Descriptor] = {}
        self.union = LeafUnion()

    def proven(self) -> Proven:
        """Run every check; raise `_Problems` with all that was found, else derive the commit."""
        self._check_identity()
        self._raise()
        self._load_layouts()
        self._raise()
        self.union = unite(self.layouts, [_present(receipt.layout).digest for receipt in self.receipts])
        self.problems.extend(self.union.problems)
        self._raise()
        indexed, arrays = self._index()
        self._check_shared()
        self._check_values()
        self._check_references()
        self._check_guarantee()
        self._raise()
        return self._derive(indexed, arrays)

    def _raise(self) -> None:
        if self.problems:
            more = len(self.problems) - MAX_PROBLEMS
            raise _Problems("; ".join(self.problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else ""))

    def _check_identity(self) -> None:
        first = self.receipts[0]
        if first.generation != str(self.generation):
            self.problems.append(f"rank 0's receipt is of generation {first.generation}")
        for said in ("generation", "incarnation", "claim", "step", "participants", "topology", "guarantee", "requires"):
            differing = [r.rank for r in self.receipts if getattr(r, said) != getattr(first, said)]
            if differing:
                self.problems.append(f"{show_ranks(differing)} and rank 0 disagree on `{said}`")
        if self.lead is not None and topology_digest(self.lead.topology) != first.topology:
            self.problems.append("rank 0's topology differs from its digest")
        if self.lead is not None and self.lead.topology.participants != first.participants:
            self.problems.append(
                f"the topology has {self.lead.topology.participants} participants, the receipts {first.participants}"
            )

    def _load_layouts(self) -> None:
        for receipt in self.receipts:
            descriptor = _present(receipt.layout)
            if descriptor.digest in self.layouts:
                if descriptor != self.described[descriptor.digest]:
                    self.problems.append(f"rank {receipt.rank}'s layout has another key or size than its digest says")
                continue
            data = self.evidence.layouts.get(descriptor.digest)
            if descriptor.key != names.layout_key(self.generation, descriptor.digest):
                self.problems.append(f"rank {receipt.rank}'s layout has the foreign key {descriptor.key}")
            elif data is None or len(data) != descriptor.size or digest(data) != descriptor.digest:
                self.problems.append(f"layout {descriptor.key} of rank {receipt.rank} is absent or differs from its digest")
            else:
                self._load_layout(descriptor, data)

    def _load_layout(self, descriptor: Descriptor, data: bytes) -> None:
        try:
            self.layouts[descriptor.digest] = records.decode(data, Layout, key=descriptor.key)
            self.described[descriptor.digest] = descriptor
        except UnsupportedFormat:
            raise
        except DamageError as error:
            self.problems.append(str(error))

    def _index(self) -> tuple[dict[str, IndexedLeaf], dict[str, StoredArray]]:
        written = self._written()
        indexed: dict[str, IndexedLeaf] = {}
        arrays: dict[str, StoredArray] = {}
        for name, leaf in self.union.leaves.items():
            if isinstance(leaf.record, records.ValueLeaf):
                value = self._stated(leaf, leaf.lowest)
                if value is None:
                    self.problems.append(f"rank {leaf.lowest} gives no digest of the value {name!r}")
                else:
                    indexed[name] = IndexedLeaf(digest=value)
            elif leaf.record.alias is None:
                grid = grid_of(leaf.record)
                chunks = in_grid_order(grid.size, written.pop(name, []))
                if chunks is None:
                    problems = tiling_problems(grid.size, self._owners(name))
                    self.problems.extend(f"array {name!r}: {problem}{self._partial(leaf)}" for problem in problems)
                else:
                    indexed[name] = IndexedLeaf(
                        digest=leaf_digest(leaf.record.dtype, leaf.record.shape, grid, chunks), chunks=chunks
                    )
                    arrays[name] = StoredArray(name=name, dtype=leaf.record.stored_dtype, shape=leaf.record.shape, grid=grid)
        self.problems.extend(f"a receipt lists chunks of {name!r}, which no layout has" for name in written)
        for name, leaf in self.union.leaves.items():
            if isinstance(leaf.record, ArrayLeaf) and leaf.record.alias is not None:
                target = name[: len(name) - len(leaf.record.name)] + leaf.record.alias
                if target in indexed:
                    indexed[name] = IndexedLeaf(digest=indexed[target].digest)
        return indexed, arrays

    def _written(self) -> dict[str, list[_Chunks]]:
        """Stored name → what the ranks that wrote some of its chunks list, in rank order."""
        found: dict[str, list[_Chunks]] = defaultdict(list)
        for receipt in self.receipts:
            for component, part in receipt.components.items():
                if self.union.is_of_ranks(component):
                    for name, chunks in part.chunks.items():
                        found[names.rank_array_name(receipt.rank, name)].append(chunks)
                else:
                    for name, chunks in part.chunks.items():
                        found[name].append(chunks)
        return found

    def _owners(self, name: str) -> dict[int, list[int]]:
        """Chunk → the ranks that list it, of one array: asked for where something is wrong with it."""
        found: dict[int, list[int]] = defaultdict(list)
        for receipt in self.receipts:
            for component, part in receipt.components.items():
                for own, chunks in part.chunks.items():
                    if (names.rank_array_name(receipt.rank, own) if self.union.is_of_ranks(component) else own) == name:
                        for cell, _ in chunks:
                            found[cell].append(receipt.rank)
        return found

    def _stated(self, leaf: Leaf, rank: int) -> str | None:
        """The digest of a JSON leaf as `rank` states it."""
        part = self.receipts[rank].components.get(leaf.component)
        return None if part is None else part.values.get(leaf.record.name)

    def _check_shared(self) -> None:
        """Values and replicated host arrays must be equal on all ranks that state them."""
        every = self._all_stated()
        for name, leaf in self.union.leaves.items():
            stated = every.get((leaf.component, leaf.record.name, isinstance(leaf.record, ArrayLeaf)))
            if stated is None or self.union.is_of_ranks(leaf.component):
                continue
            counted = stated if len(leaf.ranks) == len(self.receipts) else {r: stated[r] for r in leaf.ranks if r in stated}
            first = next(iter(counted), None)
            differing = [rank for rank, value in counted.items() if first is not None and value != counted[first]]
            if differing:
                self.problems.append(
                    f"{name!r} differs between rank {first} and {show_ranks(differing)} though it counts as replicated:"
                    f" {_FORGOTTEN[isinstance(leaf.record, ArrayLeaf)]} If it is meant to differ,"
                    f" wrap component {leaf.component!r} in PerRank (each rank its own) or RankZero (rank 0's copy counts)"
                )

    def _all_stated(self) -> dict[tuple[str, str, bool], dict[int, str]]:
        """`(component, layout name, of an array)` → the digest of the whole as each rank that states one sees it."""
        found: dict[tuple[str, str, bool], dict[int, str]] = defaultdict(dict)
        for receipt in self.receipts:
            for component, part in receipt.components.items():
                for of_array, stated in ((False, part.values), (True, part.replicas)):
                    for name, value in stated.items():
                        found[component, name, of_array][receipt.rank] = value
        return found

    def _check_values(self) -> None:
        """Every JSON leaf is stored where a reader looks: by its own rank, or by the lowest that has it."""
        stored = {rank: self._values_of(rank) for rank in sorted({leaf.lowest for leaf in self.union.leaves.values()})}
        for name, leaf in self.union.leaves.items():
            if isinstance(leaf.record, records.ValueLeaf):
                rank, scope = leaf.lowest, self.union.components[leaf.component].scope
                record = stored[rank]
                kept = {} if record is None else (record.own if scope == "rank" else record.shared).get(leaf.component, {})
                if leaf.record.name not in kept or value_digest(kept[leaf.record.name]) != self._stated(leaf, rank):
                    self.problems.append(f"rank {rank}'s values lack {name!r} as its receipt states it{self._partial(leaf)}")

    def _partial(self, leaf: Leaf) -> str:
        """What to do about a global leaf that some ranks lack: the likely reason why nobody stored it."""
        if self.union.is_of_ranks(leaf.component) or len(leaf.ranks) == len(self.receipts):
            return ""
        return (
            f" (only {show_ranks(leaf.ranks)} of {len(self.receipts)} has this leaf:"
            f" wrap component {leaf.component!r} in PerRank (each rank its own) or RankZero (rank 0's copy counts))"
        )

    def _values_of(self, rank: int) -> records.Values | None:
        descriptor, data = self.receipts[rank].values, self.evidence.values.get(rank)
        if descriptor is None:
            return None
        if descriptor.key != names.values_key(self.generation, rank):
            self.problems.append(f"rank {rank}'s values have the foreign key {descriptor.key}")
        elif data is None or len(data) != descriptor.size or digest(data) != descriptor.digest:
            self.problems.append(f"{descriptor.key} is absent or differs from its digest")
        else:
            try:
                return records.decode(data, records.Values, key=descriptor.key)
            except UnsupportedFormat:
                raise
            except DamageError as error:
                self.problems.append(str(error))
        return None

    def _check_references(self) -> None:
        for component in self.lead.references if self.lead else {}:
            source = self.evidence.references.get(component)
            if component in self.union.components:
                self.problems.append(f"component {component!r} is both written and declared unchanged")
            elif source is None or not isinstance(source.record, records.Manifest) or component not in source.record.components:
                self.problems.append(f"component {component!r} is declared unchanged, but its source has no such commit")
            elif source.record.components[component].scope == "rank":
                before, now = source.record.topology.participants, self.receipts[0].participants
                if before != now:
                    self.problems.append(
                        f"component {component!r} is declared unchanged, but its source holds that of {before} ranks,"
                        f" not of {now}: save it again"
                    )

    def _check_guarantee(self) -> None:
        guarantee = _present(self.receipts[0].guarantee)
        derived: dict[str, str | guarantees.Approximate] = dict(guarantee.derived)
        if guarantee.replay_samples is not None:
            derived["data"] = guarantees.Approximate(guarantee.replay_samples)
        unmet = guarantees.missing_for(guarantee.level, {**self.union.components, **self._referenced_facts()}, derived)
        self.problems.extend(f"guarantee {guarantee.level!r}: {need}" for need in unmet)

    def _referenced_facts(self) -> dict[str, ComponentFacts]:
        return {name: ComponentFacts(kind=entry.kind, scope=entry.scope) for name, entry in self._referenced().items()}

    def _referenced(self) -> dict[str, Committed]:
        entries = {}
        for component, generation in (self.lead.references if self.lead else {}).items():
            source = self.evidence.references.get(component)
            if source is not None and isinstance(source.record, records.Manifest) and component in source.record.components:
                entry = source.record.components[component]
                entries[component] = entry if entry.source else msgspec.structs.replace(entry, source=generation)
        return entries

    def _derive(self, indexed: Mapping[str, IndexedLeaf], arrays: Mapping[str, StoredArray]) -> Proven:
        lead, first = _present(self.lead), self.receipts[0]
        objects: dict[str, bytes] = {}
        committed: dict[str, Committed] = dict(self._referenced())
        for component, facts in self.union.components.items():
            leaves = {name: indexed[name] for name, leaf in self.union.leaves.items() if leaf.component == component}
            index = records.Index(component=component, leaves=leaves)
            committed[component] = Committed(
                kind=facts.kind,
                scope=facts.scope,
                leaves=len(leaves),
                bytes=sum(r.components[component].bytes for r in self.receipts if component in r.components),
                digest=component_digest(component, {name: leaf.digest for name, leaf in leaves.items()}),
                index=_describe(records.encode(index), lambda d, c=component: names.index_key(self.generation, c, d), objects),
            )
        manifest = records.Manifest(
            requires=first.requires,
            run_id=first.run_id,
            generation=first.generation,
            incarnation=first.incarnation,
            claim=first.claim,
            step=first.step,
            parent=lead.parent,
            parent_manifest=lead.parent_manifest,
            guarantee=_present(first.guarantee),
            topology=lead.topology,
            components=committed,
            roster=_describe(records.encode(self._roster()), lambda d: names.roster_key(self.generation, d), objects),
            captured=lead.captured,
            versions=lead.versions,
            metadata=lead.metadata,
        )
        return Proven(manifest, objects, arrays, list(self.layouts.values()), [_without_chunks(r) for r in self.receipts])

    def _roster(self) -> records.Roster:
        ranks = []
        for receipt in self.receipts:
            data = self.evidence.receipts[receipt.rank]
            stored = Descriptor(key=names.receipt_key(self.generation, receipt.rank), size=len(data), digest=digest(data))
            layout = _present(receipt.layout).digest
            ranks.append(
                records.Delivered(
                    rank=receipt.rank, receipt=stored, layout=layout, values=receipt.values, database=receipt.database
                )
            )
        return records.Roster(generation=str(self.generation), ranks=ranks, layouts=list(self.described.values()))


def _present(value: T | None) -> T:
    if value is None:
        raise _Problems("a receipt lacks a field that a complete receipt has")
    return value


def _without_chunks(receipt: Receipt) -> Receipt:
    parts = {name: msgspec.structs.replace(part, chunks={}) for name, part in receipt.components.items()}
    return msgspec.structs.replace(receipt, components=parts)


def _describe(data: bytes, key_of: Callable[[str], str], objects: dict[str, bytes]) -> Descriptor:
    value = digest(data)
    objects[key_of(value)] = data
    return Descriptor(key=key_of(value), size=len(data), digest=value)
