"""Copies of commits in another store: data first, proven there, the ledger record last (spec: retention, "copying").

The source is read once, and checked against its records as it passes. What arrived is proven at the target: every chunk
and value is read there and compared with its digest, before the ledger record makes a checkpoint of it. Only what the
records name is copied. The merged view, which is derived, is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ckptcore import arrays, ledger, names, orbax_view, records, verify
from ckptcore.clock import Clock
from ckptcore.errors import CallError, Damaged, DamageError, InvalidRecord, NotFound, ProtocolViolation, Retired
from ckptcore.history import History
from ckptcore.ledger import Decided, manifest_of
from ckptcore.names import GenerationId
from ckptcore.operate.transfer import Item, Pace, Transfer
from ckptcore.reader import Checkpoint
from ckptcore.store import Store, overlap
from ckptcore.storereads import bounded_bytes, record_bytes

_OF_THE_BYTES = ("verified-", "damaged-")
"""Notes about the bytes of the original: those of a copy are its own, and were verified when it was made."""


@dataclass(frozen=True)
class Plan:
    """What a copy of one generation consists of. `databases`: the prefixes that its merged view is made of."""

    decided: Decided
    items: tuple[Item, ...]
    databases: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The sizes of all objects."""
        return sum(item.size for item in self.items)


@dataclass(frozen=True)
class Copied:
    """One generation that is in the target now: its bytes, and how many of them were sent now."""

    generation: GenerationId
    bytes: int
    sent: int


@dataclass
class Copier:
    """Copies commits of the run in `source` into `target`, which holds nothing but copies of this run.

    `rate`: the most bytes a second that are read from the source. `open` comes first, and before every round of `pending`.
    """

    source: Store
    target: Store
    clock: Clock = field(default_factory=Clock)
    rate: float | None = None

    def __post_init__(self) -> None:
        self._pace = Pace(self.clock, self.rate)
        self._history = History.load(self.source)
        self._there: dict[GenerationId, bool] = {}
        self._incarnations: set[int] = set()

    @property
    def unreadable(self) -> dict[GenerationId, DamageError]:
        """Decisions of the run that cannot be read, so that nobody knows what they would be a copy of."""
        return {generation: error for generation, error in self._history.unreadable.items() if generation not in self._there}

    def open(self) -> None:
        """Look at both sides anew, and put the run's identity.

        Raises `CallError` if the target is another run, or one that has gone on by itself.
        """
        self._history.refresh()
        if overlap(self.source.url, self.target.url):
            raise CallError(f"{self.target.url} and the run {self.source.url} lie in each other: name another place for the copy")
        self._identify()
        self._there = {}
        for generation, retired in ledger.entries(self.target):
            self._there[generation] = retired or self._there.get(generation, False)

    def pending(self, chosen: GenerationId | None = None) -> list[GenerationId]:
        """What has to be copied, in this order: `chosen` and what it refers to, or every commit that is not there yet."""
        if chosen is not None:
            return sorted(self._with_sources([ledger.commit(self.source, self._history.run.run_id, chosen)]))
        wanted = self._with_sources(self._history.commits())
        return sorted(generation for generation in wanted if generation not in self._there)

    def plan(self, generation: GenerationId) -> Plan:
        """The objects of one generation. Raises a `DamageError` if they cannot be known."""
        decided = ledger.commit(self.source, self._history.run.run_id, generation)
        checkpoint = Checkpoint(self.source, decided)
        try:
            receipts = [verify.whole_receipt(self.source, delivered) for delivered in checkpoint.roster.ranks]
            items = tuple(contents(checkpoint.manifest, checkpoint.roster, receipts))
        except DamageError as error:
            raise self._or_retired(generation, error) from error
        prefixes = [names.database_prefix(generation, each.rank, each.database) for each in receipts if each.database]
        return Plan(decided, items, tuple(prefixes))

    def copy(self, plan: Plan, progress: Callable[[int], object] = lambda _: None) -> Copied:
        """Copy one generation. What it refers to has to be there. `progress` is told of the bytes of `plan`.

        Raises `Retired` where retention was faster, a `DamageError` if either side is damaged, `ProtocolViolation` if the
        target has another decision. Killed at any moment, it leaves no checkpoint, or a whole one; called again, it goes on.
        """
        generation = plan.decided.generation
        if self._there.get(generation) and not ledger.is_retired(self.source, generation):
            raise Retired(f"{generation} was retired in the copy {self.target.url}, and does not come back")
        try:
            sent = Transfer(self.source, self.target, self._pace, progress).send(plan.items)
        except DamageError as error:
            raise self._or_retired(generation, error) from error
        for key in self.source.list(names.notes_prefix(generation)):
            self._put_note(key)
        if sent or generation not in self._there:
            self._finish(plan)
        return Copied(generation, plan.bytes, sent)

    def follow_up(self) -> None:
        """What belongs to no commit, or came later: the bases of all incarnations, and notes on what is there."""
        for number, base in self._history.bases.items():
            if base is not None:
                self._put_incarnation(number)
        known = set(self.target.list(names.NOTES))
        for key in self.source.list(names.NOTES):
            parsed = names.parse_ledger_key(f"{names.LEDGER}{key.split('/')[1]}.json")
            if key not in known and parsed is not None and parsed[0] in self._there:
                self._put_note(key)

    def _finish(self, plan: Plan) -> None:
        """Derive, prove, and put the records that make a checkpoint of it, the decision last."""
        generation = plan.decided.generation
        self._put_incarnation(generation.incarnation)
        problems = self._problems(plan)
        if problems:
            raise Damaged(
                f"the copy of {generation} in {self.target.url} is not whole, and was not made a checkpoint: {problems}."
                f" `ckpt verify --deep` tells whether the original is; if it is, delete {names.generation_prefix(generation)}"
                " in the copy and copy again"
            )
        self._decide(plan.decided)
        self._there.setdefault(generation, False)

    def _problems(self, plan: Plan) -> str:
        """Make the merged view, and read at the target whatever lies in this generation itself; what is wrong, or nothing.

        What it refers to was read when that was copied. Of a generation that was retired nothing more is known to be there.
        """
        state = names.state_prefix(plan.decided.generation)
        try:
            arrays.merge(self.target, state, plan.databases)
        except Damaged as error:
            return str(error)
        for path in (orbax_view.METADATA, orbax_view.ARRAY_METADATA):
            self._put(state + path, bounded_bytes(self.source, state + path))
        if self._retired_source(plan.decided.generation):
            return ""
        checkpoint = Checkpoint(self.target, plan.decided)
        own = [name for name, entry in checkpoint.manifest.components.items() if entry.source is None]
        found = verify.verify(checkpoint, deep=True, components=own)
        if found.ok:
            verify.record(checkpoint, found, clock=self.clock)
        return "; ".join(found.problems[:3])

    def _retired_source(self, generation: GenerationId) -> bool:
        """Whether it was retired, and is kept because another commit refers to it. Raises `Retired` if nothing does."""
        if not ledger.is_retired(self.source, generation):
            return False
        if generation in _sources(self._history.commits()):
            return True
        raise Retired(f"{generation} of {self.source.url} was retired, and is not copied")

    def _decide(self, decided: Decided) -> None:
        """After the last look for a retired record, which a copy takes over: what others refer to is no checkpoint itself."""
        generation = decided.generation
        if self._retired_source(generation):
            self._put(names.retired_key(generation), record_bytes(self.source, names.retired_key(generation)))
        key = names.ledger_key(generation)
        data = record_bytes(self.source, key)
        if data is None or ledger.decode(generation, data, self._history.run.run_id) != decided:
            raise Damaged(f"{key} of {self.source.url} has changed while it was copied")
        if self.target.put_if_absent(key, data) != data:
            raise ProtocolViolation(
                f"{key} of {self.target.url} is another decision than that of {self.source.url}. Nothing was overwritten:"
                " somebody has trained in the copy. Copy to a new URL"
            )

    def _identify(self) -> None:
        data, found = record_bytes(self.source, names.RUN), record_bytes(self.target, names.RUN)
        if data is None:
            raise NotFound(f"there is no run at {self.source.url} any more")
        used = (names.INCARNATIONS, names.LEDGER, names.GENERATIONS)
        if found is None and any(self.target.children(prefix) for prefix in used):
            raise CallError(f"{self.target.url} holds something without a {names.RUN}: copy to an empty place")
        if (found or self.target.put_if_absent(names.RUN, data)) != data:
            raise CallError(f"{self.target.url} holds another run than {self.source.url}: copy to a new URL")
        claimed = {name for name in self.target.children(names.INCARNATIONS) if not self._is_claimed_here(name)}
        if claimed:
            raise CallError(
                f"{self.target.url} has incarnation {min(claimed)}, which {self.source.url} has not: a job was started there."
                " Copy to a new URL, and fork from a copy to train on"
            )

    def _is_claimed_here(self, name: str) -> bool:
        parsed = names.parse_incarnation_key(f"{names.INCARNATIONS}{name}/claim.json")
        return parsed is None or parsed[0] in self._history.bases

    def _put_incarnation(self, number: int) -> None:
        """The claim and the base: without them nobody finds the head."""
        if number in self._incarnations:
            return
        for key in (names.claim_key(number), names.base_key(number)):
            data = record_bytes(self.source, key)
            if data is not None and self.target.put_if_absent(key, data) != data:
                raise CallError(f"{key} of {self.target.url} is another one than in {self.source.url}: copy to a new URL")
        self._incarnations.add(number)

    def _put_note(self, key: str) -> None:
        if not key.rpartition("/")[2].startswith(_OF_THE_BYTES):
            self._put(key, record_bytes(self.source, key))

    def _put(self, key: str, data: bytes | None) -> None:
        """Copy what nothing certifies; what the copy has of its own stays."""
        if data is not None:
            self.target.put_if_absent(key, data)

    def _with_sources(self, wanted: Iterable[Decided]) -> set[GenerationId]:
        """These, and all that holds a component of them."""
        found, left = set[GenerationId](), list(wanted)
        while left:
            decided = left.pop()
            if decided.generation in found:
                continue
            found.add(decided.generation)
            if not ledger.is_retired(self.source, decided.generation):
                left.extend(source for each in _sources([decided]) if (source := self._history.decided(each)) is not None)
        return found

    def _or_retired(self, generation: GenerationId, error: DamageError) -> DamageError:
        if ledger.is_retired(self.source, generation):
            return Retired(f"{generation} of {self.source.url} was retired while it was copied ({error})")
        return error


def contents(manifest: records.Manifest, roster: records.Roster, receipts: Sequence[records.Receipt]) -> Iterator[Item]:
    """Every object that the records of a generation name: arrays, values, layouts, receipts, indexes, the roster. Pure.

    Raises `InvalidRecord` for a key outside of the generation.
    """
    generation = GenerationId.parse(manifest.generation)
    described = [delivered.values for delivered in roster.ranks if delivered.values]
    described += [*roster.layouts, *(delivered.receipt for delivered in roster.ranks)]
    described += [entry.index for entry in manifest.components.values() if entry.source is None]
    files = [(names.database_prefix(generation, each.rank, each.database), each.files) for each in receipts if each.database]
    items = [Item(prefix + file.path, file.size, file.digest) for prefix, listed in files for file in listed]
    items += [Item(each.key, each.size, each.digest) for each in (*described, manifest.roster)]
    for item in items:
        if not names.check_key(item.key).startswith(names.generation_prefix(generation)):
            raise InvalidRecord(f"{item.key}: lies outside of generation {generation}")
        yield item


def _sources(found: Iterable[Decided]) -> set[GenerationId]:
    """The generations that hold a component of one of these commits."""
    entries = (entry for decided in found for entry in manifest_of(decided).components.values())
    return {GenerationId.parse(entry.source) for entry in entries if entry.source is not None}
