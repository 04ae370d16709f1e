"""Which rank keeps the copy of which other rank's part: another node store's, the same for all who know the same (spec: N-13)."""

from __future__ import annotations

from collections.abc import Sequence


def holders(markers: Sequence[str | None]) -> dict[int, int]:
    """The rank that keeps the copy of each rank's part; empty if all of them have one node store.

    `markers`: by rank, the marker of its node store (N-12); None: it has none that others could know, so it takes no part. Node
    stores stand in a ring, in the order of their lowest ranks. A part goes to the next one, to the rank at the same position
    there, counted around: so no rank of it keeps more than one copy more than another.
    """
    stores: dict[str, list[int]] = {}
    for rank, marker in enumerate(markers):
        if marker is not None:
            stores.setdefault(marker, []).append(rank)
    ring = list(stores.values())
    if len(ring) < 2:
        return {}
    nexts = [*ring[1:], ring[0]]
    return {
        rank: after[position % len(after)]
        for store, after in zip(ring, nexts, strict=True)
        for position, rank in enumerate(store)
    }
