"""What a save costs, by phase. Pure.

A receipt tells how long its rank took to `stage` (the snapshot: training stands still) and to `write` (the data made durable).
What comes after the receipts, the `wait` for the last of them and the `commit`, is over only when they are written: rank 0
tells it in the receipt of its next save, as `previous_wait` and `previous_commit` (microseconds all; spec: receipt).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckptcore.records import Manifest, Receipt

AFTER = ("wait", "commit")
"""The phases of rank 0 after its receipt."""


def before(phases: Mapping[str, int]) -> dict[str, int]:
    """What the next receipt says of the save whose phases these are."""
    return {f"previous_{name}": phases[name] for name in AFTER if name in phases}


def own(phases: Mapping[str, float]) -> float:
    """The time that a rank needs for its part, in the unit of `phases`."""
    return phases.get("stage", 0) + phases.get("write", 0)


def slowest(by_rank: Mapping[int, Mapping[str, float]]) -> int | None:
    """The rank that needs the longest for its part; None where there is none, or none tells."""
    return max(by_rank, key=lambda rank: own(by_rank[rank]), default=None) if any(map(own, by_rank.values())) else None


def told(manifest: Manifest, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The detail of a `committed` event."""
    by_rank = {receipt.rank: receipt.phases for receipt in receipts}
    rank = slowest(by_rank)
    found: dict[str, Any] = {
        "captured": manifest.captured,
        "guarantee": manifest.guarantee.level,
        "bytes": sum(entry.bytes for entry in manifest.components.values() if entry.source is None),
    }
    return found if rank is None else found | {"slowest": rank, "slowest_seconds": own(by_rank[rank]) / 1e6}
