"""What happened in a run, read from its records, and the resume point that follows from it (spec: head).

The head is neither the largest step nor the newest time: it is the newest usable commit of the
newest incarnation that has a base, else that base, else what the parents lead to. So a run that
was rolled back stays rolled back, and a commit that a superseded job still squeezed in is a
stray that nobody resumes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ckptcore import ledger, names, notes, records
from ckptcore.errors import Damaged, DamageError, InvalidRecord, NotFound, UnsupportedFormat
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.store import Store
from ckptcore.storereads import exists, record_bytes


def read_run(store: Store) -> records.Run:
    """The identity of the run. Raises `NotFound` when there is no run at this place."""
    try:
        data = record_bytes(store, names.RUN)
        if data is None:
            raise NotFound(f"there is no run at {store.url} (no {names.RUN}); check the URL")
        return records.decode(data, records.Run, key=names.RUN)
    except DamageError as error:
        raise type(error)(f"{error} (the run at {store.url})") from error


@dataclass
class History:
    """A view of the run's claims, bases, decisions and notes, read when asked for.

    Records never change, so what was read once is kept; `refresh` lists again.
    """

    store: Store
    run: records.Run
    generations: dict[GenerationId, bool] = field(default_factory=dict)
    """Decided generations → whether retired."""
    bases: dict[int, records.Base | None] = field(default_factory=dict)
    """Claimed incarnations → their base, None while they have none, and where it is lost."""
    lost: dict[int, DamageError] = field(default_factory=dict)
    """Incarnations that had a base, as their saves or its own damaged bytes prove → what is wrong with it now."""
    notes: Mapping[GenerationId, list[records.Note]] = field(default_factory=dict)
    """Notes on generations that are not retired, or are the newest base nevertheless; oldest first."""
    unreadable: dict[GenerationId, DamageError] = field(default_factory=dict)
    """Ledger records that could not be understood."""
    _decided: dict[GenerationId, Decided] = field(default_factory=dict)
    _notes: dict[str, records.Note] = field(default_factory=dict)
    """Notes that were read, by key."""
    _keys: dict[str, ledger.Entry | None] = field(default_factory=dict)
    """Keys of the ledger that were listed, and what they say."""

    @classmethod
    def load(cls, store: Store) -> History:
        """Read the run's identity and list its records."""
        history = cls(store, read_run(store))
        history.refresh()
        return history

    def refresh(self) -> None:
        """List incarnations, ledger and notes again: three listings, and of records only those are read that are new."""
        self._forget()
        parsed = [found for key in self.store.list(names.INCARNATIONS) if (found := names.parse_incarnation_key(key))]
        claimed = {number for number, what in parsed if what == "claim"}
        for number in sorted({number for number, _ in parsed}):
            self._find_base(number, saved=False, claimed=number in claimed)
        listed: dict[GenerationId, bool] = {}
        for generation, retired in ledger.entries(self.store, self._keys):
            listed[generation] = retired or listed.get(generation, False)
        self.generations = listed
        self.find_bases()  # once more: an incarnation may have claimed, begun and saved since the first listing
        # What is retired stays retired: its notes, of which there are ever more, matter to nobody.
        spared = self.newest_base()
        retired = [generation for generation, gone in listed.items() if gone and generation != spared]
        self.notes = notes.read_all(self.store, self.run.run_id, but=retired, known=self._notes)

    def _forget(self) -> None:
        """Let go of what had been retired when the ledger was last listed: a job keeps its history for as long as it runs."""
        for generation in [generation for generation in self._decided if self.generations.get(generation)]:
            del self._decided[generation]

    def find_bases(self) -> None:
        """Look for the base of every incarnation that has saves."""
        for number in {generation.incarnation for generation in self.generations}:
            self._find_base(number, saved=True)

    def supposing(self, decisions: Iterable[Decided]) -> History:
        """This history as it would be with `decisions` in the ledger too. Nothing is written."""
        known = {decided.generation: decided for decided in decisions}
        supposed = replace(
            self,
            generations={**dict.fromkeys(known, False), **self.generations},
            bases=dict(self.bases),
            lost=dict(self.lost),
            _decided={**known, **self._decided},
        )
        supposed.find_bases()
        return supposed

    def decided(self, generation: GenerationId) -> Decided | None:
        """The decision about `generation`; None when there is none or when its record is unreadable (see `unreadable`)."""
        if generation not in self._decided and generation in self.generations:
            try:
                found = ledger.read(self.store, self.run.run_id, generation)
            except DamageError as error:
                self.unreadable[generation] = error
                return None
            if found is not None:
                self._decided[generation] = found
                self.unreadable.pop(generation, None)
        return self._decided.get(generation)

    def commits(self, incarnation: int | None = None) -> Iterator[Decided]:
        """Commits that are not retired, newest first; of one incarnation, or of all."""
        for generation in sorted(self.generations, reverse=True):
            if incarnation is None or generation.incarnation == incarnation:
                decided = None if self.generations[generation] else self.decided(generation)
                if decided is not None and decided.committed:
                    yield decided

    def obstacle(self, generation: GenerationId) -> str | None:
        """Why `generation` cannot be resumed from, as far as the records say; None when they allow it.

        That it is retired does not stop the newest base: retention keeps its data while it is that (spec: look again).
        Raises `UnsupportedFormat` for a record of a newer release: to pass it over would lose what it holds.
        """
        if self.generations.get(generation) and generation != self.newest_base():
            return "it is retired"
        decided = self.decided(generation)
        if decided is None:
            error = self.unreadable.get(generation)
            if isinstance(error, UnsupportedFormat):
                raise error
            return str(error or "it has no decision")
        if isinstance(decided.record, records.Abort):
            return f"it was aborted: {decided.record.reason}"
        if decided.record.guarantee.level == "weights":
            return "it holds weights only, which start a new run and never continue one"
        return self.mark(generation)

    def mark(self, generation: GenerationId) -> str | None:
        """The note that says that a generation is not to be used, None if there is none."""
        for note in self.notes.get(generation, []):
            if note.kind in ("quarantine", "damaged"):
                return f"it is marked {note.kind}: {note.text}"
        return None

    def readable(self) -> Iterator[Decided]:
        """What to read when nobody names a generation, best first.

        These are the usable ones of the lineage. A run without any (of weights alone) has its unmarked commits, newest first.
        """
        found = False
        for generation in self.lineage():
            decided = self.decided(generation)
            if decided is not None and self.obstacle(generation) is None:
                found = True
                yield decided
        if not found:
            yield from (decided for decided in self.commits() if self.mark(decided.generation) is None)

    def raise_unreadable(self, step: int) -> None:
        """Raise the error of a decision about `step` that could not be understood, if there is one."""
        for generation, error in self.unreadable.items():
            if generation.step == step:
                raise error

    def lineage(self) -> Iterator[GenerationId]:
        """The generations to try, in order: the head's incarnation, its base, then the parents.

        Those with an `obstacle` are among them, so that the caller can say why each was passed over.
        Raises a `DamageError` where a lost base leaves the next one unknown: an older incarnation's may have been given up.
        """
        number = max(self._based() | self.lost.keys(), default=None)
        if number is None:
            return
        following = self._base_of(number)
        own = sorted((g for g in self.generations if g.incarnation == number), reverse=True)
        yield from own
        if following is not None:
            yield from self.line(following, own)

    def line(self, generation: GenerationId, but: Iterable[GenerationId] = ()) -> Iterator[GenerationId]:
        """`generation` and, one after the other, what each continues from; it ends before one of `but`."""
        seen, following = set(but), generation
        while following is not None and following not in seen:
            seen.add(following)
            yield following
            following = self._before(following)

    def head(self) -> Decided | None:
        """The resume point as the records tell it, or None. Its data is not looked at."""
        for generation in self.lineage():
            if self.obstacle(generation) is None:
                return self.decided(generation)
        return None

    def _before(self, generation: GenerationId) -> GenerationId | None:
        """The next older candidate: the parent, or for an unreadable record the one before in its incarnation, else its base."""
        decided = self.decided(generation)
        if decided is not None and isinstance(decided.record, records.Manifest):
            return GenerationId.parse(decided.record.parent) if decided.record.parent else None
        older = [g for g in self.generations if g.incarnation == generation.incarnation and g < generation]
        if older:
            return max(older)
        return self._base_of(generation.incarnation)

    def _based(self) -> set[int]:
        return {number for number, base in self.bases.items() if base is not None}

    def newest_begun(self) -> int:
        """The newest incarnation with a readable base; 0 if there is none."""
        return max(self._based(), default=0)

    def newest_base(self) -> GenerationId | None:
        """What the newest incarnation with a readable base started from."""
        return self._base_of(self.newest_begun())

    def _base_of(self, number: int) -> GenerationId | None:
        """What an incarnation started from. Raises a `DamageError` when that is lost."""
        error = self.lost.get(number)
        if isinstance(error, UnsupportedFormat):
            raise error
        if error is not None:
            raise type(error)(
                f"{error}. Without it nobody knows where the run {self.store.url} goes on, and nothing was changed. Put the"
                " file back, or choose by hand: Checkpointer.restore(step=…) goes on from the checkpoint that you name"
            )
        base = self.bases.get(number)
        return GenerationId.parse(base.generation) if base and base.generation else None

    def _find_base(self, number: int, *, saved: bool, claimed: bool = False) -> None:
        """Look for the base of an incarnation. One that has `saved` had a base before, and a claim before that.

        `claimed`: a listing has the claim. One that it lacks may be there all the same.
        """
        if self.bases.get(number) is not None:
            return
        claimed = claimed or exists(self.store, names.claim_key(number))
        if not claimed and not saved:
            return  # a killed process left the folder
        try:
            base = read_base(self.store, self.run.run_id, number) if claimed else None
        except DamageError as error:
            base, self.lost[number] = None, error
        else:
            self.lost.pop(number, None)
            if base is None and saved:
                key = names.base_key(number) if claimed else names.claim_key(number)
                self.lost[number] = Damaged(f"{key} is missing, although incarnation {number} has saves in the ledger")
        if claimed:
            self.bases[number] = base


def read_base(store: Store, run_id: str, incarnation: int) -> records.Base | None:
    """The base of an incarnation, or None while it has none."""
    key = names.base_key(incarnation)
    data = record_bytes(store, key)
    if data is None:
        return None
    base = records.decode(data, records.Base, key=key)
    records.expect(key, run_id=(base.run_id, run_id), incarnation=(base.incarnation, incarnation))
    if base.generation and GenerationId.parse(base.generation).incarnation >= incarnation:
        raise InvalidRecord(f"{key}: its base {base.generation} is not of an older incarnation")
    return base
