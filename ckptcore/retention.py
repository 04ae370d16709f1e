"""Retention: retire what the policy does not keep, and collect what nothing needs (spec: retention).

Every step is idempotent, and a killed collection is finished by the next. The order matters:
the word in the ledger first, then a look at what pins the generation, and only then its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ckptcore import keep as policies
from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CallError, Damaged, InvalidRecord, UnsupportedFormat
from ckptcore.events import Event, Listener, log, tell
from ckptcore.history import History
from ckptcore.incarnations import stored
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.proof import Refuted
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes

_REFERRED = "a commit whose data is kept refers to it"


@dataclass(frozen=True)
class Collected:
    """What one collection did, or with `dry_run` would do.

    `held`: what the ledger gives up and was not deleted all the same, and why. `reasons`: why each was retired.
    """

    retired: tuple[GenerationId, ...] = ()
    aborted: tuple[GenerationId, ...] = ()
    deleted: tuple[GenerationId, ...] = ()
    held: Mapping[GenerationId, str] = field(default_factory=dict, compare=False)
    reasons: Mapping[GenerationId, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Collector:
    """Collects one run.

    `incarnation` is the collector's own, None for a command beside the job. `dead_claims` are incarnations without a base
    of which a person vouches that their jobs have ended, so that nothing is held back for them (spec: look again).
    `known`: the history of the run as the collections before have read it, so that only what is new is read.
    """

    store: Store
    incarnation: int | None = None
    clock: Clock = field(default_factory=Clock)
    on_event: Listener | None = None
    dead_claims: frozenset[int] = frozenset()
    known: History | None = None

    def collect(self, keep: policies.Keep | None, *, dry_run: bool = False) -> Collected:
        """Retire by `keep` (None: retire nothing), then delete the data of everything decided that needs none.

        Raises `Damaged`, having done nothing, when a ledger record is unreadable: it may need what would be deleted.
        Raises `CallError` for a dead claim for which nothing is held back.
        """
        history = self._history()
        _check_readable(history)
        _check_dead(history, self.dead_claims)
        retired = dict(self._retire(history, keep, dry_run=dry_run)) if keep is not None else {}
        found = stored(self.store)
        aborted = list(self._abort(history, found, dry_run=dry_run))
        # What may go is known before anything that may need it is looked for: a word that comes later is for the next collection.
        given_up = [each for each in found if each in retired or each in aborted or _is_given_up(history, each)]
        if given_up:
            self._look_again(history)
        planned = {*aborted, *retired} if dry_run else set(aborted)
        deleted, held = self._delete(history, found, given_up, planned, dry_run=dry_run) if given_up else ([], {})
        return Collected(tuple(retired), tuple(aborted), tuple(deleted), held=held, reasons=retired)

    def _look_again(self, history: History) -> None:
        """Read claims, bases and notes anew: something may have come to need what was given up before (spec: look again)."""
        history.refresh()
        _check_readable(history)

    def _history(self) -> History:
        if self.known is None:
            return History.load(self.store)
        self.known.refresh()
        return self.known

    def _retire(self, history: History, keep: policies.Keep, *, dry_run: bool) -> Iterator[tuple[GenerationId, str]]:
        commits = {decided.generation: decided for decided in history.commits()}
        protected = pinned(history)
        for generation, reason in policies.expendable(candidates(history), keep, protected):
            if not dry_run:
                ledger.retire(self.store, commits[generation], reason, clock=self.clock)
                tell(self.on_event, Event("retired", 0, generation, reason))
            yield generation, reason

    def _abort(self, history: History, found: Iterable[GenerationId], *, dry_run: bool) -> Iterator[GenerationId]:
        """Undecided generations of superseded incarnations get their abort record; those of the newest are its own business."""
        newest = max(history.bases, default=0)
        for generation in found:
            if self.incarnation is None or self.incarnation != newest or generation.incarnation >= newest:
                continue
            if generation in history.generations:
                continue
            if dry_run:
                yield generation
                continue
            coordinator = Coordinator(self.store, history.run.run_id, newest, self.clock, self.on_event)
            left = Refuted("left behind by a superseded incarnation, after its successor had settled")
            if not coordinator.abort(generation, left).committed:
                yield generation

    def _delete(
        self,
        history: History,
        found: list[GenerationId],
        given_up: list[GenerationId],
        planned: set[GenerationId],
        *,
        dry_run: bool,
    ) -> tuple[list[GenerationId], dict[GenerationId, str]]:
        """Delete the data of what was given up before `history` was read, of all that is `found`; and what was held back.

        `planned` are those that would be given up by now, if this were no dry run.
        """
        opening = opening_claims(history) - self.dead_claims
        if opening and not dry_run and any(history.generations.get(generation) for generation in found):
            log.warning("%s", _kept_for(opening))
        held = _held_back(history, found, given_up, opening, planned)
        garbage = [generation for generation in given_up if generation not in held]
        if garbage and not dry_run:
            self.store.sync(names.LEDGER)  # another collector's word may be visible, and not durable yet
            for generation in garbage:
                self.store.delete_prefix(names.generation_prefix(generation))
        return garbage, held


def _held_back(
    history: History, found: list[GenerationId], given_up: list[GenerationId], opening: set[int], planned: set[GenerationId]
) -> dict[GenerationId, str]:
    """What of `given_up` is not to be deleted, and why."""
    try:
        needed = _needed(history, found)
    except UnsupportedFormat as error:
        log.warning("nothing is deleted, since a save under way may need it: %s", error)
        return dict.fromkeys(given_up, f"a save under way may need it: {error}")
    held = {generation: why for generation in given_up if (why := _held(history, generation, needed, opening, planned))}
    # What is kept although it is retired (a base, a pinned one) needs what it refers to.
    kept = (generation for generation in found if generation not in given_up or generation in held)
    sources = _sources(history.decided(generation) for generation in kept)
    return {**{each: _REFERRED for each in given_up if each in sources}, **held}


def _is_given_up(history: History, generation: GenerationId) -> bool:
    """Whether the ledger says of a generation that it was aborted, or retired."""
    decided = history.decided(generation)
    return decided is not None and (not decided.committed or history.generations[generation])


def _held(
    history: History, generation: GenerationId, needed: Mapping[GenerationId, str], opening: set[int], planned: set[GenerationId]
) -> str | None:
    """Why the data of a generation that was given up stays, None if it goes.

    A pin or a tag is looked for once more: it may be newer than the word that gives the data up.
    """
    decided = history.decided(generation)
    if generation in needed:
        return needed[generation]
    if decided is None or not decided.committed:
        return None
    if opening:
        return _kept_for(opening)
    if generation not in planned and not ledger.may_be_deleted(history.store, decided):
        return "its retired record is not about this commit"
    told = notes.read(history.store, history.run.run_id, generation)
    return "it is pinned or tagged" if notes.has(told, "pin") or notes.has(told, "tag") else None


def _needed(history: History, found: Iterable[GenerationId]) -> dict[GenerationId, str]:
    """What must stay, whatever the ledger says, and why. Raises `UnsupportedFormat` where nobody here can know."""
    promised = dict.fromkeys(_promised(history, found), "a save under way refers to it")
    sources = dict.fromkeys(referenced(history), _REFERRED)
    return {**promised, **sources, **dict.fromkeys(pinned(history), "it is the resume point, or the newest base")}


def opening_claims(history: History) -> set[int]:
    """The incarnations that were claimed after the newest that has a base.

    Each may be opening, and have chosen what was retired meanwhile.
    """
    newest = history.newest_begun()
    return {number for number in history.bases if number > newest}


def _kept_for(opening: set[int]) -> str:
    shown = ", ".join(map(str, sorted(opening)))
    return (
        f"the data of retired checkpoints is kept as long as incarnation {shown}, which was claimed, has recorded no base: if its"
        " job has died, the next start makes room again, or `ckpt gc --dead-claim` by whoever knows that it has"
    )


def _check_dead(history: History, dead: frozenset[int]) -> None:
    """A number that was mistyped must not look as if it had helped; nor may one vouch for a job that has begun."""
    wrong = sorted(dead - opening_claims(history))
    if wrong:
        opening = sorted(opening_claims(history))
        raise CallError(
            f"nothing is held back for incarnation {wrong[0]}: "
            + (f"only for {', '.join(map(str, opening))}" if opening else "every incarnation that was claimed has its base")
        )


def _check_readable(history: History) -> None:
    for generation, retired in history.generations.items():
        if not retired and history.decided(generation) is None and generation in history.unreadable:
            raise Damaged(
                f"nothing is collected while the decision about {generation} cannot be read: {history.unreadable[generation]}"
            )


def candidates(history: History) -> list[policies.Candidate]:
    """Every commit that is not retired, as the policy sees it."""
    needed, path = referenced(history), set(history.lineage())
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
                stray=decided.generation not in path and manifest_of(decided).guarantee.level != "weights",
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
