"""The run that a `StorageWriter` writes to, as its coordinator sees it: one incarnation, and its saves."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ckptcore import ledger
from ckptcore.clock import Clock
from ckptcore.errors import CallError
from ckptcore.events import Event, Listener, tell
from ckptcore.history import History
from ckptcore.incarnations import Incarnation, Opening
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.probe import probe
from ckptcore.reader import Checkpoint
from ckptcore.records import Topology
from ckptcore.store import Storage, Store
from ckptcore.verify import check_whole
from ckptcore.writer import Identity
from torchckpt.backend import TorchBackend


@dataclass
class Lineage:
    """Claims the run at the first save. `base` is the generation that the state was loaded from, None for the head."""

    store: Store
    storage: Storage
    base: GenerationId | None
    clock: Clock
    on_event: Listener | None
    latest: Decided | None = None
    tidy: bool = True
    """Whether an earlier save, or an earlier job, may have left something behind."""
    _incarnation: Incarnation | None = None
    _last_step: int = 0
    _attempts: dict[int, int] = field(default_factory=dict)

    def topology(self, participants: int) -> Topology:
        """The running job. The meshes of its tensors are not known through DCP."""
        return msgspec.structs.replace(TorchBackend().topology(()), participants=participants)

    def next(self, step: int, participants: int) -> Identity:
        """Who saves what next. Raises `CallError` for a step that lies before what the run goes on from."""
        incarnation = self._incarnation or self._open(step, participants)
        self._check_order(step, self._last_step)
        attempt = self._attempts[step] = self._attempts.get(step, 0) + 1
        self._last_step = step
        return Identity(
            run_id=incarnation.run.run_id,
            generation=GenerationId(incarnation.number, step, attempt),
            claim=incarnation.claim.nonce,
            participants=participants,
            rank=0,
        )

    def _open(self, step: int, participants: int) -> Incarnation:
        """Claim an incarnation; what can be refused is refused before, since a claim stops a job that is running."""
        facts = probe(self.store, single_writer=self.storage.single_writer)
        opening = Opening(self.store, self.topology(participants), facts, self.clock, self.on_event)
        run = opening.identify()
        history = History.load(self.store)
        head = history.head()
        if head is None and (run.parent or run.origin):
            raise CallError(f"run {self.store.url} starts from another's state; begin it with torchckpt.Checkpointer")
        newest = head.generation if head else None
        goes_on = self.base or newest
        if goes_on is not None:
            self._check_order(step, goes_on.step)
        base = self.base if self.base != newest else None
        incarnation = opening.open(
            run,
            choose=None if base is None else (lambda _: base),
            check=lambda decided: check_whole(Checkpoint(self.store, decided)),
            guarantee=lambda _: None,  # DCP does not say what it has loaded
        )
        self._incarnation = incarnation
        message = f"incarnation {incarnation.number}, base: {incarnation.base.reason}"
        tell(self.on_event, Event("opened", 0, incarnation.base_generation, message))
        if incarnation.base_generation is not None:
            self.latest = ledger.read(self.store, run.run_id, incarnation.base_generation)
            self._last_step = incarnation.base_generation.step
        return incarnation

    def _check_order(self, step: int, last: int) -> None:
        if step < last:
            raise CallError(
                f"step {step} lies before step {last}, where run {self.store.url} is. Load that checkpoint first, or use a new"
                " URL; to go back to an older one, load it with StorageReader(url, step=…) and pass resumed=reader"
            )
