"""What all ranks hold between them, from what each says of its own leaves (spec: layout; saving).

The ranks of one JAX program see the same leaves and know all holders. Elsewhere they need not: a pipeline
stage has leaves of its own, a tensor-parallel shard knows its own mesh only. Then every rank
sends the digest of its leaf table; if they differ, the lowest rank with each of them sends the table itself. So equal
ranks exchange a few bytes, however many leaves they have. Main thread only.

`describe` and `unite` are pure: every rank that unites the same tables gets the same facts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ckptcore import canonical, digests, dtypes, records
from ckptcore.backend import Flat
from ckptcore.channel import Channel
from ckptcore.errors import UnsupportedLeaf
from ckptcore.geometry import Box
from ckptcore.layout import ArrayFacts, Distinct, ValueFacts
from ckptcore.names import array_name

EXCHANGE_TIMEOUT = 600.0


@dataclass(frozen=True)
class Tables:
    """The distinct leaf tables of a job, and which ranks have each, in rank order."""

    encoded: tuple[bytes, ...]
    ranks: tuple[tuple[int, ...], ...]


@dataclass
class Exchange:
    """Exchanges leaf tables between the ranks of a job; remembers those that it has seen, by digest."""

    channel: Channel
    _known: dict[str, bytes] = field(default_factory=dict)

    def complete(self, flat: Flat, told: Sequence[bytes]) -> United:
        """The facts of `flat` with all their holders. `told` are the digests of all ranks' tables, in rank order."""
        own = describe(flat)
        by_digest: dict[str, list[int]] = {}
        for rank, digest in enumerate(told):
            by_digest.setdefault(digest.decode(), []).append(rank)
        if len(by_digest) == 1:
            return unite(flat, Tables((own,), (tuple(range(len(told))),)))
        self._learn(by_digest, own)
        return unite(flat, Tables(tuple(self._known[d] for d in by_digest), tuple(tuple(r) for r in by_digest.values())))

    def _learn(self, by_digest: Mapping[str, Sequence[int]], own: bytes) -> None:
        """Every rank knows the same tables already, since all take part in every exchange: so all agree whether to talk."""
        unknown = {digest: ranks[0] for digest, ranks in by_digest.items() if digest not in self._known}
        if unknown:
            mine = zlib.compress(own) if self.channel.rank in unknown.values() else b""
            sent = self.channel.gather(mine, timeout=EXCHANGE_TIMEOUT, what="the leaves that other ranks hold")
            self._known.update({digest: zlib.decompress(sent[rank]) for digest, rank in unknown.items()})
        self._known = {digest: self._known[digest] for digest in by_digest}


def describe(flat: Flat) -> bytes:
    """The leaf table of one rank, less what is its own alone: canonical bytes, equal on ranks that have the same leaves.

    Ranks are told which boxes lie where; for a leaf that each rank holds by itself (`local`), only that this one has it.
    """
    shardings = Distinct()
    arrays = [_array(facts, shardings) for facts in flat.arrays if flat.components[facts.component].scope == "global"]
    values = [[value.name, _above(value)] for value in flat.values if flat.components[value.component].scope == "global"]
    known = [[[list(box.start), list(box.stop), list(ranks)] for box, ranks in sharding] for sharding in shardings.found]
    meshes = [msgspec.to_builtins(mesh) for mesh in flat.meshes]
    return canonical.encode({"arrays": sorted(arrays), "values": sorted(values), "shardings": known, "meshes": meshes})


def digest_of(table: bytes) -> bytes:
    """What a rank says of its table: a digest."""
    return digests.digest(table).encode()


@dataclass(frozen=True, kw_only=True)
class United:
    """What a rank saves, with all holders, and the arrays that other ranks save: who writes what is balanced over all."""

    arrays: Sequence[ArrayFacts]
    values: Sequence[ValueFacts]
    meshes: Sequence[records.Mesh]
    elsewhere: Sequence[ArrayFacts] = ()


def unite(flat: Flat, tables: Tables) -> United:
    """The facts of `flat` with the holders that `tables` name.

    Raises `UnsupportedLeaf` for an array that other ranks see with another type or shape, or hold in another way.
    """
    known: dict[str, _Known] = {}
    keepers: dict[str, int] = {}
    nodes: dict[str, str] = {}
    boxes = _Boxes()
    decoded = [canonical.decode(encoded, what="another rank's leaves") for encoded in tables.encoded]
    for table, ranks in zip(decoded, tables.ranks, strict=True):
        _read_table(table, ranks, known, keepers, boxes)
        nodes.update(_nodes(table))
    _check_nodes(nodes, known, keepers)
    mine = {facts.name for facts in flat.arrays}
    return United(
        arrays=[
            replace(facts, shards=known[facts.name].shards(boxes)) if facts.name in known else facts for facts in flat.arrays
        ],
        meshes=unite_meshes(table["meshes"] for table in decoded),
        values=[replace(value, keeper=keepers.get(value.name, value.keeper)) for value in flat.values],
        elsewhere=[other.facts(boxes) for name, other in known.items() if name not in mine],
    )


def unite_meshes(meshes: Iterable[Sequence[Any]]) -> list[records.Mesh]:
    """The distinct meshes that the ranks know, in one order on all of them.

    Those of one form, such as the tensor-parallel groups of a job, are one: else their number would grow with the job.
    """
    told = list(meshes)
    if len(told) == 1:
        return [msgspec.convert(mesh, records.Mesh) for mesh in told[0]]
    forms: dict[bytes, dict[str, Any]] = {}
    for mesh in (mesh for known in told for mesh in known):
        forms.setdefault(canonical.encode([mesh["axes"], mesh["shape"]]), {})[mesh["devices"]] = mesh
    return [_one_mesh(forms[form]) for form in sorted(forms)]


def _one_mesh(alike: Mapping[str, Any]) -> records.Mesh:
    devices = sorted(alike)
    first = msgspec.convert(alike[devices[0]], records.Mesh)
    return first if len(devices) == 1 else msgspec.structs.replace(first, devices=digests.digest(canonical.encode(devices)))


@dataclass
class _Boxes:
    """The shardings that tables tell, by number, and what several of them come to. Models have many arrays and few shardings."""

    told: list[dict[Box, list[int]]] = field(default_factory=list)
    _united: dict[frozenset[int], dict[Box, tuple[int, ...]]] = field(default_factory=dict)

    def tell(self, sharding: Iterable[tuple[Sequence[int], Sequence[int], list[int]]]) -> int:
        """Add a sharding, and number it."""
        self.told.append({Box(tuple(start), tuple(stop)): holders for start, stop, holders in sharding})
        return len(self.told) - 1

    def united(self, numbers: frozenset[int]) -> Mapping[Box, tuple[int, ...]]:
        """Every box of some shardings and the sorted ranks that hold it; one map for all arrays that ask for the same ones."""
        if numbers not in self._united:
            holders: dict[Box, set[int]] = {}
            for number in numbers:
                for box, ranks in self.told[number].items():
                    holders.setdefault(box, set()).update(ranks)
            self._united[numbers] = {box: tuple(sorted(ranks)) for box, ranks in sorted(holders.items())}
        return self._united[numbers]


@dataclass
class _Known:
    """What the tables say of one global array: its type, the shardings by number, and the ranks that hold all of it."""

    name: str
    type: tuple[str, tuple[int, ...], str, bool]
    """Dtype, shape, the array it is tied to, and whether the lowest rank's copy counts."""
    first: int
    shardings: set[int] = field(default_factory=set)
    local: list[int] = field(default_factory=list)

    def shards(self, boxes: _Boxes) -> Mapping[Box, tuple[int, ...]]:
        if self.local and boxes.united(frozenset(self.shardings)):
            raise UnsupportedLeaf(
                f"{self.name}: rank {min(self.local)} holds it whole, other ranks as shards of a mesh;"
                " place it alike on all ranks"
            )
        if self.local:
            ranks = tuple(sorted(self.local))
            return {Box.whole(self.type[1]): ranks[:1] if self.type[3] else ranks}
        return boxes.united(frozenset(self.shardings))

    def facts(self, boxes: _Boxes) -> ArrayFacts:
        """As much as it takes to balance the work."""
        dtype, shape, alias, _ = self.type
        component, _, rest = self.name.partition(".")
        return ArrayFacts(
            component=component,
            path=(("key", rest),),
            dtype=dtype,
            stored_dtype=dtypes.stored_name(dtype),
            shape=shape,
            itemsize=dtypes.itemsize(dtype),
            shards=self.shards(boxes),
            alias=alias or None,
        )

    def show(self) -> str:
        dtype, shape, alias, lowest = self.type
        tied = f", tied to {alias}" if alias else ""
        return f"{dtype}{list(shape)}{tied}{', of which one copy counts' if lowest else ''}"


def _nodes(table: Any) -> Iterator[tuple[str, str]]:
    """Every container that a table has, with a leaf below it. (A key may have dots of its own, so names alone do not say.)"""
    for name, *_, above in (*table["arrays"], *table["values"]):
        for end in above:
            yield name[:end], name


def _check_nodes(nodes: Mapping[str, str], known: Mapping[str, _Known], keepers: Mapping[str, int]) -> None:
    """Refuse what is a leaf on one rank and a container on another, such as a dict that is empty here and not there."""
    for name in sorted(nodes.keys() & {*known, *keepers}):
        what, rank = ("a value or an empty container", keepers[name]) if name in keepers else ("an array", known[name].first)
        raise UnsupportedLeaf(
            f"{name}: {what} on rank {rank}, but other leaves lie below it ({nodes[name]});"
            " give it the same form on all ranks, or leave it out where it is empty"
        )


def _above(leaf: ArrayFacts | ValueFacts) -> list[int]:
    """Where in its name the names of the containers end that it lies in."""
    return [len(array_name(leaf.component, leaf.path[:depth])) for depth in range(len(leaf.path))]


def _array(facts: ArrayFacts, shardings: Distinct) -> list[Any]:
    place = -1 if facts.local else shardings.number(facts.shards)
    lowest = facts.local and not facts.host_replicated
    return [facts.name, facts.dtype, list(facts.shape), facts.alias or "", lowest, place, _above(facts)]


def _read_table(table: Any, ranks: Sequence[int], known: dict[str, _Known], keepers: dict[str, int], boxes: _Boxes) -> None:
    numbers = [boxes.tell(sharding) for sharding in table["shardings"]]
    for name, dtype, shape, alias, lowest, place, _ in table["arrays"]:
        array = _Known(name, (dtype, tuple(shape), alias, lowest), ranks[0])
        first = known.setdefault(name, array)
        if first.type != array.type:
            raise UnsupportedLeaf(
                f"{name}: rank {first.first} has it as {first.show()}, rank {array.first} as {array.show()};"
                " what has the same name on two ranks must be one array, or its component PerRank"
            )
        if place < 0:
            first.local.extend(ranks)
            continue
        first.shardings.add(numbers[place])
    for name, _ in table["values"]:
        keepers[name] = min(ranks[0], keepers.get(name, ranks[0]))
