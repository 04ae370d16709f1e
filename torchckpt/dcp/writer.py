"""`StorageWriter`: what `torch.distributed.checkpoint.save` and `async_save` write to.

DCP's own collectives carry the plan to the coordinator and back, and tell it when all ranks have written. What is a
checkpoint is decided in the store, as ever: receipts, proof, ledger. A rank that dies, or that cannot write, leaves
nothing that a reader would take for one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult

from ckptcore import guarantees, records
from ckptcore.arguments import check_step
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import CallError, CheckpointError
from ckptcore.events import Listener
from ckptcore.geometry import CHUNK_BYTES
from ckptcore.guarantees import Derived
from ckptcore.keep import Keep
from ckptcore.ledger import manifest_of
from ckptcore.names import GenerationId
from ckptcore.records import Level
from ckptcore.saving import Saving, give_up
from ckptcore.store import Storage, open_store
from torchckpt.backend import TorchBackend
from torchckpt.dcp import held, keys
from torchckpt.dcp.assemble import assemble
from torchckpt.dcp.held import Held
from torchckpt.dcp.lineage import Lineage
from torchckpt.dcp.plans import Local, Plans, Ticket
from torchckpt.dcp.reader import StorageReader

T = TypeVar("T")
_COPY = StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False)


@dataclass(frozen=True)
class _Snapshot:
    """What belongs to the moment of a save beside the state dict: the step, the time, and what is this rank's own."""

    step: int | None
    captured: str
    own: Held


class StorageWriter(storage.StorageWriter, AsyncStager):
    """Saves through `torch.distributed.checkpoint` become generations of the run at `url`.

    Make one for the job, on every rank alike, and tell it the step with each save: `checkpoint_id="step-100"` or
    `writer.step = 100`. The first save claims the run; a second writer claims it anew, which ends what the first
    has in flight. `async_save` needs a process group of its own (`process_group=dist.new_group(backend="gloo")`), since DCP
    talks between ranks in the background; wait for its future before the next save. Use DCP's thread executor, the
    default: a process of its own could not tell this one what was decided. Failures come as DCP's `CheckpointException`, on
    all ranks.

    Attributes:
      url: where the run lies: a path, `file://`, `s3://`, `gs://` or `memory://`; the same on every rank.
      step: the number of completed updates in the next save; the end of a `checkpoint_id` sets it.
      root: the component of entries at the top of the state dict: `root="model"` for `dcp.save(model.state_dict(), …)`.
      per_rank: components that each rank has for itself: `{"rng": torchckpt.rng_state(), "data": loader}`.
      derived: needs of the guarantee that are met inside another component, or by the step.
      guarantee: the guarantee to record; by default the strongest that is provable.
      resumed: the reader that this job's state was loaded with; the run goes on from what that has read, also if it is not the
        newest. Without it, from the newest.
      keep: which checkpoints stay; None deletes none.
      storage, coordinator_timeout, chunk_bytes, on_event: as for `torchckpt.Checkpointer`.

    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        root: str | None = None,
        per_rank: Mapping[str, Any] | None = None,
        derived: Derived | None = None,
        guarantee: Level | None = None,
        resumed: StorageReader | None = None,
        keep: Keep | None = None,
        storage: Storage | None = None,
        coordinator_timeout: float = 600.0,
        chunk_bytes: int = CHUNK_BYTES,
        on_event: Listener | None = None,
    ) -> None:
        settings = storage or Storage()
        self.step = step
        self._store = open_store(url, settings)
        self._root, self._per_rank = root, dict(per_rank or {})
        self._derived: Derived = dict(derived or {})
        self._guarantee: Level | None = guarantee
        self._keep = keep
        self._timeout, self._chunk_bytes, self._on_event = coordinator_timeout, chunk_bytes, on_event
        self._clock = Clock()
        self._lineage = Lineage(self._store, settings, _base(resumed, self._store.url), self._clock, on_event)
        self._staged: _Snapshot | None = None
        self._taken: _Snapshot | None = None
        self._local: Local | None = None
        self._tidy = False
        self._saving: Saving | None = None
        self._generation: GenerationId | None = None

    @property
    def url(self) -> str:
        """The run's canonical URL."""
        return self._store.url

    @property
    def generation(self) -> GenerationId | None:
        """The generation of the newest save; None before the first. Whether it is a checkpoint is what `save` told."""
        return self._generation

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from the end of `checkpoint_id`. Raises `CallError` when there is none."""
        if checkpoint_id is not None:
            self.step = keys.step_of(checkpoint_id)
            self._staged = None if self._staged is None else replace(self._staged, step=self.step)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` names a step."""
        try:
            return keys.step_of(checkpoint_id) >= 0
        except CallError:
            return False

    def stage(self, state_dict: dict[str, Any]) -> Any:
        """The snapshot of `async_save`, in the thread that calls it: a copy of the state dict, and of what is each rank's own."""
        self._staged = self._snapshot()
        with closing(DefaultStager(_COPY)) as stager:
            return stager.stage(state_dict)

    def synchronize_staging(self) -> None:
        """Nothing is staged in the background."""

    def close(self) -> None:
        """Nothing is held between saves."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002, FBT001
        """Begin a save. Raises `CallError` for one without collectives, or with state of a rank's own captured too late."""
        if not kwargs.get("use_collectives", True):
            raise CallError("use_collectives=False: each rank would decide for itself what is a checkpoint; leave it at True")
        if self._staged is None and self._per_rank and threading.current_thread() is not threading.main_thread():
            raise CallError(
                "per_rank state is captured when async_save is called, and async_stager= keeps the writer from that: leave it out"
            )
        self._taken, self._staged = self._staged or self._snapshot(), None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Add what the coordinator needs to know of this rank."""
        if not plan.usable:
            raise CallError("a planner with enable_plan_caching=True sends no plan of this save; leave it at False")
        paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        self._local = Local(items=plan.items, paths=paths, root=self._root, per_rank=_begun(self._taken).own.components)
        return replace(plan, storage_data=self._local)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The coordinator's part: prove the guarantee, claim the run if it is the first save, lay out, and tell every rank."""
        taken = _begun(self._taken)
        step = check_step(taken.step) if taken.step is not None else _no_step()
        local = [plan.storage_data for plan in plans]
        everything = Plans(local=local, final=plans, chunk_bytes=self._chunk_bytes)
        guarantee = self._promise(everything)
        _ = everything.arrays  # what cannot be stored is refused before anything is claimed
        topology = self._lineage.topology(len(plans))
        identity = self._lineage.next(step, len(plans))
        self._tidy, self._lineage.tidy = self._lineage.tidy, True  # unless all goes well
        tickets = everything.tickets(identity, guarantee, topology, self._lead(topology, taken.captured))
        return [replace(plan, storage_data=ticket) for plan, ticket in zip(plans, tickets, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        """Write this rank's part and deliver its receipt. What fails here aborts the save at once."""
        ticket = plan.storage_data
        if not isinstance(ticket, Ticket):
            raise CallError(f"{type(planner).__name__} drops the plan's storage_data; derive it from DefaultSavePlanner")
        self._generation = ticket.identity.generation
        try:
            shard = assemble(ticket, _begun(self._local), plan, planner, _begun(self._taken).own)
        except Exception as error:
            give_up(self._coordinator(ticket), ticket.identity, error)
            self._conclude(ticket, error)
            raise
        saving = Saving(
            store=self._store,
            shard=shard,
            timeout=self._timeout,
            keep=self._keep,
            metrics=None,
            tidy=self._tidy,
            clock=self._clock,
            on_event=self._on_event,
        )
        try:
            saving.deliver()
        except CheckpointError as error:
            self._conclude(ticket, error)
            raise
        self._saving, self._taken, self._local = saving, None, None
        return _done([WriteResult(item.index, item.tensor_storage_size() or 0, str(self._generation)) for item in plan.items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - the receipts say more
        """The coordinator's part, once all ranks have written: prove, and commit. Raises `SaveAborted` if there is no proof."""
        saving, self._saving = _begun(self._saving), None
        decided = saving.decide()
        self._lineage.tidy = False
        if manifest_of(decided).guarantee.level != "weights":
            self._lineage.latest = decided
        metadata.storage_data = {"url": self._store.url, "generation": str(decided.generation)}

    def __getstate__(self) -> NoReturn:
        raise CallError(
            "a StorageWriter belongs to the process that made it, so async_checkpointer_type=PROCESS cannot be used;"
            " leave it at THREAD: writing needs no process of its own, since it holds no lock of Python's for long"
        )

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(self.step, self._clock.utc(), held.of_ranks_own(self._per_rank))

    def _promise(self, everything: Plans) -> records.Guarantee:
        derived, asked = self._derived, self._guarantee
        if asked == "weights":
            derived = {need: source for need, source in derived.items() if need == "parameters"}
        return guarantees.resolve(everything.components, derived, guarantee=asked)

    def _lead(self, topology: records.Topology, captured: str) -> records.Lead:
        latest = self._lineage.latest
        return records.Lead(
            captured=captured,
            topology=topology,
            parent=str(latest.generation) if latest else None,
            parent_manifest=latest.digest if latest else None,
            versions=TorchBackend().versions(),
        )

    def _coordinator(self, ticket: Ticket) -> Coordinator:
        identity = ticket.identity
        return Coordinator(self._store, identity.run_id, identity.generation.incarnation, self._clock, self._on_event)

    def _conclude(self, ticket: Ticket, error: Exception) -> None:
        """After a failure DCP does not call `finish`, so nobody else decides. Trouble with that matters less than `error`."""
        try:
            self._coordinator(ticket).conclude(ticket.identity.generation)
        except CheckpointError as also:
            error.add_note(f"(the abort could not be recorded, the next start does: {also})")


def _base(resumed: StorageReader | None, url: str) -> GenerationId | None:
    if resumed is None:
        return None
    if resumed.generation is None:
        raise CallError("resumed: this reader has loaded nothing yet; make the writer after dcp.load")
    if resumed.url != url:
        raise CallError(f"resumed: the state was loaded from {resumed.url}, not from {url}; leave it out to begin a new run")
    return resumed.generation


def _no_step() -> NoReturn:
    raise CallError("the step is not known: pass checkpoint_id='step-100' to save, or set writer.step before")


def _begun(part: T | None) -> T:
    if part is None:
        raise CallError("no save is under way: StorageWriter is called by torch.distributed.checkpoint")
    return part


def _done(results: list[WriteResult]) -> torch.futures.Future[list[WriteResult]]:
    future: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
    future.set_result(results)
    return future
