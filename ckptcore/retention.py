"""Retention: retire what the policy does not keep, and collect what nothing needs (spec: retention).

Every step is idempotent, and a killed collection is finished by the next. The order matters:
the word in the ledger first, then a look at what pins the generation, and only then its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ckptcore import keep as policies
from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import Damaged, InvalidRecord, UnsupportedFormat
from ckptcore.events import Event, Listener, log, tell
from ckptcore.history import History
from ckptcore.incarnations import stored, undecided
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.proof import Refuted
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes


@dataclass(frozen=True)
class Collected:
    """What one collection did, or with `dry_run` would do."""

    retired: tuple[GenerationId, ...] = ()
    aborted: tuple[GenerationId, ...] = ()
    deleted: tuple[GenerationId, ...] = ()


@dataclass(frozen=True)
class Collector:
    """Collects one run. `incarnation` is the collector's own, None for a command beside the job."""

    store: Store
    incarnation: int | None = None
    clock: Clock = field(default_factory=Clock)
    on_event: Listener | None = None

    def collect(self, keep: policies.Keep | None, *, dry_run: bool = False) -> Collected:
        """Retire by `keep` (None: retire nothing), then delete the data of everything decided that needs none.

        Raises `Damaged`, having done nothing, when a ledger record is unreadable: it may need what would be deleted.
        """
        history = History.load(self.store)
        _check_readable(history)
        retired = list(self._retire(history, keep, dry_run=dry_run)) if keep is not None else []
        aborted = list(self._abort(history, dry_run=dry_run))
        planned = {*aborted, *(() if _is_opening(history) else retired)} if dry_run else set()
        deleted = list(self._delete(history, planned, dry_run=dry_run))
        return Collected(tuple(retired), tuple(aborted), tuple(deleted))

    def _retire(self, history: History, keep: policies.Keep, *, dry_run: bool) -> Iterator[GenerationId]:
        commits = {decided.generation: decided for decided in history.commits()}
        protected = pinned(history)
        for generation, reason in policies.expendable(candidates(history), keep, protected):
            if not dry_run:
                ledger.retire(self.store, commits[generation], reason, clock=self.clock)
                tell(self.on_event, Event("retired", 0, generation, reason))
            yield generation

    def _abort(self, history: History, *, dry_run: bool) -> Iterator[GenerationId]:
        """Undecided generations of superseded incarnations get their abort record; those of the newest are its own business."""
        newest = max(history.bases, default=0)
        for generation in undecided(self.store):
            if self.incarnation is None or self.incarnation != newest or generation.incarnation >= newest:
                continue
            if dry_run:
                yield generation
                continue
            coordinator = Coordinator(self.store, history.run.run_id, newest, self.clock, self.on_event)
            left = Refuted("left behind by a superseded incarnation, after its successor had settled")
            if not coordinator.abort(generation, left).committed:
                yield generation

    def _delete(self, history: History, planned: set[GenerationId], *, dry_run: bool) -> Iterator[GenerationId]:
        """Delete the data of aborted and retired generations, after a fresh look at what needs them."""
        history.refresh()
        _check_readable(history)
        found = stored(self.store)
        if _is_opening(history) and any(history.generations.get(generation) for generation in found):
            log.warning(
                "the data of retired checkpoints is kept as long as incarnation %d, which was claimed, has recorded no base: if"
                " its job has died, the next start makes room again",
                max(history.bases),
            )
        try:
            needed = pinned(history) | referenced(history) | _promised(history, found)
        except UnsupportedFormat as error:
            log.warning("nothing is deleted, since a save under way may need it: %s", error)
            return
        garbage = [each for each in found if each not in needed and (each in planned or _is_garbage(history, each))]
        # What is kept although it is retired (a base, a pinned one) needs what it refers to.
        sources = _sources(history.decided(generation) for generation in found if generation not in garbage)
        if garbage and not dry_run:
            self.store.sync(names.LEDGER)  # another collector's word may be visible, and not durable yet
        for generation in garbage:
            if generation not in sources:
                if not dry_run:
                    self.store.delete_prefix(names.generation_prefix(generation))
                yield generation


def _is_garbage(history: History, generation: GenerationId) -> bool:
    """Whether the ledger gives the data up, and nobody has asked to keep it meanwhile: such a note may be newer than the word."""
    decided = history.decided(generation)
    if decided is None or not decided.committed:
        return decided is not None
    if not history.generations[generation] or _is_opening(history) or not ledger.may_be_deleted(history.store, decided):
        return False
    told = notes.read(history.store, history.run.run_id, generation)
    return not (notes.has(told, "pin") or notes.has(told, "tag"))


def _is_opening(history: History) -> bool:
    """Whether an incarnation newer than the newest base has been claimed: it may have chosen what was retired meanwhile."""
    return history.bases.get(max(history.bases, default=0)) is None


def _check_readable(history: History) -> None:
    for generation, retired in history.generations.items():
        if not retired and history.decided(generation) is None and generation in history.unreadable:
            raise Damaged(
                f"nothing is collected while the decision about {generation} cannot be read: {history.unreadable[generation]}"
            )


def candidates(history: History) -> list[policies.Candidate]:
    """Every commit that is not retired, as the policy sees it."""
    needed = referenced(history)
    found = []
    for decided in history.commits():
        told = history.notes.get(decided.generation, [])
        found.append(
            policies.Candidate(
                generation=decided.generation,
                level=manifest_of(decided).guarantee.level,
                metrics=notes.metrics(told),
                pinned=notes.has(told, "pin") or notes.has(told, "tag"),
                verified=notes.has(told, "verified"),
                needed_by_reference=decided.generation in needed,
                usable=not (notes.has(told, "quarantine") or notes.has(told, "damaged")),
            )
        )
    return found


def referenced(history: History) -> set[GenerationId]:
    """The generations that hold a component of a commit that is not retired."""
    return _sources(history.commits())


def _sources(found: Iterable[Decided | None]) -> set[GenerationId]:
    """The generations that hold a component of one of these commits."""
    return {
        GenerationId.parse(entry.source)
        for decided in found
        if decided is not None and decided.committed
        for entry in manifest_of(decided).components.values()
        if entry.source is not None
    }


def _promised(history: History, found: Iterable[GenerationId]) -> set[GenerationId]:
    """What undecided generations refer to, and where that lies: their proof may have found it there already."""
    named = set()
    for generation in found:
        data = None if generation in history.generations else bounded_bytes(history.store, names.receipt_key(generation, 0))
        named |= set() if data is None else _references(generation, data)
    return named | _sources(history.decided(generation) for generation in named)


def _references(generation: GenerationId, receipt: bytes) -> set[GenerationId]:
    try:
        lead = records.decode(receipt, records.Receipt, key=names.receipt_key(generation, 0)).lead
    except InvalidRecord:
        return set()  # nobody can commit it
    return {GenerationId.parse(source) for source in lead.references.values()} if lead else set()


def pinned(history: History) -> set[GenerationId]:
    """The head, and the newest base: what a job is, or may be, starting from."""
    head = history.head()
    return {generation for generation in (head and head.generation, history.newest_base()) if generation is not None}
