"""The steps of a save that is whole on the nodes before it is durable (spec: N-3 to N-5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ckptcore import ledger, names, records
from ckptcore.clock import Clock
from ckptcore.coordinator import DECISION_TIMEOUT, Coordinator
from ckptcore.errors import ProtocolViolation, SaveAborted, StoreUnavailable
from ckptcore.events import Event, Listener, tell
from ckptcore.names import GenerationId
from ckptcore.nodes import Held, NodeStore
from ckptcore.proof import Refuted, show_ranks
from ckptcore.records import Receipt
from ckptcore.retry import retry
from ckptcore.store import Store

UPLOAD_TIMEOUT = 3600.0
"""Seconds in which a rank's data has to be uploaded, and the other ranks wait for it."""


@dataclass(frozen=True, kw_only=True)
class Uploading:
    """What one rank does between its data and its receipt: it is called with the receipt that will be put."""

    node: NodeStore
    coordinator: Coordinator
    rank: int
    timeout: float

    def __call__(self, receipt: Receipt) -> None:
        """Keep it on the node, say so, and upload. Rank 0 says that all have it, before it uploads its own part.

        Raises `SaveAborted` when rank 0 has decided that the nodes will never have it.
        """
        held = self.node.keep(receipt)
        announce(self.coordinator.store, held, self.coordinator.clock)
        if self.rank == 0:
            await_staged(self.coordinator, held.generation, receipt.participants, timeout=self.timeout)
        upload(self.coordinator.store, self.node, held, self.coordinator.on_event)


def announce(store: Store, held: Held, clock: Clock) -> None:
    """Put the staged receipt (N-3)."""
    key = names.staged_key(held.generation, held.receipt.rank)
    found = ledger.insist(store, key, held.data, clock=clock, timeout=DECISION_TIMEOUT)
    if found != held.data:
        raise ProtocolViolation(f"{key} was written by somebody else: two processes act as rank {held.receipt.rank}; stop one")


def await_staged(coordinator: Coordinator, generation: GenerationId, participants: int, *, timeout: float) -> None:
    """Wait until the generation is whole on the nodes, and put it on record (N-4).

    Returns without a record when a rank has failed: then the wait for receipts finds that. Raises `SaveAborted` when
    ranks are missing at the deadline.
    """
    staged: set[int] = set()
    failure: StoreUnavailable | None = None
    for _ in coordinator.clock.polls(timeout):
        try:
            if _all_staged(coordinator, generation, participants, staged):
                return
            failure = None
        except StoreUnavailable as error:
            failure = error
    missing = tuple(rank for rank in range(participants) if rank not in staged)
    lack = f"the data of {show_ranks(missing)} of {participants} was not whole on its node within {timeout:g} s"
    if failure is not None:  # it may be
        raise StoreUnavailable(f"{lack}, and at last the store did not answer: {failure}") from failure
    if not coordinator.abort(generation, Refuted(lack, missing)).committed:
        raise SaveAborted(f"save {generation} was aborted: {lack}", list(missing))


def _all_staged(coordinator: Coordinator, generation: GenerationId, participants: int, staged: set[int]) -> bool:
    """Whether nothing more has to be waited for: all is whole on the nodes, and on record, or a rank has failed."""
    store = coordinator.store
    staged |= {rank for name in store.children(names.staged_prefix(generation)) if (rank := _rank(generation, name)) is not None}
    coordinator.fence(generation)  # a job that is superseded stops at once
    if len(staged) < participants:
        return any(b'"status":"failed"' in data for data in coordinator.receipts(generation).values())
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


def upload(store: Store, node: NodeStore, held: Held, on_event: Listener | None) -> None:
    """Upload one part, trying again when the store does not answer (N-5)."""
    started = node.clock.monotonic()
    work = partial(node.upload, store, held)
    copied = retry(work, what=f"upload of {held.prefix}", timeout=UPLOAD_TIMEOUT, clock=node.clock)
    detail = {"bytes": copied, "seconds": node.clock.monotonic() - started}
    tell(on_event, Event("uploaded", held.receipt.rank, held.generation, detail=detail))


def _rank(generation: GenerationId, name: str) -> int | None:
    return names.parse_receipt_key(f"{names.staged_prefix(generation)}{name}")
