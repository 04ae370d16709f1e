"""Incarnations: claim, settle, base (spec: opening a run for writing).

An incarnation is one launch of the run's job. It is claimed once and only ever grows, so it is
the fencing number: from the moment of a claim every older incarnation is superseded. The new
one first settles what older ones left undecided, then records where it starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ckptcore import ledger, names, notes, records
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.digests import digest
from ckptcore.errors import (
    CallError,
    Damaged,
    DamageError,
    InvalidRecord,
    NotFound,
    Retired,
    StoreError,
    StoreUnavailable,
    Superseded,
    UnsupportedFormat,
)
from ckptcore.events import Event, Listener, tell
from ckptcore.history import History
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.records import Level
from ckptcore.store import Store
from ckptcore.storereads import exists, record_bytes

MAX_CLAIM_RACES = 1000
Reason = Literal["new", "newest", "rolled-forward", "fallen-back", "chosen"]


@dataclass(frozen=True)
class Incarnation:
    """A claimed incarnation that has settled its predecessors and knows where it starts."""

    run: records.Run
    claim: records.Claim
    base: records.Base

    @property
    def number(self) -> int:
        """The fencing number."""
        return self.claim.incarnation

    @property
    def base_generation(self) -> GenerationId | None:
        """The generation to resume from, or None for a fresh start."""
        return GenerationId.parse(self.base.generation) if self.base.generation else None


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The base that was chosen, or none, and what was passed over; `fallen_back`: a checkpoint was among that."""

    decided: Decided | None
    skipped: list[records.Skipped]
    fallen_back: bool
    by_hand: bool


@dataclass(frozen=True)
class Opening:
    """How a job opens its run for writing. One process does it and hands the result to the others."""

    store: Store
    topology: records.Topology
    facts: records.StoreFacts
    clock: Clock = field(default_factory=Clock)
    on_event: Listener | None = None

    def identify(self, begins: records.Parent | records.Origin | None = None, *, expected: str | None = None) -> records.Run:
        """Create the run's identity or read it. `begins`, where its first state comes from, is recorded in a new one.

        Raises `CallError` unless the run is the `expected` one, which is none that could be created here.
        """
        data = record_bytes(self.store, names.RUN)
        if data is None and any(self.store.children(prefix) for prefix in (names.INCARNATIONS, names.LEDGER)):
            data = record_bytes(self.store, names.RUN)  # another job may have begun the run just now: this record comes first
            if data is None:
                raise Damaged(f"{names.RUN} of {self.store.url} is missing, though the run has other records. Put it back.")
        if data is None and expected is not None:
            raise NotFound(f"{self.store.url} has no run yet, and run {expected} is expected there: is it the right URL?")
        if data is None:
            run = records.Run(
                run_id=self.clock.uuid(),
                created=self.clock.utc(),
                parent=begins if isinstance(begins, records.Parent) else None,
                origin=begins if isinstance(begins, records.Origin) else None,
            )
            data = self.store.put_if_absent(names.RUN, records.encode(run))
        run = records.decode(data, records.Run, key=names.RUN)
        if expected not in (None, run.run_id):
            raise CallError(
                f"{self.store.url} holds run {run.run_id}, and run {expected} is expected there: is it the right URL?"
            )
        return run

    def open(
        self,
        run: records.Run,
        *,
        choose: Callable[[History], GenerationId] | None = None,
        check: Callable[[Decided], None],
        guarantee: Callable[[Decided], Level | None],
        known: History | None = None,
    ) -> Incarnation:
        """Claim, settle, choose the base and record it. `known`: the run's history as it was read before, if it was.

        `choose` picks the base by hand (a rollback); otherwise it is the head, falling back past
        what `check` refuses with a `DamageError`. `guarantee` says what a restore can keep, None if nobody knows.
        Raises `Damaged` when there are commits but none is usable, or when the newest incarnation's own base is lost:
        a run is never silently begun anew, nor set back. Raises `Superseded` when another job has claimed meanwhile.
        """
        taken: set[GenerationId] = set()  # by retention, while this job chose them

        def check_spared(decided: Decided) -> None:
            if decided.generation in taken:
                raise Retired(f"generation {decided.generation} was retired while it was being chosen")
            check(decided)

        history = known or History(self.store, run)
        while True:
            claim = self.claim(run)
            settled = self.settle(run, claim)
            history.refresh()
            try:
                choice = self._choose(history, choose(history) if choose else None, check_spared)
            except DamageError:
                check_current(self.store, claim.incarnation)  # retention goes by the newest base, no longer by the one before
                raise
            level = guarantee(choice.decided) if choice.decided else None
            check_current(self.store, claim.incarnation)  # whoever claimed since may have saved what was chosen
            self.store.sync(names.LEDGER)  # what was chosen is visible; whoever put it may die before it is durable
            base = self._record(claim, choice, level, settled)
            check_current(self.store, claim.incarnation)  # or have looked for a base before this one was there
            chosen = choice.decided.generation if choice.decided else None
            if chosen is None or not ledger.is_retired(self.store, chosen) or self._was_base(chosen, claim):
                return Incarnation(run, claim, base)
            taken.add(chosen)

    def _was_base(self, chosen: GenerationId, claim: records.Claim) -> bool:
        """Whether a retired generation was the newest base until this incarnation's own was recorded: then its data was kept."""
        bases = History.load(self.store).bases
        before = max((number for number, base in bases.items() if base is not None and number < claim.incarnation), default=0)
        base = bases.get(before)
        return base is not None and base.generation == str(chosen)

    def claim(self, run: records.Run) -> records.Claim:
        """Claim the next incarnation; on a conflict, the one after it.

        A number that has saves was claimed once, whatever has become of the claim. It is never used again; it is claimed
        once more all the same, so that fences find no gap.
        """
        number, used = newest_claimed(self.store), self._newest_used()
        if used - number >= MAX_CLAIM_RACES or used == names.MAX_INCARNATION:
            raise Damaged(
                f"{self.store.url} has saves of incarnation {used}, but no claim after that of incarnation {number}:"
                f" put {names.INCARNATIONS} back, or take what is not of this run out of {names.LEDGER} and {names.GENERATIONS}"
            )
        for _ in range(MAX_CLAIM_RACES):
            number += 1
            claim = records.Claim(
                run_id=run.run_id,
                incarnation=number,
                nonce=self.clock.nonce(),
                created=self.clock.utc(),
                topology=self.topology,
            )
            data = records.encode(claim)
            if self.store.put_if_absent(names.claim_key(number), data) == data and number > used:
                return claim
        raise StoreUnavailable(
            f"{MAX_CLAIM_RACES} other jobs claimed an incarnation of {self.store.url} first; find out what starts them"
        )

    def _newest_used(self) -> int:
        """The greatest number that a save bears, 0 for none."""
        saves = [*(generation for generation, _ in ledger.entries(self.store)), *stored(self.store)]
        return max((generation.incarnation for generation in saves), default=0)

    def settle(self, run: records.Run, claim: records.Claim) -> list[records.Settled]:
        """Decide every generation that older incarnations left undecided, oldest first.

        What cannot be determined stops the start with the error that says why: nothing is thrown away.
        """
        coordinator = Coordinator(self.store, run.run_id, claim.incarnation, self.clock, self.on_event)
        settled = []
        for generation in undecided(self.store):
            if generation.incarnation >= claim.incarnation:
                continue
            decided = coordinator.conclude(generation)
            reason = decided.record.reason if isinstance(decided.record, records.Abort) else "complete and proven"
            outcome = "commit" if decided.committed else "abort"
            settled.append(records.Settled(generation=str(generation), decision=outcome, reason=records.clip(reason)))
            tell(self.on_event, Event("settled", 0, generation, f"{outcome}: {reason}"))
        return settled

    def _choose(self, history: History, choose: GenerationId | None, check: Callable[[Decided], None]) -> _Choice:
        skipped: list[records.Skipped] = []
        left: list[tuple[GenerationId, str | None]] = []
        for generation in [choose] if choose else history.lineage():
            obstacle = history.obstacle(generation)
            decided = history.decided(generation)
            if obstacle is None and decided is not None:
                try:
                    check(decided)
                except UnsupportedFormat:
                    raise  # written by a newer release: to pass it over would lose what it holds
                except DamageError as error:
                    obstacle = str(error)
                    if error.kind == "damaged":
                        text = records.clip(obstacle)
                        notes.write(self.store, history.run.run_id, generation, "damaged", clock=self.clock, text=text)
                    if choose is not None:
                        raise
                else:
                    for worse, why in left:
                        message = f"{generation} is used instead: {why}"
                        tell(self.on_event, Event("fallen-back", 0, worse, message))
                    return _Choice(decided=decided, skipped=skipped, fallen_back=bool(left), by_hand=choose is not None)
            if choose is not None:
                raise NotFound(f"generation {generation} cannot be resumed from: {obstacle}")
            skipped.append(records.Skipped(generation=str(generation), reason=records.clip(obstacle or "")))
            if not never_a_checkpoint(decided):
                left.append((generation, obstacle))
        if left:
            told = "; ".join(f"{item.generation}: {item.reason}" for item in skipped[:5])
            raise Damaged(
                f"none of the run's checkpoints can be resumed from ({told}). Nothing was changed.{_strays(history)}"
                " Restore one by hand (`ckpt rollback --to …`), or start a new run at another URL."
            )
        return _Choice(decided=None, skipped=skipped, fallen_back=False, by_hand=False)

    def _record(
        self,
        claim: records.Claim,
        choice: _Choice,
        level: Level | None,
        settled: list[records.Settled],
    ) -> records.Base:
        """Put the base record."""
        decided = choice.decided
        base = records.Base(
            run_id=claim.run_id,
            incarnation=claim.incarnation,
            nonce=claim.nonce,
            created=self.clock.utc(),
            generation=str(decided.generation) if decided else None,
            manifest=decided.digest if decided else None,
            reason=_reason(choice, settled),
            guarantee=level,
            settled=settled,
            skipped=choice.skipped,
            store=self.facts,
        )
        key = names.base_key(claim.incarnation)
        data = records.encode(base)
        found = self.store.put_if_absent(key, data)
        if found != data:
            raise InvalidRecord(
                f"{key} was written by somebody else (digest {digest(found)}); only the claim's owner may write it"
            )
        return base


def newest_claimed(store: Store) -> int:
    """The greatest claimed number, 0 for none.

    A folder without its claim is what a killed process left. Its number is still free: to skip it would
    leave a gap, and a fence looks at the next number only.
    """
    listed = (
        names.parse_incarnation_key(f"{names.INCARNATIONS}{name}/claim.json") for name in store.children(names.INCARNATIONS)
    )
    numbers = sorted((parsed[0] for parsed in listed if parsed), reverse=True)
    return next((number for number in numbers if exists(store, names.claim_key(number))), 0)


def undecided(store: Store) -> list[GenerationId]:
    """Generations that have files but no decision, oldest first."""
    decided = {generation for generation, retired in ledger.entries(store) if not retired}
    return [generation for generation in stored(store) if generation not in decided]


def stored(store: Store) -> list[GenerationId]:
    """Every generation that has files, oldest first; foreign folders are passed over."""
    found = []
    for name in store.children(names.GENERATIONS):
        try:
            found.append(GenerationId.parse(name))
        except InvalidRecord:
            continue
    return sorted(found)


def check_current(store: Store, incarnation: int) -> None:
    """Raise `Superseded` if a newer incarnation has been claimed, `StoreError` if the own claim is gone."""
    if not exists(store, names.claim_key(incarnation)):
        raise StoreError(
            f"{names.claim_key(incarnation)} of {store.url} is gone: the run was deleted or moved while this job ran."
            " Nothing that it saves can be found again. Stop it, and put the run back."
        )
    if exists(store, names.claim_key(incarnation + 1)):
        raise Superseded(
            f"incarnation {incarnation + 1} of {store.url} has been claimed: another job runs on this run directory."
            f" This job (incarnation {incarnation}) must stop; its saves can no longer become checkpoints."
        )


def _strays(history: History) -> str:
    """What lies on no path from the head, and could be gone back to by hand all the same."""
    path = set(history.lineage())
    found = [commit.generation for commit in history.commits() if commit.generation not in path]
    usable = [str(generation) for generation in found if history.obstacle(generation) is None]
    return f" Left behind, and not marked: {', '.join(usable[:5])}." if usable else ""


def _reason(choice: _Choice, settled: list[records.Settled]) -> Reason:
    if choice.decided is None:
        return "new"
    if choice.by_hand:
        return "chosen"
    if any(item.generation == str(choice.decided.generation) for item in settled):
        return "rolled-forward"
    return "fallen-back" if choice.fallen_back else "newest"


def never_a_checkpoint(decided: Decided | None) -> bool:
    """Whether a start that finds nothing better than `decided` may begin anew: no resumable state is lost by that."""
    if decided is None:
        return False
    return isinstance(decided.record, records.Abort) or decided.record.guarantee.level == "weights"
