"""The runs that `docs/oncall.md` looks at: each is what one kind of trouble leaves behind."""

from __future__ import annotations

import shutil
from pathlib import Path

from ckptcore import ledger, names, records
from ckptcore.history import History
from ckptcore.incarnations import Opening
from ckptcore.names import GenerationId
from ckptcore.notes import annotate
from ckptcore.run import open_run
from tests.ckptcore.support import FACTS, Job, file_store, flip, topology

RANKS = 8


def job(path: Path, *steps: int, size: int = RANKS) -> Job:
    """A job that has saved these steps."""
    opened = Job(file_store(path), size)
    opened.open()
    for step in steps:
        opened.save(step)
    return opened


def died(path: Path) -> None:
    """Rank 7 died while step 30000 was being saved."""
    opened = job(path, 10000, 20000)
    generation = opened.next_generation(30000)
    for rank in range(RANKS - 1):
        opened.write(generation, rank)


def complete(path: Path) -> None:
    """The coordinator died when all ranks had delivered."""
    opened = job(path, 10000, 20000)
    generation = opened.next_generation(30000)
    for rank in range(RANKS):
        opened.write(generation, rank)


def damaged(path: Path) -> None:
    """Bits of the newest checkpoint have flipped, in the files of rank 1."""
    generation = job(path, 10000, 20000, size=2).save(30000).generation
    for file in (path / names.state_prefix(generation) / "ranks").glob("00001-*/d/*"):
        for position in range(10, file.stat().st_size, 100):
            flip(file, position)


def two_jobs(path: Path) -> None:
    """A second job was started while the first one ran."""
    job(path, 10000, 20000)
    second = Job(file_store(path), RANKS)
    second.open()
    second.save(30000)


def spike(path: Path) -> None:
    """The loss rose after step 20000."""
    opened = job(path)
    run = open_run(path)
    for step, loss in ((10000, 2.31), (20000, 2.17), (30000, 7.92), (40000, 9.4)):
        annotate(opened.store, run.identity.run_id, opened.save(step).generation, clock=opened.clock, metrics={"loss": loss})


def nothing(path: Path) -> None:
    """The only save was aborted."""
    opened = job(path)
    generation = opened.next_generation(10000)
    opened.write(generation, 0)
    opened.coordinator().commit(generation, RANKS, timeout=0.0)


def held_back(path: Path) -> None:
    """Retention has given up step 10000, and a job died while it opened the run."""
    opened = job(path, 10000, 20000, 30000, 40000)
    run = opened.incarnation.run if opened.incarnation else None
    decided = History.load(opened.store).decided(GenerationId(1, 10000, 1))
    assert run is not None
    assert decided is not None
    opening = Opening(opened.store, topology(RANKS), FACTS, opened.clock)
    opening.claim(opening.identify())
    ledger.retire(opened.store, decided, "not among the newest 3", clock=opened.clock)


def nodes(path: Path) -> None:
    """A job with a local tier died when step 30000 was whole on its nodes, and nothing of it uploaded."""
    opened = job(path, 10000, 20000)
    generation = opened.next_generation(30000)
    for rank in range(RANKS):
        opened.write(generation, rank)
    folder = path / names.generation_prefix(generation)
    (folder / "receipts").rename(folder / "staged")
    shutil.rmtree(folder / "state")
    identity = opened.identity(generation, 0)
    record = records.StagedRecord(
        run_id=identity.run_id,
        generation=str(generation),
        participants=RANKS,
        decided=opened.clock.utc(),
        decided_by=opened.number,
    )
    opened.store.put_if_absent(names.on_nodes_key(generation), records.encode(record))


RUNS = {
    "died": died,
    "complete": complete,
    "damaged": damaged,
    "two-jobs": two_jobs,
    "spike": spike,
    "nothing": nothing,
    "held-back": held_back,
    "nodes": nodes,
}
