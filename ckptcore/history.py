"""What happened in a run, read from its records, and the resume point that follows from it (spec: head).

The head is neither the largest step nor the newest time: it is the newest usable commit of the
newest incarnation that has a base, else that base, else what the parents lead to. So a run that
was rolled back stays rolled back, and a commit that a superseded job still squeezed in is a
stray that nobody resumes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ckptcore import ledger, names, notes, records
from ckptcore.errors import DamageError, InvalidRecord, NotFound, UnsupportedFormat
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.store import Store


def read_run(store: Store) -> records.Run:
    """The identity of the run. Raises `NotFound` when there is no run at this place."""
    data = store.get(names.RUN)
    if data is None:
        raise NotFound(f"there is no run at {store.url} (no {names.RUN}); check the URL")
    return records.decode(data, records.Run, key=names.RUN)


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
    """Claimed incarnations → their base, None while they have none."""
    notes: Mapping[GenerationId, list[records.Note]] = field(default_factory=dict)
    """Notes on generations that are not retired, oldest first."""
    unreadable: dict[GenerationId, DamageError] = field(default_factory=dict)
    """Ledger records that could not be understood."""
    _decided: dict[GenerationId, Decided] = field(default_factory=dict)

    @classmethod
    def load(cls, store: Store) -> History:
        """Read the run's identity and list its records."""
        history = cls(store, read_run(store))
        history.refresh()
        return history

    def refresh(self) -> None:
        """List incarnations, ledger and notes again."""
        for name in self.store.children(names.INCARNATIONS):
            parsed = names.parse_incarnation_key(f"{names.INCARNATIONS}{name}/claim.json")
            if parsed is None or self.bases.get(parsed[0]) is not None:
                continue
            if self.store.size(names.claim_key(parsed[0])) is not None:  # else a killed process left the folder
                self.bases[parsed[0]] = read_base(self.store, self.run.run_id, parsed[0])
        listed: dict[GenerationId, bool] = {}
        for generation, retired in ledger.entries(self.store):
            listed[generation] = retired or listed.get(generation, False)
        self.generations = listed
        # What is retired stays retired: its notes, of which there are ever more, matter to nobody.
        retired = [generation for generation, gone in listed.items() if gone]
        self.notes = notes.read_all(self.store, self.run.run_id, but=retired)

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

        Raises `UnsupportedFormat` for a record of a newer release: to pass it over would lose what it holds.
        """
        if self.generations.get(generation):
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
        """
        number = max((n for n, base in self.bases.items() if base is not None), default=None)
        if number is None:
            return
        own = sorted((g for g in self.generations if g.incarnation == number), reverse=True)
        base = self.bases[number]
        following = GenerationId.parse(base.generation) if base and base.generation else None
        seen: set[GenerationId] = set(own)
        yield from own
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
        base = self.bases.get(generation.incarnation)
        return GenerationId.parse(base.generation) if base and base.generation else None


def read_base(store: Store, run_id: str, incarnation: int) -> records.Base | None:
    """The base of an incarnation, or None while it has none."""
    key = names.base_key(incarnation)
    data = store.get(key)
    if data is None:
        return None
    base = records.decode(data, records.Base, key=key)
    records.expect(key, run_id=(base.run_id, run_id), incarnation=(base.incarnation, incarnation))
    if base.generation and GenerationId.parse(base.generation).incarnation >= incarnation:
        raise InvalidRecord(f"{key}: its base {base.generation} is not of an older incarnation")
    return base
