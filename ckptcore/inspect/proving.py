"""What the next start would decide about generations that nobody has decided. Reads only (spec: settling)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptcore import names, records
from ckptcore.coordinator import Coordinator
from ckptcore.digests import digest
from ckptcore.errors import CheckpointError, DamageError
from ckptcore.events import shorten
from ckptcore.inspect.findings import Finding
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.proof import Proven, Refuted
from ckptcore.store import Store
from ckptcore.storereads import exists, record_bytes
from ckptcore.verify import lost_files
from ckptcore.workers import Workers


@dataclass(frozen=True)
class Verdict:
    """What a start would decide, None where it could not be determined; and why."""

    generation: GenerationId
    decided: Decided | None
    finding: Finding
    details: tuple[Finding, ...]

    @property
    def committed(self) -> bool:
        """Whether a start would commit it."""
        return self.decided is not None and self.decided.committed


def judge(store: Store, run_id: str, generation: GenerationId) -> Verdict:
    """Prove an undecided generation as a start would do it, but write nothing.

    The start then merges its databases, too, and may still find damage in them (P-36).
    """
    coordinator = Coordinator(store, run_id, generation.incarnation)
    try:
        receipts = coordinator.receipts(generation)
        found = coordinator.examine(generation, receipts)
    except CheckpointError as error:  # whatever it is, a start stops at it
        text = f"undecided, and it cannot be determined whether it is whole: {shorten(error)}"
        return Verdict(generation, None, Finding(kind="undetermined", text=text, clause="P-13", generation=generation), ())
    if isinstance(found, Proven):
        text = "undecided, and proven whole: the next start commits it"
        decided = Decided(generation, found.manifest, digest(records.encode(found.manifest)))
        return Verdict(generation, decided, Finding(kind="roll-forward", text=text, clause="P-11", generation=generation), ())
    waits = exists(store, names.on_nodes_key(generation))
    which = "whole on the nodes; a start there commits it, any other aborts it" if waits else "the next start aborts it"
    text = f"undecided: {which}, {found.reason}"
    details = (*(_on_nodes(generation) if waits else ()), *_details(store, generation, receipts, found))
    abort = Finding(kind="abort", text=text, clause="P-12", generation=generation)
    return Verdict(generation, _abort(run_id, generation, found), abort, details)


def _on_nodes(generation: GenerationId) -> Iterator[Finding]:
    """That not every start aborts it."""
    text = "a start on the nodes that hold it, with the same local=…, uploads what is missing and commits it"
    yield Finding(kind="on-nodes", text=text, clause="N-4, N-6", generation=generation, key=names.on_nodes_key(generation))


def _abort(run_id: str, generation: GenerationId, refuted: Refuted) -> Decided:
    record = records.Abort(
        run_id=run_id,
        generation=str(generation),
        decided="0001-01-01T00:00:00Z",
        decided_by=generation.incarnation,
        reason=records.clip(refuted.reason),
        missing=list(refuted.missing),
    )
    return Decided(generation, record, digest(records.encode(record)))


def _details(store: Store, generation: GenerationId, receipts: Mapping[int, bytes], refuted: Refuted) -> Iterator[Finding]:
    """Each rank and each file that the proof lacks."""
    yield from _missing(store, generation, refuted.missing or _claimed(store, generation, receipts))
    complete = []
    for rank, data in sorted(receipts.items()):
        key = names.receipt_key(generation, rank)
        at = {"generation": generation, "rank": rank, "key": key}
        try:
            receipt = records.decode(data, records.Receipt, key=key)
        except DamageError as error:
            yield Finding(kind="refuted", text=f"the receipt of rank {rank} is unusable: {error}", clause="P-12, P-35.1", **at)
            continue
        if receipt.status == "failed":
            text = f"rank {rank} could not write its part: {receipt.reason}"
            yield Finding(kind="failed-receipt", text=text, clause="P-12, P-32", **at)
        else:
            complete.append(receipt)
    yield from _lost(store, generation, complete)


def _missing(store: Store, generation: GenerationId, ranks: Sequence[int]) -> Iterator[Finding]:
    folders = store.children(f"{names.state_prefix(generation)}ranks/") if ranks else []
    began = {int(name[:5]) for name in folders if name[:5].isdecimal() and name[5:6] == "-"}
    for rank in ranks:
        what = "it began to write, and only a receipt vouches for data" if rank in began else "nothing of it is there"
        yield Finding(
            kind="missing-receipt",
            text=f"no receipt from rank {rank}: {what}",
            clause="P-12, P-35.1",
            generation=generation,
            rank=rank,
            key=names.receipt_key(generation, rank),
        )


def _claimed(store: Store, generation: GenerationId, receipts: Mapping[int, bytes]) -> Sequence[int]:
    """Where nobody has delivered, the ranks that the claim of the incarnation says there are."""
    key = names.claim_key(generation.incarnation)
    data = None if receipts else record_bytes(store, key)
    try:
        return range(records.decode(data, records.Claim, key=key).topology.participants) if data is not None else ()
    except DamageError:
        return ()


def _lost(store: Store, generation: GenerationId, receipts: Sequence[records.Receipt]) -> Iterator[Finding]:
    with Workers(store.limits.requests, "proof") as pool:
        for problem in lost_files(store, generation, receipts, pool):
            at = {"generation": generation, "rank": problem.rank, "key": problem.key}
            yield Finding(kind="damaged", text=problem.text, clause="P-12, P-35.8", **at)
