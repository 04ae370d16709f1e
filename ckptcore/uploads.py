"""The steps of a save that is whole on the nodes before it is durable (spec: N-3 to N-5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ckptcore import ledger, names, records
from ckptcore.clock import Clock
from ckptcore.coordinator import DECISION_TIMEOUT, Coordinator
from ckptcore.copies import Copies
from ckptcore.errors import CommitUnknown, ProtocolViolation, SaveAborted, StoreUnavailable
from ckptcore.events import Event, Listener, tell
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.nodes import Held, NodeStore
from ckptcore.proof import Refuted, show_ranks
from ckptcore.records import Receipt
from ckptcore.store import Store

UPLOAD_TIMEOUT = 3600.0
"""Seconds in which a rank's data has to be uploaded."""


@dataclass(frozen=True, kw_only=True)
class Uploading:
    """What one rank does between its data and its receipt: it is called with the receipt that will be put.

    `copies`: what is told when the data is whole on the node.
    """

    node: NodeStore
    coordinator: Coordinator
    rank: int
    timeout: float
    copies: Copies | None = None

    def __call__(self, receipt: Receipt) -> None:
        """Keep it on the node, say so, and upload. Rank 0 says that all have it, before it uploads its own part.

        Raises `SaveAborted` and `Superseded` as soon as it is decided that the save will not become a checkpoint.
        """
        held, store = self.node.keep(receipt), self.coordinator.store
        if self.copies is not None:
            self.copies.begin(held)
        try:
            announce(store, held, self.coordinator.clock)
            if self.rank == 0:
                await_staged(self.coordinator, held.generation, receipt.participants, timeout=self.timeout)
        except CommitUnknown as error:  # of the staged receipt, or of an abort: this rank's own receipt is not there
            raise StoreUnavailable(str(error)) from error
        upload(store, self.node, held, self.coordinator.on_event, check=partial(self._check, held))

    def _check(self, held: Held) -> None:
        """Whether the upload still makes sense."""
        decided = ledger.read(self.coordinator.store, self.coordinator.run_id, held.generation)
        if decided is not None and not decided.committed:
            raise _aborted(decided)
        self.coordinator.fence(held.generation)


def announce(store: Store, held: Held, clock: Clock) -> None:
    """Put the staged receipt (N-3)."""
    key = names.staged_key(held.generation, held.receipt.rank)
    found = ledger.insist(store, key, held.data, clock=clock, timeout=DECISION_TIMEOUT)
    if found != held.data:
        raise ProtocolViolation(f"{key} was written by somebody else: two processes act as rank {held.receipt.rank}; stop one")


def await_staged(coordinator: Coordinator, generation: GenerationId, participants: int, *, timeout: float) -> None:
    """Wait until the generation is whole on the nodes, and put it on record (N-4).

    Raises `SaveAborted` when a rank has failed, at once, and when ranks are missing at the deadline.
    """
    staged: set[int] = set()
    received: dict[int, bytes] = {}
    failure: StoreUnavailable | None = None
    for _ in coordinator.clock.polls(timeout):
        try:
            if _all_staged(coordinator, generation, participants, staged, received):
                return
            failure = None
        except StoreUnavailable as error:
            failure = error
    missing = tuple(rank for rank in range(participants) if rank not in staged)
    lack = f"the data of {show_ranks(missing)} of {participants} was not whole on its node within {timeout:g} s"
    if failure is not None:  # it may be
        raise StoreUnavailable(f"{lack}, and at last the store did not answer: {failure}") from failure
    decided = coordinator.abort(generation, Refuted(lack, missing))
    if not decided.committed:
        raise _aborted(decided)


def _all_staged(
    coordinator: Coordinator, generation: GenerationId, participants: int, staged: set[int], received: dict[int, bytes]
) -> bool:
    """Whether all is whole on the nodes, and on record. `staged` and `received` are added to: nothing is read twice."""
    store = coordinator.store
    staged |= {rank for name in store.children(names.staged_prefix(generation)) if (rank := _rank(generation, name)) is not None}
    coordinator.fence(generation)  # a job that is superseded stops at once
    if len(staged) < participants:
        received |= coordinator.receipts(generation, received)
        if any(map(records.says_failed, received.values())):
            raise _aborted(coordinator.conclude(generation, received))
        return False
    record = records.StagedRecord(
        run_id=coordinator.run_id,
        generation=str(generation),
        participants=participants,
        decided=coordinator.clock.utc(),
        decided_by=coordinator.incarnation,
    )
    store.put_if_absent(names.on_nodes_key(generation), records.encode(record))
    tell(coordinator.on_event, Event("on-nodes", 0, generation))
    return True


def upload(
    store: Store,
    node: NodeStore,
    held: Held,
    on_event: Listener | None,
    *,
    check: Callable[[], object] = lambda: None,
    message: str = "",
) -> None:
    """Upload one part, trying again for as long as the store does not answer (N-5).

    `check` is called now and then: what it raises ends the upload. `message`: what the event tells.
    Raises `StoreUnavailable` after `UPLOAD_TIMEOUT` seconds.
    """
    started, copied = node.clock.monotonic(), 0
    failure: StoreUnavailable | None = None
    for _ in node.clock.polls(UPLOAD_TIMEOUT, first=0.05, most=5.0):
        try:
            copied += node.upload(store, held, check)
        except StoreUnavailable as error:
            failure = error
            continue
        detail = {"bytes": copied, "seconds": node.clock.monotonic() - started}
        tell(on_event, Event("uploaded", held.receipt.rank, held.generation, message, detail))
        return
    raise StoreUnavailable(f"{held.prefix} could not be uploaded within {UPLOAD_TIMEOUT:g} s: {failure}") from failure


def uploaded(store: Store, generation: GenerationId) -> int | None:
    """How many files of all databases are in the store; None while it does not answer."""
    try:
        return sum(1 for _ in store.list(f"{names.state_prefix(generation)}ranks/"))
    except StoreUnavailable:
        return None


def _aborted(decided: Decided) -> SaveAborted:
    record = decided.record
    reason, missing = (record.reason, record.missing) if isinstance(record, records.Abort) else ("", [])
    return SaveAborted(f"save {decided.generation} was aborted: {reason}", missing)


def _rank(generation: GenerationId, name: str) -> int | None:
    return names.parse_receipt_key(f"{names.staged_prefix(generation)}{name}")
