"""A rank's part of a save on another node too, until it is uploaded: what one process does for that (spec: N-12 to N-16).

It offers its own part from when that is whole on its node, and pulls those parts that it keeps a copy of, each in a thread beside
the upload. No save waits for any of it, and nothing that goes wrong here is an error of a save. A copy counts from when its
receipt is beside it: then it is as good as what the other rank has itself (`ckptcore.finishing`).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

from ckptcore import canonical, ledger, placement, records
from ckptcore.channel import Channel
from ckptcore.copywire import Coming, Gone, Offer, Server, asked
from ckptcore.errors import CheckpointError, StoreFull
from ckptcore.events import Event, Listener, log, shorten, tell
from ckptcore.names import GenerationId, receipt_key
from ckptcore.nodes import Held, NodeStore
from ckptcore.store import Store
from ckptcore.wire import Broken, Place, reached_at, shut
from ckptcore.workers import Workers

_WHAT = "which nodes keep copies of which ranks' data"


class Copies:
    """What one process gives and takes for copies, from one save to the next, until it is closed."""

    def __init__(self, offer: Offer, server: Server | None, keepers: Sequence[Keeper]) -> None:
        self._offer, self._server, self._keepers = offer, server, keepers

    @classmethod
    def open(cls, store: Store, node: NodeStore, channel: Channel, on_event: Listener | None, *, timeout: float) -> Copies | None:
        """Agree with the other ranks who keeps whose copies, in the main thread. None, and a warning, if there can be none."""
        offer, rank = Offer(), channel.rank
        server = _serve(offer, node, channel) if channel.size > 1 else None
        try:
            told = _told(node, server, channel, timeout)
            holders = placement.holders([marker for marker, _ in told])
        except BaseException:
            _close(server)
            raise
        if not holders and rank == 0:
            log.warning(
                "copies=1 needs ranks with node stores of their own; all ranks that have one share it, so there are no copies"
            )
        if rank not in holders:
            _close(server)
            server = None
        owners = {owner: told[owner][1] for owner, holder in holders.items() if holder == rank}
        beside = sum(marker == told[rank][0] for marker, _ in told)
        keepers = [
            Keeper(store=store, node=node, rank=rank, owner=owner, place=place, beside=beside, on_event=on_event)
            for owner, place in owners.items()
            if place is not None
        ]
        return cls(offer, server, keepers) if holders else None

    @property
    def owners(self) -> list[int]:
        """The ranks whose parts this process keeps copies of."""
        return [keeper.owner for keeper in self._keepers]

    def begin(self, own: Held) -> None:
        """This rank's part is whole on its node: it can be had from here on, and now is the time to copy others'."""
        self._offer.put(own)
        for keeper in self._keepers:
            keeper.begin(own)

    def end(self, generation: GenerationId, *, decided: bool) -> None:
        """This rank's save has ended. What is half copied goes; all that is copied, if the generation is decided."""
        self._offer.end(generation)
        for keeper in self._keepers:
            keeper.end(generation, decided=decided)

    def close(self) -> None:
        """End all connections and threads."""
        _close(self._server)
        for keeper in self._keepers:
            keeper.close()


@dataclass(kw_only=True)
class Keeper:
    """The copies of one other rank's parts: one after the other, each deleted when it has served, in a thread of its own.

    `beside`: how many ranks share this node store.
    """

    store: Store
    node: NodeStore
    rank: int
    owner: int
    place: Place
    beside: int
    on_event: Listener | None
    _begun: GenerationId | None = None
    _ended: GenerationId | None = None
    _connection: socket.socket | None = None
    _last: Future[None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._thread = Workers(1, f"ckpt-copy-{self.owner}")
        if not self._thread.size:
            log.warning("rank %d keeps no copies for rank %d: the system has no thread for it", self.rank, self.owner)

    def begin(self, own: Held) -> None:
        """Start to copy the owner's part of the generation that `own` is this rank's part of."""
        if self._thread.size:
            self._begun = own.generation
            self._last = self._thread.submit(self._copy, own)

    def end(self, generation: GenerationId, *, decided: bool) -> None:
        """Stop copying, and delete the copy if nobody needs it any more. Does not wait for either."""
        with self._lock:
            self._ended = generation
            if self._connection is not None:
                shut(self._connection)
        if decided and self._begun == generation:
            self._last = self._thread.submit(self._drop, generation)

    def close(self) -> None:
        """Stop, and wait until what had been begun is over."""
        if self._begun is not None:
            self.end(self._begun, decided=False)
        if self._last is not None:
            wait([self._last])  # what is deleted is not left half
        self._thread.close()

    def _copy(self, own: Held) -> None:
        started = self.node.clock.monotonic()
        try:
            nbytes = self._take(own)
        except (OSError, Broken, CheckpointError, MemoryError) as error:
            self._drop(own.generation)
            self._explain(own, error)
            return
        detail = {"owner": self.owner, "bytes": nbytes, "seconds": self.node.clock.monotonic() - started}
        tell(self.on_event, Event("copied", self.rank, own.generation, f"the part of rank {self.owner}", detail))

    def _take(self, own: Held) -> int:
        with asked(self.place, own.generation, partial(self._opened, own.generation)) as coming:
            try:
                held = self._promised(own, coming)
                self.node.take(held, coming.pieces)
                self._check(own.generation)
                self.node.keep(held.receipt)
            finally:
                with self._lock:
                    self._connection = None
        return held.nbytes

    def _promised(self, own: Held, coming: Coming) -> Held:
        """What comes, if it is the owner's part of this save, and there is room for it."""
        key = receipt_key(own.generation, self.owner)
        held = Held(coming.data, records.decode(coming.data, records.Receipt, key=key))
        wanted = {"rank": self.owner, "status": "complete"}
        wanted |= {name: getattr(own.receipt, name) for name in ("run_id", "generation", "claim", "participants")}
        records.expect(key, **{name: (getattr(held.receipt, name), value) for name, value in wanted.items()})
        if records.encode(held.receipt) != coming.data:
            raise Broken("its receipt is not in canonical form")
        self._check_room(held)
        return held

    def _check_room(self, held: Held) -> None:
        """A copy must not take the room that other ranks of this node need, who may be writing still, and copying as well."""
        needed, free = 2 * self.beside * held.nbytes, self.node.room()
        if free < needed:
            raise StoreFull(
                f"it has {held.nbytes} bytes, and {free} are free there; {needed} have to be, for {self.beside} ranks"
            )

    def _opened(self, generation: GenerationId, connection: socket.socket) -> None:
        with self._lock:
            self._connection = connection
        self._check(generation)

    def _check(self, generation: GenerationId) -> None:
        if self._is_over(generation):
            raise Broken("the save has ended")

    def _is_over(self, generation: GenerationId) -> bool:
        return self._ended is not None and generation <= self._ended

    def _drop(self, generation: GenerationId) -> None:
        try:
            self.node.discard(generation, self.owner)
        except CheckpointError as error:
            log.warning("a copy of rank %d's part of %s that nobody needs stays: %s", self.owner, generation, shorten(error))

    def _explain(self, own: Held, error: Exception) -> None:
        """Warn, unless there is nothing to warn of: the save is over, or is known to fail."""
        if not isinstance(error, Gone) and not self._is_over(own.generation) and not self._is_decided(own):
            reason = shorten(f"{error}" or type(error).__name__)
            log.warning("rank %d keeps no copy of rank %d's part of %s: %s", self.rank, self.owner, own.generation, reason)

    def _is_decided(self, own: Held) -> bool:
        try:
            return ledger.read(self.store, own.receipt.run_id, own.generation) is not None
        except CheckpointError:
            return False


def _serve(offer: Offer, node: NodeStore, channel: Channel) -> Server | None:
    """This rank's server; None if there can be none here, and then nobody keeps copies for it."""
    hosts, local = reached_at(channel.coordinator)
    try:
        return Server(offer, node.store, hosts, local=local)
    except (OSError, RuntimeError) as error:
        log.warning("no other node keeps copies for rank %d: %s", channel.rank, shorten(error))
        return None


def _told(node: NodeStore, server: Server | None, channel: Channel, timeout: float) -> list[tuple[str | None, Place | None]]:
    """Of each rank: the marker of its node store, and where its server is."""
    try:
        marker = node.marker()
    except CheckpointError as error:
        log.warning("rank %d takes no part in copies: %s", channel.rank, shorten(error))
        marker = None
    own = canonical.encode([marker, None if server is None else server.place.told()])
    messages = [canonical.decode(data, what=_WHAT) for data in channel.gather(own, timeout=timeout, what=_WHAT)]
    return [(marker, Place.of(at)) for marker, at in messages]


def _close(server: Server | None) -> None:
    if server is not None:
        server.close()
