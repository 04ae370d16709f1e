"""One generation of a run: a commit is proven anew from its receipts, derived anew, and read to the last byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckpt_conformance.oracle import arrays, digests, evidence, guarantees, keys, layouts, manifests
from ckpt_conformance.oracle.arrays import Databases
from ckpt_conformance.oracle.keys import Generation
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.run import Run, Value


def outcome(run: Run, generation: str) -> str:
    """What was decided: `commit`, `abort`, `none`; `unknown` where the record was damaged or cannot be understood."""
    key = keys.decision(generation)
    if key in run.damaged:
        return "unknown"
    value = run.value(key)
    if value is None:
        return "unknown" if key in run.content else "none"
    return value["decision"]


def same(run: Run, key: str, clause: str, generation: str, manifest: str) -> Iterator[Problem]:
    """Whether `generation` is a commit whose manifest has the digest that the record at `key` says."""
    decided = outcome(run, generation)
    if decided in ("none", "abort"):
        yield Problem(key, clause, f"{generation} is no commit")
    elif decided == "commit" and not digests.fits(run.content[keys.decision(generation)], manifest):
        yield Problem(key, clause, f"{generation} has a manifest of another digest")


def faults(run: Run, databases: Databases, generation: str) -> Iterator[Problem]:
    """What is wrong with a generation: its receipts, and if it is a commit, its manifest and, unless it is retired, its data."""
    receipts = {key: run.value(key) for key in run.below(f"{keys.folder(generation)}receipts/") if key in run.named}
    claim = run.claim(Generation.parse(generation).incarnation)
    for key, receipt in receipts.items():
        if receipt is None:
            continue
        if claim is not None and receipt["claim"] != claim["nonce"]:
            yield Problem(key, "R-50", "`claim` is not the nonce of the incarnation's claim")
        if outcome(run, generation) == "none" and receipt["status"] == "complete":
            yield from _vouched(run, generation, receipt)
    manifest = run.manifest(generation)
    if manifest is not None:
        yield from _commit(run, databases, generation, manifest)


def _vouched(run: Run, generation: str, receipt: Value) -> Iterator[Problem]:
    """P-32, of an undecided generation: a complete receipt is for data that is there."""
    at = keys.receipt(generation, receipt["rank"])
    absent = [problem.key for problem in evidence.absent_data(run, generation, receipt)]
    if evidence.described(run, receipt["layout"]) is not None:
        absent.append(receipt["layout"]["key"])
    yield from (Problem(at, "P-32", f"{key} is not as the receipt says") for key in absent if key not in run.damaged)


def _commit(run: Run, databases: Databases, generation: str, manifest: Value) -> Iterator[Problem]:
    key = keys.decision(generation)
    claim = run.claim(manifest["incarnation"])
    if claim is not None and manifest["claim"] != claim["nonce"]:
        yield Problem(key, "R-60", "`claim` is not the nonce of the incarnation's claim")
    if manifest["parent"] is not None:
        yield from same(run, key, "R-60", manifest["parent"], manifest["parent_manifest"])
        if Generation.parse(manifest["parent"]) >= Generation.parse(generation):
            yield Problem(key, "R-60", f"its parent {manifest['parent']} is not older")
    missing = guarantees.unmet(manifest["guarantee"], manifest["components"])
    yield from (Problem(key, "G-4", text) for text in missing)
    sources = list(_sources(run, key, generation, manifest))
    yield from sources
    if run.is_retired(generation):
        return
    chain = list(_chain(run, generation, manifest))
    yield from chain
    if not chain and not sources:
        yield from _proven(run, databases, generation)
        yield from _referenced_data(run, databases, manifest)


def _sources(run: Run, key: str, generation: str, manifest: Value) -> Iterator[Problem]:
    """Components by reference: their entries in the manifests that hold them (O-5, R-62)."""
    for name, entry in manifest["components"].items():
        source = entry.get("source")
        holder = generation if source is None else source
        if entry["index"]["key"] != keys.index(holder, name, entry["index"]["digest"]):
            yield Problem(key, "L-14", f"the index of {name} is said to be at {entry['index']['key']}")
        if source is None or outcome(run, source) == "unknown":
            continue
        held = (run.manifest(source) or {"components": {}})["components"].get(name)
        if held is None or held.get("source") is not None or _entry(held) != _entry(entry):
            yield Problem(key, "O-5", f"{name} is said to be in {source}, which does not hold it so")


def _entry(committed: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in committed.items() if field != "source"}


def _chain(run: Run, generation: str, manifest: Value) -> Iterator[Problem]:
    """Every object between the manifest and the data, against its descriptor (O-3, O-4)."""
    described = [entry["index"] for entry in manifest["components"].values()]
    roster = manifest["roster"]
    if roster["key"] != keys.roster(generation, roster["digest"]):
        yield Problem(keys.decision(generation), "L-14", f"the roster is said to be at {roster['key']}")
    found = run.value(roster["key"], "roster")
    if found is not None:
        of_ranks = dict(_placed(generation, found))
        described += of_ranks.values()
        strange = [key for key, descriptor in of_ranks.items() if descriptor["key"] != key]
        yield from (Problem(roster["key"], "O-4", f"names {of_ranks[key]['key']} where {key} has to be") for key in strange)
        if len(found["ranks"]) != manifest["topology"]["participants"]:
            text = f"has {len(found['ranks'])} ranks, the topology {manifest['topology']['participants']}"
            yield Problem(roster["key"], "O-4", text)
    for descriptor in [roster, *described]:
        text = evidence.described(run, descriptor)
        if text is not None:
            yield Problem(descriptor["key"], "D-4", text)
        elif run.judged[descriptor["key"]].value is None:
            yield Problem(descriptor["key"], "D-2", "is part of a commit, and cannot be understood")


def _placed(generation: str, roster: Value) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every descriptor of a roster, and the key that it has to have."""
    for entry in roster["ranks"]:
        yield keys.receipt(generation, entry["rank"]), entry["receipt"]
        if entry.get("values") is not None:
            yield keys.values(generation, entry["rank"]), entry["values"]
    for layout in roster["layouts"]:
        yield keys.layout(generation, layout["digest"]), layout


def _proven(run: Run, databases: Databases, generation: str) -> Iterator[Problem]:
    """The commit from its receipts alone, and its arrays."""
    delivery, problems = evidence.delivery(run, generation)
    problems += list(evidence.faults(delivery)) if delivery is not None else []
    yield from problems
    if delivery is None or problems:
        return
    derived = manifests.derive(delivery)
    for key, content in derived.objects.items():
        if run.content.get(key) != content:
            yield Problem(key, "R-60", "is not there as it follows from the receipts")
    if run.content[keys.decision(generation)] != derived.manifest:
        yield Problem(keys.decision(generation), "R-60", "is not the manifest that follows from the receipts")
    yield from arrays.database_faults(databases, delivery)
    view = list(arrays.view_faults(databases, delivery))
    yield from view
    if not any(problem.clause == "A-24" for problem in view):
        yield from arrays.chunk_faults(databases, generation, delivery.arrays(), derived.chunks)


def _referenced_data(run: Run, databases: Databases, manifest: Value) -> Iterator[Problem]:
    """The data of components by reference whose source is retired: if it is a commit with its data, it is checked as such."""
    for name, entry in manifest["components"].items():
        source = entry.get("source")
        if source is None or not run.is_retired(source) or source in run.damaged:
            continue
        held = run.manifest(source)
        problems = list(_chain(run, source, held)) if held is not None else []
        delivery, missing = evidence.delivery(run, source) if not problems else (None, [])
        yield from [*problems, *missing]
        if delivery is not None:
            leaves = {
                leaf: stored.leaf for leaf, stored in delivery.components[name].leaves.items() if layouts.is_stored(stored.leaf)
            }
            yield from arrays.chunk_faults(databases, source, leaves, manifests.derive(delivery).chunks)
