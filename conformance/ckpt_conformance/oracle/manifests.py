"""What a coordinator has to derive from a delivery: indexes, roster and manifest, byte for byte (spec: R-55 to R-63)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt_conformance.oracle import canonical, digests, keys, layouts
from ckpt_conformance.oracle.evidence import Delivery
from ckpt_conformance.oracle.keys import stored_name

_DESCRIPTOR = ("key", "size", "digest")


@dataclass(frozen=True)
class Derived:
    """What follows from a delivery: key → bytes of indexes and roster, the manifest, and the cells' digests by stored name."""

    objects: Mapping[str, bytes]
    manifest: bytes
    chunks: Mapping[str, Sequence[str]]


def derive(found: Delivery) -> Derived:
    """Derive what follows from a delivery that P-35 proves. References are to commits that can be read."""
    objects: dict[str, bytes] = {}
    chunks: dict[str, Sequence[str]] = {}
    committed: dict[str, Any] = {}
    for name in found.components:
        leaves = _leaves(found, name)
        chunks |= {leaf: entry["chunks"] for leaf, entry in leaves.items() if entry["chunks"]}
        record = {"component": name, "leaves": leaves}
        index = _add(objects, lambda digest, name=name: keys.index(found.generation, name, digest), "index", record)
        committed[name] = _committed(found, name, leaves, index)
    for name, source in found.references.items():
        committed[name] = _referenced(found, name, source)
    roster = _add(objects, lambda digest: keys.roster(found.generation, digest), "roster", _roster(found))
    return Derived(objects, _encode("decision", _manifest(found, committed, roster)), chunks)


def _encode(kind: str, fields: Mapping[str, Any]) -> bytes:
    return canonical.encode({"format": f"ckpt/{kind}", "version": "1.0", "requires": [], **fields})


def _add(objects: dict[str, bytes], key_of: Any, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Put a content-addressed record among `objects`; its descriptor."""
    content = _encode(kind, fields)
    digest = digests.digest(content)
    key = key_of(digest)
    objects[key] = content
    return {"key": key, "size": len(content), "digest": digest}


def _leaves(found: Delivery, component: str) -> dict[str, dict[str, Any]]:
    """The entries of a component's index: arrays and values first, then the aliases of those arrays."""
    facts = found.components[component]
    entries: dict[str, dict[str, Any]] = {}
    for name, stored in facts.leaves.items():
        leaf = stored.leaf
        if layouts.is_stored(leaf):
            of_cells = [digest for _, digest in sorted(found.chunks(name, component))]
            entries[name] = {"digest": digests.array_leaf(leaf, of_cells), "chunks": of_cells}
        elif not layouts.is_array(leaf):
            stated = found.written(stored.ranks[0], component)["values"][leaf["name"]]
            entries[name] = {"digest": stated, "chunks": []}
    for name, stored in facts.leaves.items():
        if name not in entries:
            target = stored_name(stored.leaf["alias"], facts.scope, stored.ranks[0])
            entries[name] = {"digest": entries[target]["digest"], "chunks": []}
    return entries


def _committed(found: Delivery, name: str, leaves: Mapping[str, Any], index: Mapping[str, Any]) -> dict[str, Any]:
    facts = found.components[name]
    return {
        "kind": facts.kind,
        "scope": facts.scope,
        "leaves": len(leaves),
        "bytes": sum(found.written(rank, name)["bytes"] for rank in range(len(found.receipts))),
        "digest": digests.component(name, {leaf: entry["digest"] for leaf, entry in leaves.items()}),
        "index": index,
        "source": None,
    }


def _referenced(found: Delivery, name: str, source: str) -> dict[str, Any]:
    """R-62."""
    manifest = found.run.manifest(source) or {"components": {}}
    entry = manifest["components"][name]
    fields = ("kind", "scope", "leaves", "bytes", "digest")
    index = {field: entry["index"][field] for field in _DESCRIPTOR}
    return {field: entry[field] for field in fields} | {"index": index, "source": entry.get("source") or source}


def _roster(found: Delivery) -> dict[str, Any]:
    """R-58."""
    ranks, tables = [], {}
    for rank, receipt in enumerate(found.receipts):
        key = keys.receipt(found.generation, rank)
        content = found.run.content[key]
        described = {"key": key, "size": len(content), "digest": digests.digest(content)}
        layout = _descriptor(receipt["layout"])
        tables.setdefault(layout["digest"], layout)
        own = {"values": _descriptor(receipt.get("values")), "database": receipt.get("database")}
        ranks.append({"rank": rank, "receipt": described, "layout": layout["digest"], **own})
    return {"generation": found.generation, "ranks": ranks, "layouts": list(tables.values())}


def _descriptor(found: Mapping[str, Any] | None) -> Any:
    return None if found is None else {field: found[field] for field in _DESCRIPTOR}


def _manifest(found: Delivery, committed: Mapping[str, Any], roster: Mapping[str, Any]) -> dict[str, Any]:
    """R-60."""
    receipt, lead = found.receipts[0], found.lead
    guarantee = receipt["guarantee"]
    return {
        "decision": "commit",
        **{field: receipt[field] for field in ("run_id", "generation", "incarnation", "claim", "step")},
        **{field: lead[field] for field in ("parent", "parent_manifest", "captured", "versions")},
        "metadata": lead.get("metadata"),
        "guarantee": {
            "level": guarantee["level"],
            "derived": guarantee.get("derived", {}),
            "replay_samples": guarantee.get("replay_samples"),
        },
        "topology": _topology(lead["topology"]),
        "components": committed,
        "roster": roster,
    }


def _topology(found: Mapping[str, Any]) -> dict[str, Any]:
    meshes = [{field: mesh[field] for field in ("axes", "shape", "devices")} for mesh in found.get("meshes", [])]
    return {field: found[field] for field in ("framework", "platform", "participants", "devices")} | {"meshes": meshes}
