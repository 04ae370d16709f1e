"""Why a job makes no progress, by what lies in its run: the ledger, what is undecided, how attempts ended. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ckptcore.attempts import Attempt
from ckptcore.errors import CheckpointError, NotFound
from ckptcore.events import shorten
from ckptcore.inspect.explaining import outlook
from ckptcore.inspect.failures import failure
from ckptcore.inspect.inventory import Entry, inventory
from ckptcore.store import Storage, Store
from ckptsupervise.telling import counted

MOST = 5
"""Attempts and saves that are told of."""


def explain(store: Store, storage: Storage, attempts: Sequence[Attempt]) -> list[str]:
    """Why the attempts, oldest first, have led to no new checkpoint; a line each, most general first."""
    return [*_saves(store, storage), *_ends(attempts[-MOST:])]


def _saves(store: Store, storage: Storage) -> Iterator[str]:
    try:
        entries = inventory(store)
    except NotFound:
        yield f"no job has opened the run {store.url}: ranks end before that, or their Checkpointer has another URL"
        return
    except CheckpointError as error:
        yield f"the ledger cannot be read: {error}"
        return
    yield _newest(entries)
    yield from _unfinished(entries)
    try:
        yield outlook(store, storage).answer.text
    except CheckpointError as error:
        yield f"what the next start would do cannot be told: {error}"


def _newest(entries: Sequence[Entry]) -> str:
    committed = [entry for entry in entries if entry.restorable]
    if not committed:
        return "nothing was ever committed"
    head = next((entry for entry in committed if entry.is_head), committed[-1])
    return f"the newest checkpoint is {head.generation}, of step {head.generation.step}"


def _unfinished(entries: Sequence[Entry]) -> Iterator[str]:
    """Saves since the newest checkpoint that became none, and why."""
    last = max((place for place, entry in enumerate(entries) if entry.restorable), default=-1)
    failed = [entry for entry in entries[last + 1 :] if entry.state in ("aborted", "undecided", "unreadable")]
    if not failed:
        yield "no save was begun since"
        return
    kinds = Counter(failure(entry.reason, entry.missing) for entry in failed)
    yield f"{counted(len(failed), 'save')} since became no checkpoint: " + ", ".join(
        f"{count} × {kind}" for kind, count in kinds.items()
    )
    for entry in failed[-MOST:]:
        missing = f", no receipt from rank {', '.join(map(str, entry.missing))}" if entry.missing else ""
        yield f"{entry.generation}: {entry.state}{missing}{f', {entry.reason}' if entry.reason else ''}"


def _ends(attempts: Sequence[Attempt]) -> Iterator[str]:
    for attempt in attempts:
        if attempt.end is None:
            continue
        incident, step = attempt.end.incident, attempt.end.last_step
        reached = "before its first step" if step is None else f"at step {step}"
        if incident is None:
            yield f"attempt {attempt.number}: {attempt.end.outcome} {reached}"
            continue
        node = f"node {incident.node}" if incident.node and attempt.plan.members else ""
        who = "" if incident.rank is None else f"rank {incident.rank} on slot {incident.slot}"
        phase = "" if incident.phase is None else f" in phase {incident.phase}"
        kind = "lost" if incident.kind == "node" else incident.kind
        told = ", ".join(filter(None, (kind, node, who)))
        yield f"attempt {attempt.number}: {told}{phase} {reached}: {shorten(incident.message)}"
