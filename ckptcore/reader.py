"""One committed generation, opened for reading (spec: reading).

Everything is reached from the manifest and checked on the way: the manifest's digest is known
from the ledger, it certifies roster and indexes, those certify layouts, values and chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ckptcore import ledger, names, records, values
from ckptcore.array_reader import Request
from ckptcore.arrays import ArrayReader, StoredArray
from ckptcore.digests import check, value_digest
from ckptcore.errors import Damaged, DamageError, InvalidRecord, NotFound, Retired
from ckptcore.geometry import Box
from ckptcore.layout import grid_of
from ckptcore.ledger import Decided, manifest_of, metadata_of
from ckptcore.names import GenerationId
from ckptcore.readable import StoredLeaf
from ckptcore.records import ArrayLeaf, Descriptor, Manifest
from ckptcore.shareplan import Wish
from ckptcore.sharing import Sharing
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes

R = TypeVar("R", bound=records.Record)


@dataclass(repr=False)
class Checkpoint:
    """A commit and its data. Records are read when asked for, checked, and kept.

    Every method raises `Damaged` (or another `DamageError`) when what is stored is not what the
    manifest certifies, and `Retired` when retention has taken it meanwhile.
    """

    store: Store
    decided: Decided
    sharing: Sharing | None = None
    """With the other ranks of a job: the chunks of the first `read` are read by one of those that want them."""
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        record = self.decided.record
        shown = (
            f"guarantee={record.guarantee.level!r}, components={sorted(record.components)}"
            if isinstance(record, Manifest)
            else "aborted"
        )
        return f"Checkpoint({str(self.generation)!r}, {shown})"

    @property
    def generation(self) -> GenerationId:
        """Its generation."""
        return self.decided.generation

    @property
    def title(self) -> str:
        """What it is called in errors."""
        return f"generation {self.generation}"

    @property
    def framework(self) -> str:
        """The framework that saved it."""
        return self.manifest.topology.framework

    @property
    def names(self) -> Collection[str]:
        """The names of its components."""
        return self.manifest.components

    @cached_property
    def manifest(self) -> Manifest:
        """Its manifest. Raises `NotFound` for an aborted generation."""
        return manifest_of(self.decided)

    @property
    def metadata(self) -> Any:
        """What `save(metadata=…)` was given."""
        return metadata_of(self.manifest)

    @cached_property
    def roster(self) -> records.Roster:
        """Who delivered what."""
        roster = self._load(self.manifest.roster, records.Roster)
        records.expect(self.manifest.roster.key, generation=(roster.generation, self.manifest.generation))
        if len(roster.ranks) != self.manifest.topology.participants:
            raise InvalidRecord(
                f"{self.manifest.roster.key}: {len(roster.ranks)} ranks, the manifest has {self.manifest.topology.participants}"
            )
        return roster

    def leaves(self, component: str, rank: int | None = None) -> dict[str, StoredLeaf]:
        """The leaves of a component by layout name; of `rank`'s own copy when the component is rank-scoped."""
        entry = self._entry(component)
        home = self._home(component)
        if entry.scope == "global":
            rank = None
        key = f"leaves of {component}, rank {rank}"
        if key not in self._cache:
            self._cache[key] = self._leaves(component, home, rank)
        return self._cache[key]

    def _leaves(self, component: str, home: Checkpoint, rank: int | None) -> dict[str, StoredLeaf]:
        layouts = home._layouts if self._entry(component).scope == "global" else [home._layout_of(component, rank)]
        found: dict[str, StoredLeaf] = {}
        for layout in layouts:
            if component in layout.components:
                for record in layout.components[component].leaves:
                    found.setdefault(record.name, StoredLeaf(component, record, rank))
        return found

    def facts(self, component: str) -> tuple[str, str]:
        """The kind and the scope of a component as the layouts have it. Reads all of them."""
        tables = [layout.components[component] for layout in self._home(component)._layouts if component in layout.components]
        if not tables:
            raise Damaged(f"no layout of {self._home(component).generation} has component {component!r}")
        return tables[0].kind, tables[0].scope

    def ranks(self, component: str) -> list[int | None]:
        """The ranks that have a copy of their own of a component; `[None]` when there is one for all."""
        if self._entry(component).scope == "global":
            return [None]
        return [delivered.rank for delivered in self._home(component).roster.ranks]

    def homes(self) -> list[Checkpoint]:
        """The checkpoints that hold the data: this one, and those that its components refer to."""
        found = {home.generation: home for home in [self, *(self._home(name) for name in self.manifest.components)]}
        return list(found.values())

    def index(self, component: str) -> records.Index:
        """The digests of a component."""
        entry = self._entry(component)
        index = self._load(entry.index, records.Index)
        records.expect(entry.index.key, component=(index.component, component))
        return index

    def value(self, leaf: StoredLeaf) -> Any:
        """The decoded value of a JSON leaf."""
        home = self._home(leaf.component)
        rank = leaf.rank if leaf.rank is not None else home._keeper(leaf)
        delivered = home.roster.ranks[rank]
        if delivered.values is None:
            raise Damaged(f"leaf {leaf.stored_name!r} of {self.generation}: rank {rank} delivered no values")
        record = home._load(delivered.values, records.Values)
        section = record.shared if leaf.rank is None else record.own
        if leaf.name not in section.get(leaf.component, {}):
            raise Damaged(f"leaf {leaf.stored_name!r} is not in {delivered.values.key}")
        encoded = section[leaf.component][leaf.name]
        if value_digest(encoded) != self._indexed(leaf, leaf.stored_name).digest:
            raise Damaged(f"the value of leaf {leaf.stored_name!r} in {delivered.values.key} differs from its digest")
        return values.decode(encoded, where=leaf.stored_name)

    def digest(self, leaf: StoredLeaf) -> str:
        """The leaf digest: equal ones mean equal content."""
        return self._indexed(leaf, leaf.stored_name).digest

    def array(self, leaf: StoredLeaf) -> tuple[StoredArray, Sequence[str]]:
        """Where an array leaf is stored, and its chunk digests in grid order."""
        record = self._target(leaf)
        grid = grid_of(record)
        chunks = self._indexed(leaf, leaf.stored_target).chunks
        if len(chunks) != grid.size:
            raise InvalidRecord(
                f"index of {leaf.component!r}: {len(chunks)} digests for the {grid.size} chunks of {leaf.stored_target!r}"
            )
        return StoredArray(name=leaf.stored_target, dtype=record.stored_dtype, shape=record.shape, grid=grid), chunks

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[Any]]:
        """Read boxes of array leaves, each chunk once and checked; arrays have the stored dtype."""
        results: list[list[Any]] = [[] for _ in wanted]
        by_home: dict[str, list[int]] = {}
        for position, (leaf, _) in enumerate(wanted):
            by_home.setdefault(str(self._home(leaf.component).generation), []).append(position)
        found = [self.array(leaf) for leaf, _ in wanted]
        if self.sharing is not None:
            self.sharing.agree(self._wishes(wanted, [array for array, _ in found]))
        for _, positions in sorted(by_home.items()):  # in one order on all ranks, which may wait for each other
            home = self._home(wanted[positions[0]][0].component)
            requests = [(found[p][0], wanted[p][1], found[p][1]) for p in positions]
            for position, arrays in zip(positions, home._read(requests, self.sharing), strict=True):
                results[position] = arrays
        return results

    def _wishes(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]], arrays: Sequence[StoredArray]) -> Iterator[Wish]:
        """What other ranks may want as well: boxes of global leaves."""
        for (leaf, boxes), array in zip(wanted, arrays, strict=True):
            if leaf.rank is None:
                yield names.state_prefix(self._home(leaf.component).generation), array, boxes

    def _read(self, requests: Sequence[Request], sharing: Sharing | None) -> list[list[Any]]:
        prefix = names.state_prefix(self.generation)
        try:
            if "reader" not in self._cache:
                self._cache["reader"] = ArrayReader(self.store, prefix)
            return self._cache["reader"].read_many(requests, passed=None if sharing is None else sharing.of(prefix))
        except DamageError as error:
            raise self._or_retired(error) from error

    def _target(self, leaf: StoredLeaf) -> ArrayLeaf:
        record = leaf.record
        if isinstance(record, ArrayLeaf) and record.alias is not None:
            record = self.leaves(leaf.component, leaf.rank)[record.alias].record
        if not isinstance(record, ArrayLeaf):
            raise NotFound(f"leaf {leaf.name!r} is a value, not an array")
        return record

    def _indexed(self, leaf: StoredLeaf, stored_name: str) -> records.IndexedLeaf:
        found = self.index(leaf.component).leaves.get(stored_name)
        if found is None:
            raise Damaged(f"the index of component {leaf.component!r} of {self.generation} lacks leaf {stored_name!r}")
        return found

    def _entry(self, component: str) -> records.Committed:
        entry = self.manifest.components.get(component)
        if entry is None:
            raise NotFound(
                f"generation {self.generation} has no component {component!r}; it has {sorted(self.manifest.components)}"
            )
        return entry

    def _home(self, component: str) -> Checkpoint:
        """The checkpoint that holds the data of `component`: this one, or the one it refers to."""
        source = self._entry(component).source
        if source is None:
            return self
        if source not in self._cache:
            decided = ledger.read(self.store, self.manifest.run_id, GenerationId.parse(source))
            if decided is None:
                raise Damaged(f"component {component!r} of {self.generation} lies in {source}, which has no ledger record")
            home = Checkpoint(self.store, decided)
            if home._entry(component).source is not None or home._entry(component).digest != self._entry(component).digest:
                raise Damaged(f"component {component!r} of {self.generation} is not what {source} holds")
            self._cache[source] = home
        return self._cache[source]

    @cached_property
    def _layouts(self) -> list[records.Layout]:
        return [self._layout(descriptor) for descriptor in self.roster.layouts]

    def _layout(self, descriptor: Descriptor) -> records.Layout:
        return self._load(descriptor, records.Layout)

    def _layout_of(self, component: str, rank: int | None) -> records.Layout:
        if rank is None or not 0 <= rank < len(self.roster.ranks):
            what_to_do = (
                f"there is no rank {rank}"
                if rank is not None
                else f"it can be neither converted nor exported: open_run(…).restore(components={component!r}, rank=…) reads one"
            )
            raise NotFound(
                f"component {component!r} of {self.generation} is stored per rank,"
                f" for ranks 0 to {len(self.roster.ranks) - 1}; {what_to_do}"
            )
        wanted = self.roster.ranks[rank].layout
        for descriptor in self.roster.layouts:
            if descriptor.digest == wanted:
                return self._layout(descriptor)
        raise InvalidRecord(f"{self.manifest.roster.key}: rank {rank}'s layout {wanted} is not listed")

    def _keeper(self, leaf: StoredLeaf) -> int:
        """The lowest rank whose layout has a global leaf: it stores the value for all."""
        key = f"keepers of {leaf.component}"
        if key not in self._cache:
            self._cache[key] = self._keepers(leaf.component)
        if leaf.name not in self._cache[key]:
            raise Damaged(f"no rank's layout has leaf {leaf.name!r}")
        return self._cache[key][leaf.name]

    def _keepers(self, component: str) -> dict[str, int]:
        first: dict[str, int] = {}
        for delivered in self.roster.ranks:
            first.setdefault(delivered.layout, delivered.rank)
        keepers: dict[str, int] = {}
        for descriptor in self.roster.layouts:
            table = self._layout(descriptor).components.get(component)
            for record in table.leaves if table else []:
                rank = first[descriptor.digest]
                keepers[record.name] = min(rank, keepers.get(record.name, rank))
        return keepers

    def _load(self, descriptor: Descriptor, kind: type[R]) -> R:
        """Read, check and decode one object that a descriptor certifies."""
        if descriptor.digest not in self._cache:
            try:
                self._cache[descriptor.digest] = self._fetch(descriptor, kind)
            except DamageError as error:
                raise self._or_retired(error) from error
        return self._cache[descriptor.digest]

    def _fetch(self, descriptor: Descriptor, kind: type[R]) -> R:
        source = descriptor.key.split("/")[1:2]
        allowed = {str(self.generation), *(entry.source for entry in self.manifest.components.values())}
        if not descriptor.key.startswith(names.GENERATIONS) or not source or source[0] not in allowed:
            raise InvalidRecord(f"{descriptor.key}: lies outside of generation {self.generation}")
        data = bounded_bytes(self.store, descriptor.key, descriptor.size)
        if data is None:
            raise Damaged(f"{descriptor.key} is missing, though {self.generation} is committed")
        if len(data) != descriptor.size:
            found = "more" if len(data) > descriptor.size else len(data)
            raise Damaged(f"{descriptor.key} has {found} bytes, its descriptor says {descriptor.size}")
        check(data, descriptor.digest, what=descriptor.key)
        return records.decode(data, kind, key=descriptor.key)

    def _or_retired(self, error: DamageError) -> DamageError:
        if ledger.is_retired(self.store, self.generation):
            return Retired(f"generation {self.generation} was retired while it was read; take a newer one ({error})")
        return error
