"""What says that data lies on nodes: staged receipts, and the record that all of it does (spec: chapter 16)."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_conformance.oracle import keys
from ckpt_conformance.oracle.commits import outcome
from ckpt_conformance.oracle.keys import Generation
from ckpt_conformance.oracle.problems import Problem
from ckpt_conformance.oracle.run import Run, Value


def faults(run: Run, generation: str) -> Iterator[Problem]:
    """What is wrong with the staged receipts of a generation and with its record. Neither makes it a checkpoint (N-3, N-4)."""
    at = f"{keys.folder(generation)}staged/"
    found = {value["rank"]: value for key in run.below(at) if key in run.named and (value := run.value(key)) is not None}
    for rank, value in found.items():
        yield from _staged(run, generation, rank, value)
    if _may_be_gone(run, generation):
        return
    if found:
        yield from _all_or_none(run, generation)
    yield from _on_nodes(run, generation, found)


def _staged(run: Run, generation: str, rank: int, value: Value) -> Iterator[Problem]:
    key, own = keys.staged(generation, rank), keys.receipt(generation, rank)
    claim = run.claim(Generation.parse(generation).incarnation)
    if claim is not None and value["claim"] != claim["nonce"]:
        yield Problem(key, "R-50", "`claim` is not the nonce of the incarnation's claim")
    if value["status"] != "complete":
        yield Problem(key, "N-3", f"its status is {value['status']!r}")
    receipt = run.value(own)
    if receipt is not None and receipt["status"] == "complete" and run.content[own] != run.content[key]:
        yield Problem(own, "N-5", "has other bytes than the staged receipt")


def _may_be_gone(run: Run, generation: str) -> bool:
    """Whether a collector may have begun to delete the folder (K-8, K-9, N-11)."""
    return run.is_retired(generation) or outcome(run, generation) in ("abort", "unknown")


def _all_or_none(run: Run, generation: str) -> Iterator[Problem]:
    """N-1: whoever has a receipt has had a staged one, where anybody has."""
    for key in run.below(f"{keys.folder(generation)}receipts/"):
        receipt = run.value(key, "receipt")
        if receipt is not None and receipt["status"] == "complete":
            staged = keys.staged(generation, receipt["rank"])
            if staged not in run.content and staged not in run.damaged:
                yield Problem(staged, "N-1", "is not there, though the rank has a receipt, and others have a staged one")


def _on_nodes(run: Run, generation: str, found: dict[int, Value]) -> Iterator[Problem]:
    """N-4: the record is there only if every participant's staged receipt is."""
    key = keys.on_nodes(generation)
    record = run.value(key)
    if record is None:
        return
    absent = [
        rank for rank in range(record["participants"]) if rank not in found and keys.staged(generation, rank) not in run.damaged
    ]
    if absent:
        yield Problem(key, "N-4", f"rank {absent[0]} of {record['participants']} has no staged receipt")
    if any(value["participants"] != record["participants"] for value in found.values()):
        yield Problem(key, "R-69", f"`participants` is {record['participants']}, and the staged receipts say otherwise")
