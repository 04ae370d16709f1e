"""One generation of a run: a commit is proven anew from its receipts, derived anew, and read to the last byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


def faults(run: Run, databases: Databases, generation: str, *, is_kept: bool = False) -> Iterator[Problem]:
    """What is wrong with a generation: its receipts, and if it is a commit, its manifest and its data.

    The data of a retired one is looked at if `is_kept`. Damage to one object hides as little as can be: what its receipts prove,
    or else what its indexes say, is compared all the same.
    """
    receipts = {key: run.value(key) for key in run.below(f"{keys.folder(generation)}receipts/") if key in run.named}
    claim = run.claim(Generation.parse(generation).incarnation)
    for key, receipt in receipts.items():
        if receipt is None:
            continue
        if claim is not None and receipt["claim"] != claim["nonce"]:
            yield Problem(key, "R-50", "`claim` is not the nonce of the incarnation's claim")
        if outcome(run, generation) == "none" and receipt["status"] == "complete":
            yield from _vouched(run, generation, receipt)
    manifest, has_data = run.manifest(generation), is_kept or not run.is_retired(generation)
    if manifest is not None:
        yield from _commit(run, databases, generation, manifest, has_data=has_data)
    elif keys.decision(generation) in run.damaged.intersection(run.content) and has_data:
        yield from _proven(run, databases, generation)


def _vouched(run: Run, generation: str, receipt: Value) -> Iterator[Problem]:
    """P-32, of an undecided generation: a complete receipt is for data that is there."""
    at = keys.receipt(generation, receipt["rank"])
    absent = [problem.key for problem in evidence.absent_data(run, generation, receipt)]
    if evidence.described(run, receipt["layout"]) is not None:
        absent.append(receipt["layout"]["key"])
    yield from (Problem(at, "P-32", f"{key} is not as the receipt says") for key in absent if key not in run.damaged)


def _commit(run: Run, databases: Databases, generation: str, manifest: Value, *, has_data: bool) -> Iterator[Problem]:
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
    if not has_data:
        return
    chain = list(_chain(run, generation, manifest))
    yield from chain
    if not _unexcused(run, [*chain, *sources]):
        yield from _proven(run, databases, generation, manifest)
        yield from _referenced_data(run, databases, manifest)


def _unexcused(run: Run, problems: Iterable[Problem]) -> list[Problem]:
    """Those that are not about an object that was damaged from outside."""
    return [problem for problem in problems if problem.key not in run.damaged]


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
        elif descriptor["key"] not in run.damaged and run.judged[descriptor["key"]].value is None:
            yield Problem(descriptor["key"], "D-2", "is part of a commit, and cannot be understood")


def _placed(generation: str, roster: Value) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every descriptor of a roster, and the key that it has to have."""
    for entry in roster["ranks"]:
        yield keys.receipt(generation, entry["rank"]), entry["receipt"]
        if entry.get("values") is not None:
            yield keys.values(generation, entry["rank"]), entry["values"]
    for layout in roster["layouts"]:
        yield keys.layout(generation, layout["digest"]), layout


def _proven(run: Run, databases: Databases, generation: str, manifest: Value | None = None) -> Iterator[Problem]:
    """The commit from its receipts alone, and its arrays. Without the receipts, its arrays by its indexes."""
    delivery, problems = evidence.delivery(run, generation)
    problems += list(evidence.faults(delivery)) if delivery is not None else []
    yield from problems
    if delivery is None and manifest is not None:
        yield from _indexed(run, databases, generation, manifest)
    if delivery is None or _unexcused(run, problems):
        return
    derived = manifests.derive(delivery)
    for key, content in derived.objects.items():
        if run.content.get(key) != content:
            yield Problem(key, "R-60", "is not there as it follows from the receipts")
    if manifest is not None and run.content[keys.decision(generation)] != derived.manifest:
        yield Problem(keys.decision(generation), "R-60", "is not the manifest that follows from the receipts")
    yield from arrays.database_faults(databases, delivery)
    view = list(arrays.view_faults(databases, delivery))
    yield from view
    if not any(problem.clause == "A-24" for problem in view):
        yield from arrays.chunk_faults(databases, generation, delivery.arrays(), derived.chunks)


def _indexed(run: Run, databases: Databases, generation: str, manifest: Value) -> Iterator[Problem]:
    """The cells by what the indexes and the layouts say."""
    roster = run.value(manifest["roster"]["key"], "roster")
    found = [run.value(keys.layout(generation, entry["layout"]), "layout") for entry in roster["ranks"]] if roster else []
    tables = [table for table in found if table is not None]
    if not tables or len(tables) < len(found):
        return
    for name, component in evidence.components(tables).items():
        entry = manifest["components"].get(name)
        index = run.value(entry["index"]["key"], "index") if entry else None
        entries = index["leaves"] if index else {}
        leaves = {leaf: stored.leaf for leaf, stored in component.leaves.items() if layouts.is_stored(stored.leaf)}
        chunks = {leaf: entries.get(leaf, {}).get("chunks", []) for leaf in leaves}
        whole = {leaf: facts for leaf, facts in leaves.items() if len(chunks[leaf]) == layouts.count(facts)}
        yield from arrays.chunk_faults(databases, generation, whole, chunks)


def _referenced_data(run: Run, databases: Databases, manifest: Value) -> Iterator[Problem]:
    """The data of components by reference whose source is retired: if it is a commit with its data, it is checked as such."""
    for name, entry in manifest["components"].items():
        source = entry.get("source")
        if source is None or not run.is_retired(source):
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
