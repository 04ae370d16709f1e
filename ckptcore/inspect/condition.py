"""Whether one generation can be resumed from, and if not, whose bytes are missing or damaged. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckptcore import names, records
from ckptcore.errors import DamageError, NotFound, Retired
from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.inspect import findings, proving
from ckptcore.inspect.findings import Finding
from ckptcore.inspect.locating import chunks_of
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.verify import Problem, verify


@dataclass(frozen=True)
class Condition:
    """What is known of a generation; `resumable`: whether a job can be started from it, by hand if no start chooses it."""

    generation: GenerationId
    resumable: bool
    findings: tuple[Finding, ...]


def condition(
    store: Store, generation: GenerationId, *, deep: bool = False, progress: Callable[[int], object] = lambda _: None
) -> Condition:
    """Look at one generation: its records and files, and with `deep` every byte (`progress` is told of bytes).

    Raises `NotFound` for a generation that the run does not have, and `StoreError` where the store gives no answer.
    """
    history = History.load(store)
    decided = history.decided(generation)
    if generation not in history.generations:
        return _undecided(store, history, generation)
    problem = findings.obstacle(history, generation)
    found = [problem] if problem is not None else [_place(history, generation)]
    if decided is not None and problem is not None and problem.kind == "aborted":
        found.extend(_missing(decided))
    if decided is not None and decided.committed:
        found.extend(_data(Checkpoint(store, decided), deep=deep, progress=progress))
    bad = problem is not None or any(each.kind in ("damaged", "retired") for each in found)
    return Condition(generation, not bad, tuple(found))


def _undecided(store: Store, history: History, generation: GenerationId) -> Condition:
    if generation not in stored(store):
        raise NotFound(f"run {store.url} has no generation {generation}; `ckpt ls` shows them")
    verdict = proving.judge(store, history.run.run_id, generation)
    live = "if the job that writes it still runs, its save may be under way"
    note = Finding(kind="undecided", text=live, clause="P-1, P-41", generation=generation)
    return Condition(generation, verdict.committed, (verdict.finding, *verdict.details, note))


def _place(history: History, generation: GenerationId) -> Finding:
    """Where a usable commit lies with regard to the head."""
    try:
        path = list(history.lineage())
        head = history.head()
    except DamageError as error:
        return Finding(kind="lost-base", text=f"nobody knows the head: {error}", clause="P-20", generation=generation)
    if head is not None and head.generation == generation:
        return Finding(
            kind="resume",
            text="it is the head: the next start tries it first, or a newer one that it commits first",
            clause="P-20",
            generation=generation,
        )
    if generation in path:
        text = f"it can be resumed from by name (a rollback); the head is {head.generation if head else 'unknown'}"
        return Finding(kind="ancestor", text=text, clause="P-20, P-23", generation=generation)
    text = "it is a stray: on no path from the head, never chosen by a start, and resumed from by name alone"
    return Finding(kind="stray", text=text, clause="P-23, P-24", generation=generation)


def _missing(decided: Decided) -> Iterator[Finding]:
    missing = decided.record.missing if isinstance(decided.record, records.Abort) else []
    for rank in missing:
        at = {"generation": decided.generation, "rank": rank, "key": names.receipt_key(decided.generation, rank)}
        yield Finding(kind="missing-receipt", text=f"rank {rank} had delivered no receipt", clause="P-34, P-35.1", **at)


def _data(checkpoint: Checkpoint, *, deep: bool, progress: Callable[[int], object]) -> Iterator[Finding]:
    generation = checkpoint.generation
    try:
        found = verify(checkpoint, deep=deep, progress=progress)
    except Retired:
        yield Finding(kind="retired", text="its data is gone, or a part of it", clause="O-14, K-17", generation=generation)
        return
    if found.ok:
        what = "every byte is as it was saved" if deep else "its records are whole and all of its files are there"
        yield Finding(kind="whole", text=what, clause="O-8", generation=generation)
    for problem in found.found:
        yield _damage(generation, problem)
        yield from chunks_of(checkpoint, problem)


def _damage(generation: GenerationId, problem: Problem) -> Finding:
    clause = "O-3, O-8, P-15" if problem.leaf is None else "O-10, O-11"
    leaf = None if problem.leaf is None else problem.leaf.stored_target
    at = {"generation": generation, "key": problem.key, "rank": problem.rank, "leaf": leaf}
    return Finding(kind="damaged", text=problem.text, clause=clause, **at)
