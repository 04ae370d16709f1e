"""A training job of many ranks in one process: every rank's real part of a save, one after the other.

Nothing is faked but the training: each rank flattens, plans, stages, writes its database and signs its receipt by the
code that a job runs. The state is what a fully sharded one of a large job looks like to a checkpoint: every
array is cut along its first axis over all ranks, so that a save has ranks × arrays chunks; beside it there are values of
the job, and a random state of each rank's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ckptcore import records, snapshot
from ckptcore.backend import Flat, Staged, Target
from ckptcore.channel import Channel, LocalChannel
from ckptcore.clock import Clock
from ckptcore.coordinator import Coordinator
from ckptcore.errors import SaveAborted
from ckptcore.geometry import CHUNK_BYTES, Box
from ckptcore.incarnations import Opening
from ckptcore.layout import ArrayFacts, ComponentFacts, ValueFacts
from ckptcore.ledger import Decided
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.store import Store
from ckptcore.union import Exchange
from ckptcore.verify import check_whole
from ckptcore.writer import Identity, Shard, write

COMPONENTS = {"params": "parameters", "optimizer": "optimizer"}
"""The components over which the arrays are spread, in thirds: parameters, and two moments."""
FACTS = records.StoreFacts(driver="file", put_if_absent=True, read_after_write=True, list_after_write=True)
DERIVED = {"schedule": "optimizer", "data": "step"}
ROW = 160
"""Elements of one row. A rank's chunk has at least one row: too many bytes to be kept inside of a database's tree."""


@dataclass(frozen=True)
class Size:
    """How large a job and its state are. `nbytes`: of all arrays; at least one row a rank and array is written."""

    ranks: int
    arrays: int
    nbytes: int = 0

    @property
    def rows(self) -> int:
        """Rows of one rank's part of one array."""
        return max(1, self.nbytes // (self.ranks * self.arrays * ROW * 4))

    @property
    def stored(self) -> int:
        """Bytes of all arrays as they are written."""
        return self.rows * self.ranks * self.arrays * ROW * 4


@dataclass(frozen=True, kw_only=True)
class ShardedFlat(Flat):
    """One rank's leaves. All arrays have the same content, which is cut from one block of memory."""

    block: np.ndarray

    def stage(self, own: Mapping[str, Sequence[Box]], replicated: Sequence[str], limit: int | None) -> Staged:  # noqa: ARG002
        """See `Flat.stage`. The block never changes, so nothing is copied."""
        chunks = {name: [self._part(box) for box in boxes] for name, boxes in own.items()}
        return Staged(chunks=chunks, whole={}, nbytes=sum(part.nbytes for parts in chunks.values() for part in parts))

    def _part(self, box: Box) -> np.ndarray:
        return self.block[: box.shape[0]] if len(box.shape) == 2 else np.zeros(box.shape, np.uint32)


@dataclass(frozen=True)
class ShardedBackend:
    """The framework of the simulated job. See `ckptcore.backend.Backend`."""

    size: Size
    rank: int
    framework: str = "simulated"
    partial: bool = False
    computing: frozenset[str] = frozenset()

    def channel(self) -> Channel:
        """See `Backend.channel`."""
        return LocalChannel()

    def versions(self) -> dict[str, str]:
        """See `Backend.versions`."""
        return {"simulated": "1"}

    def topology(self, meshes: Sequence[records.Mesh]) -> records.Topology:  # noqa: ARG002 - there are none
        """See `Backend.topology`."""
        return topology(self.size)

    def release(self) -> None:
        """See `Backend.release`."""

    def flatten(self, components: Mapping[str, Any]) -> Flat:
        """See `Backend.flatten`; `components` has what all ranks share: the facts of the arrays, and the block."""
        facts = {name: ComponentFacts(kind=kind, scope="global") for name, kind in COMPONENTS.items()}
        facts["rng"] = ComponentFacts(kind="rng", scope="rank")
        own = ArrayFacts(component="rng", path=(("key", "key"),), dtype="uint32", stored_dtype="uint32", shape=(2,), itemsize=4)
        return ShardedFlat(
            components=facts,
            arrays=[*components["arrays"], own],
            values=[ValueFacts(component="optimizer", path=(("key", "count"),), value=7)],
            meshes=[],
            block=components["block"],
        )

    def target(self, like: Mapping[str, Any], components: Collection[str]) -> Target:
        """No target is restored into: single ranks read boxes."""
        raise NotImplementedError


def topology(size: Size) -> records.Topology:
    """The job's processes, each with one device."""
    return records.Topology(framework="simulated", platform="cpu", participants=size.ranks, devices=size.ranks)


def box(size: Size, rank: int) -> Box:
    """A rank's part of every array."""
    return Box((rank * size.rows, 0), ((rank + 1) * size.rows, ROW))


def array_facts(size: Size) -> list[ArrayFacts]:
    """The arrays of a job of `size`, each cut over all ranks along its first axis. They share one map of shards."""
    shards = {box(size, rank): (rank,) for rank in range(size.ranks)}
    return [
        ArrayFacts(
            component="params" if number % 3 == 0 else "optimizer",
            path=(("key", f"layer_{number // 3:05d}"), ("key", ("kernel", "mu", "nu")[number % 3])),
            dtype="float32",
            stored_dtype="float32",
            shape=(size.rows * size.ranks, ROW),
            itemsize=4,
            shards=shards,
        )
        for number in range(size.arrays)
    ]


@dataclass(frozen=True)
class Launch:
    """An incarnation of the job as all of its processes know it."""

    run_id: str
    number: int
    nonce: str


def launch(store: Store, size: Size) -> Launch:
    """Open the run for writing: claim, settle, choose the base."""
    opening = Opening(store, topology(size), FACTS)
    found = opening.open(
        opening.identify(),
        check=lambda decided: check_whole(Checkpoint(store, decided)),
        guarantee=lambda _: "exact",
    )
    return Launch(found.run.run_id, found.number, found.claim.nonce)


@dataclass(frozen=True)
class Job:
    """One launch of the job on one run: any of its ranks, in this process."""

    store: Store
    size: Size
    launch: Launch

    @cached_property
    def state(self) -> dict[str, Any]:
        """What all ranks share."""
        block = np.random.default_rng(0).standard_normal((self.size.rows, ROW), np.float32)
        return {"arrays": array_facts(self.size), "block": block}

    def generation(self, step: int) -> GenerationId:
        """The first attempt at `step`."""
        return GenerationId(self.launch.number, step, 1)

    def plan(self, step: int, rank: int, latest: Decided | None = None) -> Shard:
        """The main-thread half of a save on `rank`, which continues from `latest`: flatten, plan, stage."""
        backend = ShardedBackend(self.size, rank)
        identity = Identity(
            run_id=self.launch.run_id,
            generation=self.generation(step),
            claim=self.launch.nonce,
            participants=self.size.ranks,
            rank=rank,
        )
        order = snapshot.Order(
            components=self.state,
            derived=DERIVED,
            guarantee=None,
            require=None,
            metadata=None,
            unchanged=(),
            latest=latest,
            remapped=False,
            obstacle=lambda _: None,
            clock=Clock(),
        )
        return snapshot.take(backend, identity, order, Exchange(backend.channel()), snapshot.Limits(CHUNK_BYTES))

    def write(self, shard: Shard) -> records.Receipt:
        """The background half of a save on one rank, up to its receipt."""
        return write(self.store, shard, clock=Clock())

    def commit(self, step: int) -> Decided:
        """Rank 0's other half: decide the save at `step`, whose ranks have all written. Raises `SaveAborted`."""
        decided = coordinator(self).commit(self.generation(step), self.size.ranks, timeout=600.0)
        if isinstance(decided.record, records.Abort):
            raise SaveAborted(f"the simulated save was aborted: {decided.record.reason}", decided.record.missing)
        return decided

    def save(self, step: int, latest: Decided | None = None) -> Decided:
        """A whole save, rank after rank."""
        for rank in range(self.size.ranks):
            self.write(self.plan(step, rank, latest))
        return self.commit(step)


def coordinator(job: Job) -> Coordinator:
    """Rank 0's other half."""
    return Coordinator(job.store, job.launch.run_id, job.launch.number)
