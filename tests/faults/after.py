"""What must hold of a run after any fault, and what the next start makes of it."""

from __future__ import annotations

from pathlib import Path

from ckptcore import ledger
from ckptcore.channel import Channel
from ckptcore.history import read_run
from ckptcore.incarnations import undecided
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.store import Storage, Store, open_store
from tests.ckptcore.support import check_commits, checkpointer, on_ranks, same
from tests.faults.member import large
from tests.spec.checker import check_run


def start_again(url: Path | str, *, storage: Storage | None = None, size: int = 2) -> int:
    """Start the job again, check all that must hold, and save once more. Returns the step that it went on from."""

    store = open_store(url, storage)

    def run(link: Channel) -> tuple[int, bool, list[GenerationId]]:
        begin = large(0, link.rank, size)
        with checkpointer(url, link, storage=storage) as saver:
            restored = saver.restore_or_init(lambda: begin, like=begin)
            right = same(restored.components, large(restored.step, link.rank, size))
            # Another rank may have begun to save already.
            left = [found for found in undecided(store) if found.incarnation != saver.incarnation]
            step = restored.step + 1
            saver.save(step, large(step, link.rank, size)).result()
        return restored.step, right, left

    outcomes = on_ranks(size, run)
    step = outcomes[0][0]
    assert outcomes == [(step, True, [])] * size
    assert check_commits(store)
    if store.driver == "file":
        assert check_run(url) == []
    return step


def decided(store: Store, generation: GenerationId) -> Decided | None:
    """What the ledger says."""
    return ledger.read(store, read_run(store).run_id, generation)
