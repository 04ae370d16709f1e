"""The coordinator: wait for receipts, prove completeness, decide (spec: commit).

Rank 0 of a job is its coordinator, and any process can take over: everything here reads and
writes the store alone, every step is idempotent, and two coordinators derive the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckptcore import arrays, ledger, names, orbax_view, phases, records
from ckptcore.clock import Clock
from ckptcore.digests import digest
from ckptcore.errors import Damaged, DamageError, StoreUnavailable, Superseded
from ckptcore.events import Event, Listener, tell
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.proof import Evidence, Proven, Refuted, prove, show_ranks
from ckptcore.records import MAX_RECORD_BYTES
from ckptcore.store import Store
from ckptcore.storereads import MAX_UNCERTIFIED_BYTES, bounded_bytes, exists
from ckptcore.workers import Workers

DECISION_TIMEOUT = 120.0
LOOK_AROUND = 4
"""Of so many polls of whoever waits one looks for a newer claim as well, from the second on: each look is a request."""
T = TypeVar("T")


@dataclass(frozen=True)
class Coordinator:
    """Decides generations of one run on behalf of incarnation `incarnation`.

    `phases` is told how long the newest decision took: microseconds of `wait`, for receipts, and of `commit`.
    """

    store: Store
    run_id: str
    incarnation: int
    clock: Clock = field(default_factory=Clock)
    on_event: Listener | None = None
    phases: dict[str, int] = field(default_factory=dict)

    def commit(
        self, generation: GenerationId, participants: int, *, timeout: float, progress: Callable[[], object] = lambda: None
    ) -> Decided:
        """Wait up to `timeout` seconds for the receipts of all participants, then decide; anew while `progress` changes.

        Returns the ledger's decision, commit or abort. Raises `Superseded`, or a `StoreError` or `CommitUnknown`
        when the truth could not be found out; then nothing is decided, or nobody knows what is: conclude it later.
        """
        started = self.clock.monotonic()
        receipts = self._wait(generation, participants, timeout, progress)
        if isinstance(receipts, Refuted):
            return self.abort(generation, receipts)
        self._tell("receipts-complete", generation, detail={"seconds": self._timed("wait", started)})
        return self.conclude(generation, receipts)

    def conclude(self, generation: GenerationId, receipts: Mapping[int, bytes] | None = None) -> Decided:
        """Decide from what the store holds now: commit what is proven, abort what is refuted."""
        found = self.finish(generation, receipts)
        return self.abort(generation, found) if isinstance(found, Refuted) else found

    def finish(self, generation: GenerationId, receipts: Mapping[int, bytes] | None = None) -> Decided | Refuted:
        """Commit what is proven, as `conclude` does. What is refuted stays undecided, and the result says why it is."""
        started = self.clock.monotonic()
        decided = ledger.read(self.store, self.run_id, generation)
        if decided is not None:
            self.store.sync(names.LEDGER)  # it is visible; whoever put it may die before it is durable
            self._tell_decided(decided, {})
            return decided
        found = self.examine(generation, receipts)
        if isinstance(found, Refuted):
            return found
        try:
            problems = self.publish_derived(found)
        except Damaged as error:
            problems = [str(error)]
        if problems:
            return Refuted("; ".join(problems[:8]))
        self._tell("proven", generation)
        self.fence(generation)
        decided = ledger.decide(self.store, found.manifest, clock=self.clock, timeout=DECISION_TIMEOUT)
        detail = {"seconds": self._timed("commit", started)} | phases.told(found.manifest, found.receipts)
        self._tell_decided(decided, detail)
        return decided

    def _tell_decided(self, decided: Decided, detail: dict[str, Any]) -> None:
        record = decided.record
        if isinstance(record, records.Abort):
            self._tell("aborted", decided.generation, record.reason)
        else:
            self._tell("committed", decided.generation, detail=detail or phases.told(record, []))

    def examine(self, generation: GenerationId, receipts: Mapping[int, bytes] | None = None) -> Proven | Refuted:
        """Prove `generation` from its records and look at every file that they name. Writes nothing."""
        if receipts is None:
            receipts = self.receipts(generation)
        found = prove(self.run_id, generation, self._evidence(generation, receipts))
        if isinstance(found, Proven):
            problems = self._file_problems(found)
            if problems:
                return Refuted("; ".join(problems[:8]))
            size = len(records.encode(found.manifest))
            if size > MAX_UNCERTIFIED_BYTES:
                return Refuted(f"its manifest would have {size} bytes, more than {MAX_UNCERTIFIED_BYTES}: give less metadata")
        return found

    def abort(self, generation: GenerationId, refuted: Refuted) -> Decided:
        """Put the abort record, unless something was decided already; return what was."""
        self.fence(generation)
        record = records.Abort(
            run_id=self.run_id,
            generation=str(generation),
            decided=self.clock.utc(),
            decided_by=self.incarnation,
            reason=records.clip(refuted.reason),
            missing=list(refuted.missing),
        )
        decided = ledger.decide(self.store, record, clock=self.clock, timeout=DECISION_TIMEOUT)
        self._tell("committed" if decided.committed else "aborted", generation, refuted.reason)
        return decided

    def fence(self, generation: GenerationId) -> None:
        """Raise `Superseded` if a newer incarnation has been claimed: it may be deciding this generation."""
        if exists(self.store, names.claim_key(self.incarnation + 1)):
            raise Superseded(
                f"incarnation {self.incarnation + 1} has been claimed, so incarnation {self.incarnation} may not decide"
                f" {generation}: another job runs on this run directory. Stop this one; what it had delivered"
                " completely is committed by the newer."
            )

    def receipts(self, generation: GenerationId, known: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
        """The receipts that are there now, by rank. Those that are `known` are not read again."""
        found = dict(known or {})
        self._receive(generation, found)
        return found

    def publish_derived(self, proven: Proven) -> list[str]:
        """Write index, roster, merged root and Orbax metadata; return what is wrong with the merged root."""
        generation = proven.generation
        for key, data in proven.objects.items():
            if self.store.put_if_absent(key, data) != data:
                return [f"{key} is content-addressed but holds other bytes"]
        state = names.state_prefix(generation)
        databases = [
            names.database_prefix(generation, receipt.rank, receipt.database)
            for receipt in proven.receipts
            if receipt.database is not None
        ]
        arrays.merge(self.store, state, databases)
        stated = {
            name: value
            for receipt in proven.receipts
            for part in receipt.components.values()
            for name, value in part.values.items()
        }
        orbax_view.publish(self.store, state, proven.layouts, stated)
        return arrays.check_merged(self.store, state, proven.arrays)

    def _wait(
        self, generation: GenerationId, participants: int, timeout: float, progress: Callable[[], object]
    ) -> dict[int, bytes] | Refuted:
        """All receipts, or one that failed among them. A store that is silent for a while is waited out."""
        found: dict[int, bytes] = {}
        failure: StoreUnavailable | None = None
        for turn, _ in enumerate(self.clock.polls_anew(timeout, progress)):
            try:
                self._receive(generation, found)
                if any(map(records.says_failed, found.values())) or len(found) >= participants:
                    return found
                if turn % LOOK_AROUND == 1:
                    self.fence(generation)  # a job that is superseded stops soon, not at its deadline
                failure = None
            except StoreUnavailable as error:
                failure = error
        missing = tuple(rank for rank in range(participants) if rank not in found)
        lack = f"no receipt from {show_ranks(missing)} of {participants} within {timeout:g} s"
        if failure is not None:  # they may be there
            raise StoreUnavailable(f"{lack}, and at last the store did not answer: {failure}") from failure
        return Refuted(lack, missing)

    def _receive(self, generation: GenerationId, found: dict[int, bytes]) -> None:
        """Add the receipts that are there by now. One listing tells which; those that are new are read, several at a time."""
        prefix = names.receipts_prefix(generation)
        listed = (names.parse_receipt_key(prefix + name) for name in self.store.children(prefix))
        new = [rank for rank in listed if rank is not None and rank not in found]
        self._read({rank: (names.receipt_key(generation, rank), MAX_RECORD_BYTES) for rank in new}, found)

    def _read(self, wanted: Mapping[T, tuple[str, int]], found: dict[T, bytes]) -> dict[T, bytes]:
        """Add the records at `(key, size)` that are there, by whatever they are wanted for; also when one of them raises."""

        def read(name: T) -> None:
            data = bounded_bytes(self.store, *wanted[name])
            if data is not None:
                found[name] = data

        with Workers(min(self.store.limits.requests, len(wanted)), "proof") as pool:
            pool.map(read, wanted)
        return found

    def _evidence(self, generation: GenerationId, receipts: Mapping[int, bytes]) -> Evidence:
        decoded: dict[bytes, records.Receipt] = {}
        layouts: dict[str, tuple[str, int]] = {}
        values: dict[int, tuple[str, int]] = {}
        references: dict[str, Decided] = {}
        for rank, data in receipts.items():
            try:
                receipt = decoded[data] = records.decode(data, records.Receipt, key=names.receipt_key(generation, rank))
            except DamageError:
                continue  # `prove` meets the same record and says what is wrong with it
            if receipt.layout is not None:
                layouts.setdefault(
                    receipt.layout.digest, (names.layout_key(generation, receipt.layout.digest), receipt.layout.size)
                )
            if receipt.values is not None:
                values[rank] = (names.values_key(generation, rank), receipt.values.size)
            for component, source in (receipt.lead.references if receipt.lead else {}).items():
                decided = ledger.read(self.store, self.run_id, GenerationId.parse(source))
                if decided is not None and not ledger.is_retired(self.store, decided.generation):
                    references[component] = decided
        return Evidence(receipts, self._read(layouts, {}), self._read(values, {}), references, decoded)

    def _file_problems(self, proven: Proven) -> list[str]:
        """Look at every data file the receipts list: it is there, with its size, and small ones with their digest."""
        wanted: list[tuple[str, int, str | None]] = []
        for receipt in proven.receipts:
            if receipt.database is not None:
                prefix = names.database_prefix(proven.generation, receipt.rank, receipt.database)
                wanted.extend((prefix + file.path, file.size, file.digest) for file in receipt.files)
        with Workers(min(self.store.limits.requests, len(wanted)), "proof") as pool:
            return [problem for problem in pool.map(self._file_problem, wanted) if problem]

    def _file_problem(self, wanted: tuple[str, int, str | None]) -> str | None:
        key, size, expected = wanted
        if expected is not None and digest(bounded_bytes(self.store, key, size) or b"") == expected:
            return None
        found = self.store.size(key, guess=size)
        if found is None:
            return f"{key} is absent"
        if found != size:
            return f"{key} has {found} bytes, its receipt says {size}"
        return None if expected is None else f"{key} differs from its digest"

    def _timed(self, phase: str, started: float) -> float:
        """Note how long a phase took; returns it in seconds."""
        seconds = self.clock.monotonic() - started
        self.phases[phase] = int(seconds * 1e6)
        return seconds

    def _tell(self, kind, generation: GenerationId, message: str = "", detail: dict[str, Any] | None = None) -> None:
        tell(self.on_event, Event(kind, 0, generation, message, detail or {}))
