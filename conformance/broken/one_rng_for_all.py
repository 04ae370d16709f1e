"""Defect: every rank gets rank 0's copy of what belongs to each rank, as if it were replicated."""

from __future__ import annotations

from ckpt_conformance.adapters.jax import Jax
from ckpt_conformance.adapters.process import main
from ckptcore import restore
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.restore import Ranks, table


def _deduplicated(source: Readable, components: list[str], ranks: Ranks) -> dict[str, StoredLeaf]:
    return table(source, components, {name: None if rank is None else 0 for name, rank in ranks.items()})


restore.table = _deduplicated

if __name__ == "__main__":
    main(Jax())
