"""The background half of one save: write, sign off, and learn what was decided (spec: save, commit).

No framework call and no collective happens here, so a dead rank can delay a decision but never
hang training. Every wait has a deadline whose message names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ckptcore import ledger, names, notes, writer
from ckptcore.clock import Clock
from ckptcore.coordinator import DECISION_TIMEOUT, LOOK_AROUND, Coordinator
from ckptcore.copies import Copies
from ckptcore.errors import (
    CheckpointError,
    CommitUnknown,
    SaveAborted,
    SaveFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Superseded,
)
from ckptcore.events import Event, Kind, Listener, log, tell
from ckptcore.history import History
from ckptcore.incarnations import check_current, undecided
from ckptcore.keep import Keep
from ckptcore.ledger import Decided
from ckptcore.nodes import NodeStore
from ckptcore.proof import Refuted, show_ranks
from ckptcore.records import Abort
from ckptcore.retention import Collector
from ckptcore.store import Store
from ckptcore.uploads import Uploading, uploaded
from ckptcore.writer import Identity, Shard

GRACE = DECISION_TIMEOUT + 60.0
"""Seconds that the other ranks allow the coordinator for proof and commit, after its own deadline for receipts."""

ASKED_A_SECOND = 500.0
"""How often all ranks together ask for the decision at most: S3 answers 5,500 reads a second below one prefix."""
SHORTEST_PAUSE = 0.1
"""Seconds after which a rank asks again at the earliest, where each question is a request: a commit takes longer than that."""
LONGEST_PAUSE = 10.0
"""The most seconds between two questions of one rank, unless there are so many ranks that this would be too often."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """One save on one rank, ready to run in the background.

    `tidy`: look for what earlier saves or incarnations left behind. It costs a listing of all generations, so it is
    left out while nothing has gone wrong. `node`: where this rank's data is kept first; `copies`: on other nodes too. `known`:
    the run's history as this job has read it, so that a collection reads only what is new.
    """

    store: Store
    shard: Shard
    timeout: float
    keep: Keep | None
    metrics: Mapping[str, float] | None
    tidy: bool = True
    node: NodeStore | None = None
    copies: Copies | None = None
    known: History | None = None
    clock: Clock = field(default_factory=Clock)
    on_event: Listener | None = None

    def run(self) -> Decided:
        """Write and wait for the decision. Returns a commit; everything else is raised."""
        if self.tidy:
            self._tidy_node()  # what earlier saves have left may be what there is no room for
        try:
            self.deliver()
            decided = self.decide() if self.shard.identity.rank == 0 else _committed(self._await())
        except SaveAborted:
            self._end_copies(decided=True)
            if self.node is not None:
                self._on_node(partial(self.node.discard, self.shard.identity.generation, self.shard.identity.rank))
            raise
        except BaseException:
            self._end_copies(decided=False)
            raise
        self._end_copies(decided=True)
        self._tidy_node()
        return decided

    def _end_copies(self, *, decided: bool) -> None:
        if self.copies is not None:
            self.copies.end(self.shard.identity.generation, decided=decided)

    def _tidy_node(self) -> None:
        if self.node is not None:
            identity = self.shard.identity
            ranks = [identity.rank, *(self.copies.owners if self.copies is not None else ())]
            self._on_node(partial(self.node.tidy, self.store, identity.generation.incarnation, ranks))

    def _on_node(self, work: Callable[[], object]) -> None:
        """Tidy up on the node: a save stands or falls whatever happens there."""
        try:
            work()
        except CheckpointError as error:
            log.warning("data that nobody needs stays on the node: %s", error)

    def deliver(self) -> None:
        """Write this rank's part and sign it off. Raises `SaveFailed` once the others have been told that it will not come."""
        identity = self.shard.identity
        try:
            check_current(self.store, identity.generation.incarnation)
            self._write()
        except SaveAborted:
            raise
        except Superseded as error:
            self._tell("superseded", str(error))
            raise
        except CommitUnknown as error:
            log.warning("%s; waiting for the decision all the same", error)
        except Exception as error:
            give_up(self._coordinator(), identity, error)
            self._tell("failed", str(error))
            raise SaveFailed(f"rank {identity.rank} could not write its part of {identity.generation}: {error}") from error

    def _write(self) -> None:
        told = {"clock": self.clock, "on_event": self.on_event}
        if self.node is None:
            writer.write(self.store, self.shard, **told)
            return
        rank = self.shard.identity.rank
        told_too = {"timeout": self.timeout, "copies": self.copies}
        uploading = Uploading(node=self.node, coordinator=self._coordinator(), rank=rank, **told_too)
        writer.write(self.store, self.shard, place=self.node.store, before_receipt=uploading, **told)

    def decide(self) -> Decided:
        """The coordinator's part: commit or abort, then metrics and retention. Returns a commit; everything else is raised."""
        decided = _committed(self._decide())
        self._afterwards(decided)
        return decided

    def _decide(self) -> Decided:
        try:
            return self._commit(self._coordinator())
        except Superseded as error:
            self._tell("superseded", str(error))
            raise
        except StoreError as error:
            self._tell("undecided", str(error))
            raise CommitUnknown(
                f"{self.shard.identity.generation} is not decided: {error}."
                " The next save or the next start of the job settles it; it may still become a checkpoint."
            ) from error

    def _commit(self, coordinator: Coordinator) -> Decided:
        identity = self.shard.identity
        try:
            if self.tidy:
                self._conclude_older(coordinator)
            return coordinator.commit(identity.generation, identity.participants, timeout=self.timeout, progress=self._progress)
        except StoreFull as error:
            # An abort is small, and may find room where the index did not: then nobody waits for a decision.
            return coordinator.abort(identity.generation, Refuted(f"there is no room left to commit it: {error}"))

    def _conclude_older(self, coordinator: Coordinator) -> None:
        """Decide what earlier saves of this job left undecided when the store was silent (spec: P-55)."""
        own = self.shard.identity.generation
        try:
            for generation in undecided(self.store):
                if generation.incarnation == own.incarnation and generation < own:
                    coordinator.conclude(generation)
        except Superseded:
            raise
        except CheckpointError as error:
            log.warning("what was undecided before %s stays so for now: %s", own, error)

    def _await(self) -> Decided:
        """Wait for the ledger record that rank 0, or whoever takes over, puts."""
        identity = self.shard.identity
        failure: StoreUnavailable | None = None
        patience = self.timeout + GRACE
        shortest = max(identity.participants / ASKED_A_SECOND, 0.005 if self.store.driver == "file" else SHORTEST_PAUSE)
        polls = self.clock.polls_anew(patience, self._progress, first=shortest, most=max(LONGEST_PAUSE, shortest))
        for turn, _ in enumerate(polls):
            try:
                decided = ledger.read(self.store, identity.run_id, identity.generation)
                if decided is not None:
                    self.store.sync(names.LEDGER)  # it is visible; whoever put it may die before it is durable
                    self._tell(*_outcome(decided))
                    return decided
                if turn % LOOK_AROUND == 1:
                    check_current(self.store, identity.generation.incarnation)
                failure = None
            except StoreUnavailable as error:
                failure = error
            except Superseded as error:
                self._tell("superseded", str(error))
                raise
        lack = f"the store does not answer ({failure})" if failure else self._lack()
        self._tell("undecided", lack)
        raise CommitUnknown(
            f"no decision about {identity.generation} after {patience:g} s: {lack}."
            " The next start of the job settles it; it may still become a checkpoint."
        ) from failure

    def _progress(self) -> int | None:
        """How many files are in the store: while it grows, somebody uploads, and nobody gives up. None without uploads."""
        return None if self.node is None else uploaded(self.store, self.shard.identity.generation)

    def _lack(self) -> str:
        identity = self.shard.identity
        try:
            delivered = self._coordinator().receipts(identity.generation)
        except StoreError as error:
            return f"the store does not answer ({error})"
        late = [rank for rank in range(identity.participants) if rank not in delivered]
        if late:
            return f"no receipt from {show_ranks(late)}"
        return "all receipts are there, rank 0 (the coordinator) has not decided"

    def _afterwards(self, decided: Decided) -> None:
        """Metrics and retention. The commit stands whatever happens here, so trouble is told, not raised."""
        try:
            if self.metrics:
                notes.annotate(self.store, decided.record.run_id, decided.generation, clock=self.clock, metrics=self.metrics)
            # Without a policy nothing is retired, but what aborted saves left is garbage all the same.
            if self.tidy or self.keep is not None:
                told = {"clock": self.clock, "on_event": self.on_event, "known": self.known}
                Collector(self.store, decided.generation.incarnation, **told).collect(self.keep)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the save is committed
            self._tell("collection-failed", f"{type(error).__name__}: {error}")

    def _coordinator(self) -> Coordinator:
        identity = self.shard.identity
        told = {"phases": self.shard.phases}  # the receipt has been written by then: the next save's says it
        return Coordinator(self.store, identity.run_id, identity.generation.incarnation, self.clock, self.on_event, **told)

    def _tell(self, kind, message: str = "") -> None:
        tell(self.on_event, Event(kind, self.shard.identity.rank, self.shard.identity.generation, message))


def _outcome(decided: Decided) -> tuple[Kind, str]:
    """The event of a decision and its message: why, if it is an abort."""
    return ("aborted", decided.record.reason) if isinstance(decided.record, Abort) else ("committed", "")


def _committed(decided: Decided) -> Decided:
    if isinstance(decided.record, Abort):
        raise SaveAborted(f"save {decided.generation} was aborted: {decided.record.reason}", decided.record.missing)
    return decided


def give_up(coordinator: Coordinator, identity: Identity, error: Exception) -> None:
    """Say in a failed receipt that this rank's part will not come, so that nobody waits. Rank 0 decides at once what that means.

    `error` matters more than trouble with that, which is noted on it.
    """
    writer.give_up(coordinator.store, identity, error)
    if identity.rank == 0:
        try:
            coordinator.abort(identity.generation, Refuted(f"rank 0 could not write its part: {error}"))
        except CheckpointError as also:
            error.add_note(f"(the abort could not be recorded either, the next start does: {also})")
