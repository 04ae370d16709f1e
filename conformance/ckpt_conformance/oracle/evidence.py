"""What the receipts of a generation prove (spec: P-35), each rule by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt_conformance.oracle import digests, guarantees, keys, layouts
from ckpt_conformance.oracle.layouts import Leaf
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.run import Run, Value

_AGREED = ("run_id", "generation", "incarnation", "claim", "step", "participants", "topology", "guarantee", "requires")


@dataclass(frozen=True)
class Stored:
    """A leaf of a component as it is stored: the layout's leaf, and the ranks whose layout has it, lowest first."""

    leaf: Leaf
    ranks: list[int]


@dataclass(frozen=True)
class Component:
    """What the layouts say of a component; `leaves`: stored name → leaf."""

    kind: str
    scope: str
    leaves: dict[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """The complete receipts of all participants and the layouts that they name, both in rank order."""

    run: Run
    generation: str
    receipts: Sequence[Value]
    layouts: Sequence[Value]
    components: Mapping[str, Component]

    @property
    def lead(self) -> Mapping[str, Any]:
        """What rank 0 says for all."""
        return self.receipts[0]["lead"]

    @property
    def references(self) -> Mapping[str, str]:
        """Components by reference: name → generation."""
        return self.lead.get("references", {})

    def arrays(self) -> dict[str, Leaf]:
        """Every array that has cells of its own, by stored name."""
        leaves = (item for component in self.components.values() for item in component.leaves.items())
        return {name: stored.leaf for name, stored in leaves if layouts.is_stored(stored.leaf)}

    def written(self, rank: int, component: str) -> Mapping[str, Any]:
        """What a rank's receipt says of a component."""
        return self.receipts[rank].get("components", {}).get(component, {"bytes": 0, "chunks": {}})

    def chunks(self, name: str, component: str) -> list[list[Any]]:
        """Every `[cell, digest]` that the receipts list of an array, in rank order."""
        stored = self.components[component].leaves[name]
        ranks = stored.ranks if self.components[component].scope == "rank" else range(len(self.receipts))
        listed = (self.written(rank, component)["chunks"].get(stored.leaf["name"], ()) for rank in ranks)
        return [chunk for chunks in listed for chunk in chunks]


def delivery(run: Run, generation: str) -> tuple[Delivery | None, list[Problem]]:
    """The receipts and layouts of a generation, if they are all there; otherwise what is missing (P-35.1, P-35.4)."""
    first = _receipt(run, generation, 0)
    if first is None:
        return None, [_missing(generation, 0)]
    found = {rank: _receipt(run, generation, rank) for rank in range(first["participants"])}
    absent = [_missing(generation, rank) for rank, receipt in found.items() if receipt is None]
    receipts = [receipt for receipt in found.values() if receipt is not None]
    tables = [_layout(run, generation, receipt) for receipt in receipts]
    absent += [table for table in tables if isinstance(table, Problem)]
    if absent:
        return None, absent
    known = [table for table in tables if not isinstance(table, Problem)]
    return Delivery(run, generation, receipts, known, components(known)), []


def _receipt(run: Run, generation: str, rank: int) -> Value | None:
    receipt = run.value(keys.receipt(generation, rank))
    if receipt is None or (receipt["generation"], receipt["rank"]) != (generation, rank):
        return None
    return receipt if receipt["status"] == "complete" else None


def _missing(generation: str, rank: int) -> Problem:
    return Problem(keys.receipt(generation, rank), "P-35", f"rank {rank} has no valid, complete receipt (1)")


def _layout(run: Run, generation: str, receipt: Value) -> Value | Problem:
    key = keys.layout(generation, receipt["layout"]["digest"])
    if receipt["layout"]["key"] != key:
        at = keys.receipt(generation, receipt["rank"])
        return Problem(at, "L-14", f"its layout is said to be at {receipt['layout']['key']}, not at {key}")
    found = described(run, receipt["layout"])
    value = run.value(key)
    if found is None and value is not None:
        return value
    return Problem(key, "P-35", f"rank {receipt['rank']}'s layout {found or 'cannot be understood'} (4)")


def described(run: Run, descriptor: Mapping[str, Any]) -> str | None:
    """What is wrong with the object that a descriptor describes; None if it is there with its size and digest."""
    key = descriptor["key"]
    content = run.content.get(key)
    if content is None:
        return "is not there"
    if len(content) != descriptor["size"]:
        return f"has {len(content)} bytes, not {descriptor['size']}"
    return None if digests.fits(content, descriptor["digest"]) else f"has the digest {digests.digest(content)}"


def components(tables: Sequence[Value]) -> dict[str, Component]:
    """The components of all ranks' layouts, in rank order."""
    found: dict[str, Component] = {}
    for rank, table in enumerate(tables):
        for name, facts in table["components"].items():
            component = found.setdefault(name, Component(facts["kind"], facts["scope"]))
            for leaf in facts["leaves"]:
                stored = keys.stored_name(leaf["name"], component.scope, rank)
                component.leaves.setdefault(stored, Stored(leaf, [])).ranks.append(rank)
    return found


def faults(found: Delivery) -> Iterator[Problem]:
    """Every rule of P-35 that the delivery breaks, but for 1 and 4, which make it one."""
    yield from _agreement(found)
    yield from _layouts_agree(found)
    yield from _cells(found)
    yield from _values(found)
    yield from _replicas(found)
    yield from _stored(found)
    yield from _references(found)
    yield from _bytes(found)
    missing = guarantees.unmet(found.receipts[0]["guarantee"], _facts(found))
    yield from (_at(found, 0, "G-4", f"{text} (P-35.10)") for text in missing)


def _at(found: Delivery, rank: int, clause: str, text: str) -> Problem:
    return Problem(keys.receipt(found.generation, rank), clause, text)


def _agreement(found: Delivery) -> Iterator[Problem]:
    for rank, receipt in enumerate(found.receipts):
        different = [name for name in _AGREED if receipt.get(name) != found.receipts[0].get(name)]
        if different:
            yield _at(found, rank, "P-35", f"differs from rank 0's receipt in {', '.join(different)} (2)")
    topology = found.lead["topology"]
    if digests.topology(topology) != found.receipts[0]["topology"]:
        yield _at(found, 0, "D-9", "`topology` is not the digest of the lead's topology (P-35.3)")
    if topology["participants"] != found.receipts[0]["participants"]:
        yield _at(found, 0, "P-35", f"the topology has {topology['participants']} processes (3)")


def _layouts_agree(found: Delivery) -> Iterator[Problem]:
    for rank, table in enumerate(found.layouts):
        key = found.receipts[rank]["layout"]["key"]
        for name, facts in table["components"].items():
            component = found.components[name]
            if (facts["kind"], facts["scope"]) != (component.kind, component.scope):
                yield Problem(key, "P-35", f"{name} is of another kind or scope than in rank 0's layout (5)")
            elif facts["scope"] == "global":
                apart = [leaf["name"] for leaf in facts["leaves"] if not layouts.agree(leaf, component.leaves[leaf["name"]].leaf)]
                yield from (Problem(key, "P-35", f"{leaf} differs from another rank's (5)") for leaf in apart)
    for component in found.components.values():
        inside = layouts.nested([stored.leaf for stored in component.leaves.values()]) if component.scope == "global" else None
        if inside:
            yield _at(found, 0, "P-35", f"the path of {inside[1]} begins with that of {inside[0]} (5)")


def _cells(found: Delivery) -> Iterator[Problem]:
    for name, component in found.components.items():
        for stored, leaf in component.leaves.items():
            if layouts.is_stored(leaf.leaf):
                listed = sorted(cell for cell, _ in found.chunks(stored, name))
                if listed != list(range(layouts.count(leaf.leaf))):
                    text = f"the receipts list the cells {_short(listed)} of {stored}, which has {layouts.count(leaf.leaf)} (6)"
                    yield Problem(keys.folder(found.generation) + "receipts/", "P-35", text)
    for rank, receipt in enumerate(found.receipts):
        for name, written in receipt.get("components", {}).items():
            known = _arrays_of(found, name, rank)
            strange = [leaf for leaf in written["chunks"] if leaf not in known]
            yield from (_at(found, rank, "P-35", f"lists {leaf}, which is an array of no layout (6)") for leaf in strange)


def _arrays_of(found: Delivery, component: str, rank: int) -> set[str]:
    if component not in found.components:
        return set()
    facts = found.components[component]
    leaves = [stored for stored in facts.leaves.values() if facts.scope == "global" or rank in stored.ranks]
    return {stored.leaf["name"] for stored in leaves if layouts.is_stored(stored.leaf)}


def _short(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) <= 12 else f"{str(list(numbers[:12]))[:-1]}, …]"


def _values(found: Delivery) -> Iterator[Problem]:
    for name, component in found.components.items():
        for leaf in component.leaves.values():
            if not layouts.is_array(leaf.leaf):
                yield from _value(found, name, component.scope, leaf)


def _value(found: Delivery, component: str, scope: str, leaf: Stored) -> Iterator[Problem]:
    """Rule 7, of one leaf: of a rank-scoped component there is one rank that has it."""
    name, owner = leaf.leaf["name"], leaf.ranks[0]
    stated = {rank: digest for rank in leaf.ranks if (digest := found.written(rank, component).get("values", {}).get(name))}
    if owner not in stated:
        yield _at(found, owner, "P-35", f"states no digest of {name} (7)")
        return
    for rank, digest in stated.items():
        if digest != stated[owner]:
            yield _at(found, rank, "P-35", f"states another digest of {name} than rank {owner} (7)")
    record = found.run.value(keys.values(found.generation, owner)) or {}
    part = record.get("own" if scope == "rank" else "shared", {}).get(component, {})
    if name not in part:
        yield Problem(keys.values(found.generation, owner), "P-35", f"has no value of {name} (7)")
    elif digests.value_leaf(part[name]) != stated[owner]:
        yield Problem(keys.values(found.generation, owner), "D-6", f"the value of {name} has another digest (P-35.7)")


def _replicas(found: Delivery) -> Iterator[Problem]:
    for name, component in found.components.items():
        if component.scope == "rank":
            continue
        stated: dict[str, str] = {}
        for rank in range(len(found.receipts)):
            for leaf, digest in found.written(rank, name).get("replicas", {}).items():
                if stated.setdefault(leaf, digest) != digest:
                    yield _at(found, rank, "P-35", f"states another digest of the whole of {leaf} than another rank (7)")


def _stored(found: Delivery) -> Iterator[Problem]:
    for rank in range(len(found.receipts)):
        yield from absent_data(found.run, found.generation, found.receipts[rank])


def absent_data(run: Run, generation: str, receipt: Value) -> Iterator[Problem]:
    """Rule 8 of one receipt: what it says that it stored is there, with its size, and its digest where one is given."""
    rank = receipt["rank"]
    at = keys.receipt(generation, rank)
    values = receipt.get("values")
    if values is not None and values["key"] != keys.values(generation, rank):
        yield Problem(at, "O-4", f"its values are said to be at {values['key']}")
    elif values is not None and (text := described(run, values)):
        yield Problem(values["key"], "P-35", f"{text} (8)")
    if receipt.get("database") is None and receipt.get("files"):
        yield Problem(at, "L-15", "lists files, but no database")
    elif receipt.get("database") is not None:
        yield from _files(run, keys.database(generation, rank, receipt["database"]), receipt["files"], at)


def _files(run: Run, folder: str, files: Sequence[Mapping[str, Any]], at: str) -> Iterator[Problem]:
    listed = {folder + file["path"]: file for file in files}
    if len(listed) < len(files):
        yield Problem(at, "A-22", "lists a file twice")
    for key, file in listed.items():
        size = run.place.size(key)
        if size != file["size"]:
            yield Problem(key, "P-35", f"has {size} bytes, not {file['size']} (8)" if size is not None else "is not there (8)")
        elif file.get("digest") is not None and not digests.fits(run.place.read(key) or b"", file["digest"]):
            yield Problem(key, "P-35", "has another digest than the receipt says (8)")
    if listed.get(folder + "manifest.ocdbt", {}).get("digest") is None:
        yield Problem(at, "A-22", "gives no digest of manifest.ocdbt")
    yield from (Problem(key, "A-22", "is in no receipt") for key in run.below(folder) if key not in listed)


def _references(found: Delivery) -> Iterator[Problem]:
    for name, source in found.references.items():
        manifest = found.run.manifest(source)
        if name in found.components:
            yield _at(found, 0, "P-35", f"{name} is by reference, and in a layout (9)")
        elif manifest is None or name not in manifest["components"]:
            yield _at(found, 0, "P-35", f"{name} is by reference to {source}, which is no commit that has it (9)")
        elif _of_fewer(found, manifest, name):
            yield _at(found, 0, "P-33", f"{name} is per rank, and {source} had another number of participants")


def _of_fewer(found: Delivery, manifest: Value, name: str) -> bool:
    participants = manifest["topology"]["participants"]
    return manifest["components"][name]["scope"] == "rank" and participants != len(found.receipts)


def _bytes(found: Delivery) -> Iterator[Problem]:
    """R-51: `bytes` is the sum over the cells that a rank wrote."""
    sizes = {name: [layouts.nbytes(leaf, cell) for cell in layouts.cells(leaf)] for name, leaf in found.arrays().items()}
    for rank, receipt in enumerate(found.receipts):
        for name, written in receipt.get("components", {}).items():
            total = 0
            for leaf, listed in written["chunks"].items():
                of_cells = (
                    sizes.get(keys.stored_name(leaf, found.components[name].scope, rank)) if name in found.components else None
                )
                total += sum(of_cells[cell] for cell, _ in listed if cell < len(of_cells)) if of_cells is not None else 0
            if total != written["bytes"]:
                yield _at(found, rank, "R-51", f"{name} has {written['bytes']} bytes; the cells that are listed have {total}")


def _facts(found: Delivery) -> dict[str, Mapping[str, Any]]:
    """Kind and scope of every component of the commit, those by reference included."""
    facts: dict[str, Mapping[str, Any]] = {
        name: {"kind": component.kind, "scope": component.scope} for name, component in found.components.items()
    }
    for name, source in found.references.items():
        manifest = found.run.manifest(source)
        if manifest is not None and name in manifest["components"]:
            facts[name] = manifest["components"][name]
    return facts
