"""What the next start makes of data that is whole on its nodes and not durable yet: it uploads it first (spec: N-6, N-7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ckptcore import arrays, ledger, names, records
from ckptcore.channel import Channel
from ckptcore.clock import Clock
from ckptcore.coordinator import DECISION_TIMEOUT
from ckptcore.digests import check, digest
from ckptcore.errors import Damaged, DamageError, StoreError
from ckptcore.events import Listener, log
from ckptcore.history import History
from ckptcore.incarnations import undecided
from ckptcore.layout import grid_of
from ckptcore.names import GenerationId
from ckptcore.nodes import Held, Local, NodeStore
from ckptcore.session import together_telling
from ckptcore.store import Store
from ckptcore.storereads import bounded_bytes, exists, record_bytes
from ckptcore.uploads import UPLOAD_TIMEOUT, upload

_Part = tuple[GenerationId, int]
"""A generation, and the rank that wrote."""


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """Before a start claims: what a dead job had whole on these nodes is uploaded, so that the settle rolls it forward (N-6)."""

    store: Store
    local: Local
    channel: Channel
    clock: Clock
    on_event: Listener | None = None

    def run(self) -> None:
        """Called on every rank. Raises a `StoreError` when the upload fails for the store's sake."""
        held, told = together_telling(self.channel, self._held, _tell, timeout=UPLOAD_TIMEOUT, what="what is whole on the nodes")
        while True:
            plan = self._plan(told)
            mine = [each for each in held if plan.get((each.generation, each.receipt.rank)) == self.channel.rank]
            what = "whether what was whole on the nodes is uploaded"
            _, damaged = together_telling(self.channel, partial(self._finish, mine), _tell, timeout=UPLOAD_TIMEOUT, what=what)
            if not any(map(json.loads, damaged)):
                return
            # Another process may have the same whole: a copy, or what it is a copy of.
            told = [_without(message, lost) for message, lost in zip(told, damaged, strict=True)]

    def _held(self) -> list[Held]:
        data = record_bytes(self.store, names.RUN)
        if data is None:
            return []
        run_id = records.decode(data, records.Run, key=names.RUN).run_id
        try:
            return list(NodeStore.of(self.local, run_id, self.clock).held())
        except StoreError as error:
            log.warning("what this node holds of the run cannot be read, and is left alone: %s", error)
            return []

    def _plan(self, told: Sequence[bytes]) -> Mapping[_Part, int]:
        """Which process uploads what: rank 0 looks, and all go by that."""
        work = (lambda: plan(self.store, told)) if self.channel.rank == 0 else dict[_Part, int]
        what = "which data on the nodes is uploaded"
        _, answers = together_telling(self.channel, work, _tell_plan, timeout=UPLOAD_TIMEOUT, what=what)
        return {(GenerationId.parse(generation), rank): process for generation, rank, process in json.loads(answers[0])}

    def _finish(self, mine: Sequence[Held]) -> list[Held]:
        """Upload them. Returns which of them are not whole after all."""
        damaged = []
        for held in mine:
            node = NodeStore.of(Local(self.local.path), held.receipt.run_id, self.clock)  # no limit: everybody waits for it
            try:
                check_chunks(self.store, node.store, held)  # they have lain there since another process wrote them
                message = f"the part of rank {held.receipt.rank}, which lay whole on the node of process {self.channel.rank}"
                upload(self.store, node, held, self.on_event, message=message)
                log.warning("of %s, which a dead job left undecided: %s, is uploaded now", held.generation, message)
            except DamageError as error:
                log.warning("what was whole on the node is not any more, and is left alone: %s", error)
                damaged.append(held)
                continue
            key = names.receipt_key(held.generation, held.receipt.rank)
            if ledger.insist(self.store, key, held.data, clock=self.clock, timeout=DECISION_TIMEOUT) != held.data:
                log.warning("%s is another receipt than the node's: the generation cannot be finished", key)
        return damaged


def check_chunks(store: Store, node: Store, held: Held) -> None:
    """Read all chunks of a part on the node. Raises `Damaged` unless they can be read, with the digests that its receipt says."""
    receipt, described = held.receipt, held.receipt.layout
    if described is None or not receipt.files:
        return
    data = bounded_bytes(store, described.key, described.size) or b""
    check(data, described.digest, what=described.key)
    layout = records.decode(data, records.Layout, key=described.key)
    reader = arrays.ArrayReader(node, held.prefix)
    for component, written in receipt.components.items():
        table = layout.components[component]
        for leaf in table.leaves:
            if isinstance(leaf, records.ArrayLeaf) and leaf.name in written.chunks:
                name = leaf.name if table.scope == "global" else names.rank_array_name(receipt.rank, leaf.name)
                grid = grid_of(leaf)
                own = dict(written.chunks[leaf.name])
                array = arrays.StoredArray(name=name, dtype=leaf.stored_dtype, shape=leaf.shape, grid=grid)
                digests = [own.get(cell, "") for cell in range(grid.size)]
                for cell in own:
                    _on_node(partial(reader.read, array, [grid.cell(cell)], digests))


def _on_node(read: Callable[[], object]) -> None:
    """Read from the node. A disk that fails is damage there, and no trouble with the run's store."""
    try:
        read()
    except StoreError as error:
        raise Damaged(f"the node's storage cannot be read: {error}") from error


def plan(store: Store, told: Sequence[bytes]) -> dict[_Part, int]:
    """Which process uploads which part, of the newest generation that can be finished; empty if there is none.

    `told`: of each process, the parts that are whole on its node, with the digests of their receipts.
    """
    holders: dict[tuple[str, int, str], list[int]] = {}
    for process, message in enumerate(told):
        for generation, rank, receipt in json.loads(message):
            holders.setdefault((generation, rank, receipt), []).append(process)
    if not holders:
        return {}
    since = History.load(store).newest_begun()
    for generation in reversed(undecided(store)):
        if generation.incarnation >= since and exists(store, names.on_nodes_key(generation)):
            found = _parts(store, generation, holders)
            if found is not None:
                return found
    return {}


def _parts(store: Store, generation: GenerationId, holders: Mapping[tuple[str, int, str], list[int]]) -> dict[_Part, int] | None:
    """Who uploads each part that has no receipt yet; None if nobody has one of them, or a rank has failed."""
    key = names.on_nodes_key(generation)
    try:
        record = records.decode(record_bytes(store, key) or b"", records.StagedRecord, key=key)
    except DamageError as error:
        log.warning("data on the nodes is left alone: %s", error)
        return None
    parts: dict[_Part, int] = {}
    for rank in range(record.participants):
        delivered = bounded_bytes(store, names.receipt_key(generation, rank))
        if delivered is not None and records.says_failed(delivered):
            return None
        if delivered is not None:
            continue
        staged = bounded_bytes(store, names.staged_key(generation, rank))
        found = [] if staged is None else holders.get((str(generation), rank, digest(staged)), [])
        if not found:
            log.warning(
                "%s was whole on nodes, and cannot be finished: no node of this start has the part of rank %d", generation, rank
            )
            return None
        # Processes of one node hold the same: each uploads its own.
        parts[generation, rank] = rank if rank in found else found[rank % len(found)]
    return parts


def _tell(held: Sequence[Held]) -> bytes:
    return json.dumps([[str(each.generation), each.receipt.rank, digest(each.data)] for each in held]).encode()


def _without(message: bytes, damaged: bytes) -> bytes:
    lost = json.loads(damaged)
    return json.dumps([part for part in json.loads(message) if part not in lost]).encode()


def _tell_plan(parts: Mapping[_Part, int]) -> bytes:
    return json.dumps([[str(generation), rank, process] for (generation, rank), process in parts.items()]).encode()
