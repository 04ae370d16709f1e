"""Finishing what a dead job left undecided, without a new incarnation (spec: protocol, "by anybody").

What is complete and proven is committed by the code of its own coordinator, fenced with the same number, with the
same bytes. Nothing else is changed: nothing is claimed, aborted or deleted, so that a job that still lives loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckptcore import names, records
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CommitUnknown, DamageError, StoreError, Superseded, UnsafeStore
from ckptcore.events import Listener
from ckptcore.history import read_base, read_run
from ckptcore.incarnations import newest_claimed, undecided
from ckptcore.inspect import proving
from ckptcore.inspect.findings import Finding
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.proof import Proven, Refuted
from ckptcore.store import Store
from ckptcore.storereads import exists

Outcome = Literal["complete", "committed", "aborted", "incomplete", "superseded", "undetermined"]


@dataclass(frozen=True)
class Undecided:
    """What became of one undecided generation.

    `outcome`: `complete` (proven, and not committed, since nobody asked for that), `committed`, `aborted` (meanwhile, by its
    own job), `incomplete` (and left as it is), `superseded` (of an older incarnation: the next start settles it) or
    `undetermined` (the store did not answer, or a newer release wrote it). `reason`: why. `clause`: of the specification,
    that says so. `details`: each rank and each file that the proof lacks.
    """

    generation: GenerationId
    outcome: Outcome
    reason: str = ""
    clause: str = ""
    details: tuple[Finding, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have delivered no receipt."""
        return tuple(each.rank for each in self.details if each.kind == "missing-receipt" and each.rank is not None)


def recover(store: Store, *, apply: bool, clock: Clock | None = None, on_event: Listener | None = None) -> list[Undecided]:
    """Prove every undecided generation, oldest first; with `apply`, commit those of the newest incarnation that are complete.

    Raises `NotFound` where there is no run, `ProtocolViolation` if somebody has decided otherwise.
    """
    run = read_run(store)
    newest = newest_claimed(store)
    clock = clock or Clock()
    found = []
    for generation in undecided(store):
        coordinator = Coordinator(store, run.run_id, generation.incarnation, clock, on_event)
        found.append(_finding(coordinator, generation, newest, apply=apply))
    return found


def _finding(coordinator: Coordinator, generation: GenerationId, newest: int, *, apply: bool) -> Undecided:
    """What becomes of one. Every error that leaves it undecided is part of the answer: the others are looked at all the same."""
    try:
        if generation.incarnation < newest:
            return _superseded(coordinator, generation)
        _check_own(coordinator, generation)
        found = coordinator.finish(generation) if apply else coordinator.examine(generation)
        return _shown(coordinator, generation, found)
    except Superseded as error:
        return Undecided(generation, "superseded", str(error), "P-38")
    except (StoreError, DamageError, CommitUnknown) as error:
        return Undecided(generation, "undetermined", str(error), "P-13")


def _superseded(coordinator: Coordinator, generation: GenerationId) -> Undecided:
    """The next start commits it if it is proven, and aborts it otherwise: nobody else may."""
    verdict = proving.judge(coordinator.store, coordinator.run_id, generation)
    reason = f"incarnation {generation.incarnation + 1} has been claimed, and the next start settles this. {verdict.finding.text}"
    return Undecided(generation, "superseded", reason, "P-10", verdict.details)


def _check_own(coordinator: Coordinator, generation: GenerationId) -> None:
    """Raise a `DamageError` or `StoreError` unless the generation's incarnation is known, and may have two coordinators."""
    store, number = coordinator.store, generation.incarnation
    base = read_base(store, coordinator.run_id, number)
    lost = [key for key in (names.claim_key(number), names.base_key(number)) if not exists(store, key)]
    if base is None or lost:
        raise StoreError(f"{' and '.join(lost)} of {store.url} is missing: put it back, or let the next start settle this")
    if base.store.single_writer:
        raise UnsafeStore("the run is in single-writer mode, in which nobody else may decide: the next start settles this")


def _shown(coordinator: Coordinator, generation: GenerationId, found: Proven | Refuted | Decided) -> Undecided:
    if isinstance(found, Refuted):
        details = proving.judge(coordinator.store, coordinator.run_id, generation).details
        return Undecided(generation, "incomplete", found.reason, "P-35", details)
    if isinstance(found, Proven):
        return Undecided(generation, "complete", f"all {len(found.receipts)} receipts are there, and what they list", "P-35")
    if isinstance(found.record, records.Abort):
        return Undecided(generation, "aborted", f"decided meanwhile: {found.record.reason}", "P-40")
    return Undecided(generation, "committed", "complete and proven", "P-35")
