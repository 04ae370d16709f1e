"""What lies in a node store: whose data of a generation is whole there, and what must not be (spec: chapter 16)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ckpt_conformance.oracle import canonical, digests, keys, records
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.place import Place

MARKER = "node"
_MARKER = re.compile(rb"[0-9a-f]{16}")
_DATABASE = re.compile(r"state/ranks/([0-9]{5})-[^/]+/.")


def survey(node: Place, generation: str) -> dict[str, Any]:
    """`whole`: the ranks whose data is whole (N-3, N-14); `half`: those of which there is something else."""
    whole = [rank for rank in _receipts(node, generation) if not list(_lacking(node, generation, rank))]
    return {"whole": sorted(whole), "half": sorted(_ranks(node, generation) - set(whole))}


def faults(node: Place, runs: Sequence[Place], damaged: Collection[str] = ()) -> Iterator[Problem]:
    """What is wrong: a marker that is none, and receipts of undecided generations whose data is not what they say.

    Of a decided generation anything may be gone (N-10). `runs`: the places of the runs that the node may have data of;
    `damaged`: keys that the suite itself has spoilt, which nobody answers for.
    """
    marker = node.read(MARKER)
    if marker is not None and not _MARKER.fullmatch(marker):
        yield Problem(MARKER, "N-12", f"is {marker[:40]!r}, not 16 hexadecimal digits")
    generations = {name for key in node.keys("generations/") if (name := keys.generation_of(key)) is not None}
    for generation in sorted(generations):
        for rank in _receipts(node, generation):
            if keys.receipt(generation, rank) not in damaged:
                found = _faults(node, generation, rank, _run_of(node, generation, rank, runs))
                yield from (problem for problem in found if problem.key not in damaged)


def _faults(node: Place, generation: str, rank: int, run: Place | None) -> list[Problem]:
    found = [*_lacking(node, generation, rank), *_other_than_staged(node, generation, rank, run)]
    # Asked last: somebody may decide, and delete, meanwhile.
    return found if found and run is not None and run.read(keys.decision(generation)) is None else []


def _receipts(node: Place, generation: str) -> list[int]:
    """The ranks that have a receipt there."""
    at = f"{keys.folder(generation)}receipts/"
    found = [named for key in node.keys(at) if (named := keys.named(key)) is not None]
    return [int(named.parts["rank"]) for named in found if named.kind == "receipt"]


def _ranks(node: Place, generation: str) -> set[int]:
    """The ranks of which there is anything."""
    folder = keys.folder(generation)
    files = (_DATABASE.match(key.removeprefix(folder)) for key in node.keys(f"{folder}state/ranks/"))
    return {*_receipts(node, generation), *(int(found[1]) for found in files if found)}


def _lacking(node: Place, generation: str, rank: int) -> Iterator[Problem]:
    """What of a rank's data is not as its receipt says: complete, with all files at their sizes, and of their digests."""
    key = keys.receipt(generation, rank)
    receipt = _receipt(node, key)
    if receipt is None or receipt["status"] != "complete":
        yield Problem(key, "N-3", "is no complete receipt")
        return
    for file in receipt.get("files", ()):
        at = keys.database(generation, rank, receipt["database"]) + file["path"]
        content = node.read(at)
        if content is None or len(content) != file["size"]:
            found = "is not there" if content is None else f"has {len(content)} bytes"
            yield Problem(at, "N-14", f"{found}, and the receipt beside it says {file['size']} bytes")
        elif file.get("digest") is not None and not digests.fits(content, file["digest"]):
            yield Problem(at, "N-14", "has another digest than the receipt beside it says")


def _other_than_staged(node: Place, generation: str, rank: int, run: Place | None) -> Iterator[Problem]:
    key = keys.receipt(generation, rank)
    staged = None if run is None else run.read(keys.staged(generation, rank))
    if staged is not None and node.read(key) != staged:
        yield Problem(key, "N-14", "has other bytes than the staged receipt")


def _run_of(node: Place, generation: str, rank: int, runs: Sequence[Place]) -> Place | None:
    """The run that a receipt is of; None if it says none of them."""
    receipt = _receipt(node, keys.receipt(generation, rank))
    return None if receipt is None else next((run for run in runs if _run_id(run) == receipt["run_id"]), None)


def _run_id(run: Place) -> str | None:
    data = run.read("run.json")
    try:
        return None if data is None else canonical.decode(data).get("run_id")
    except (canonical.NotCanonical, AttributeError):
        return None


def _receipt(node: Place, key: str) -> Mapping[str, Any] | None:
    data = node.read(key)
    return None if data is None else records.judge("receipt", data).value
