"""`StorageReader`: what `torch.distributed.checkpoint.load` reads from.

All boxes that a rank needs are read, and every chunk checked against its digest, before anything of the target is
changed. All ranks read the generation that the coordinator has chosen.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from ckptcore import dtypes, restore
from ckptcore.backend import Found
from ckptcore.errors import CallError, DamageError, NotFound, StructureMismatch
from ckptcore.events import Event, Listener, log, shorten, tell
from ckptcore.geometry import Box
from ckptcore.history import History
from ckptcore.match import Rules
from ckptcore.names import GenerationId
from ckptcore.readable import StoredLeaf
from ckptcore.reader import Checkpoint
from ckptcore.records import ArrayLeaf
from ckptcore.run import open_run
from ckptcore.store import Storage, open_store
from ckptcore.verify import check_whole
from torchckpt import leaves
from torchckpt.backend import TorchBackend
from torchckpt.dcp import held, keys
from torchckpt.dcp.catalogue import Catalogue, HostArray, catalogue, filled, host_arrays
from torchckpt.target import TorchTarget


@dataclass(frozen=True)
class _Choice:
    """What the ranks agree on: the coordinator's generation, and how many they are."""

    generation: str
    rank: int
    ranks: int


class StorageReader(storage.StorageReader):
    """Loads a generation of the run at `url` through `torch.distributed.checkpoint`, whoever wrote it.

    What a torch optimizer's state dict has below `param_groups` is offered by group and by parameter, so both the nested
    and the flat form load. As ever with DCP, what the state dict does not have is not loaded, and a key that
    the checkpoint lacks is an error. A tensor of another dtype than the stored one is refused: nothing is cast.

    Attributes:
      url: where the run lies.
      step: load the newest checkpoint of this step, or raise; the end of a `checkpoint_id` sets it. None: the resume
        point; if that is damaged, the one before, with a warning.
      root: the component whose entries lie at the top of the state dict.
      per_rank: components that each rank has for itself, filled in place. `remap` gives the old rank whose state each new
        rank takes, for a job of another size.
      storage, on_event: as for `torchckpt.Checkpointer`.

    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        root: str | None = None,
        per_rank: Mapping[str, Any] | None = None,
        remap: Mapping[int, int] | None = None,
        storage: Storage | None = None,
        on_event: Listener | None = None,
    ) -> None:
        self.step = step
        self._storage = storage or Storage()
        self._store = open_store(url, self._storage)
        self._root, self._per_rank, self._remap = root, dict(per_rank or {}), remap
        self._on_event = on_event
        self._rank = 0
        self._catalogue: Catalogue | None = None

    @property
    def url(self) -> str:
        """The run's canonical URL."""
        return self._store.url

    @property
    def generation(self) -> GenerationId | None:
        """The generation that was loaded; None before the first load."""
        return None if self._catalogue is None else self._catalogue.checkpoint.generation

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step from the end of `checkpoint_id`. Raises `CallError` when there is none."""
        if checkpoint_id is not None:
            self.step = keys.step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` names a step."""
        try:
            return keys.step_of(checkpoint_id) >= 0
        except CallError:
            return False

    def read_metadata(self) -> Metadata:
        """Choose a checkpoint and list what it has. Raises `NotFound`, or a `DamageError` if a step was asked for."""
        self._catalogue = catalogue(self._choose(), self._root)
        return self._catalogue.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002, FBT001
        """Learn this rank's number."""
        self._rank = kwargs.get("rank", 0)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell the coordinator which generation this rank has seen."""
        return replace(plan, storage_data=str(self.generation))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The coordinator's part: its own generation is everybody's."""
        chosen = str(self.generation)
        return [replace(plan, storage_data=_Choice(chosen, rank, len(plans))) for rank, plan in enumerate(plans)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Read, check, and only then fill. Raises `StructureMismatch` for other dtypes or shapes, `Damaged` for altered bytes."""
        choice = plan.storage_data
        if not isinstance(choice, _Choice):
            raise CallError(f"{type(planner).__name__} drops the plan's storage_data; derive it from DefaultLoadPlanner")
        known = self._at(choice.generation)
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        others = [item for item in plan.items if item.type != LoadItemType.TENSOR]
        targets = [planner.resolve_tensor(item).detach() for item in tensors]
        _check_fit(known, tensors, targets, others)
        objects = {item.dest_index.fqn: known.objects[item.storage_index.fqn] for item in others}
        stand_ins = [array for value in objects.values() for array in host_arrays(value)]
        wanted = [*(_request(known, item) for item in tensors), *((array.leaf, [_whole(array.leaf)]) for array in stand_ins)]
        read = iter(known.checkpoint.read(wanted))
        sources = [leaves.from_numpy(_logical(known.tensors[item.storage_index.fqn], next(read)[0])) for item in tensors]
        arrays = {id(array): _host(array, next(read)[0]) for array in stand_ins}
        own = self._find_own(known.checkpoint, choice)
        with torch.no_grad():
            for item, target, source in zip(tensors, targets, sources, strict=True):
                target.copy_(source)
                planner.commit_tensor(item, target)
        for item in others:
            planner.load_bytes(item, _handed_over(filled(objects[item.dest_index.fqn], lambda array: arrays[id(array)])))
        for target, found in own:
            target.place(found)
        tell(self._on_event, Event("restored", self._rank, known.checkpoint.generation))
        return _done()

    def _choose(self) -> Checkpoint:
        if self.step is not None:
            checkpoint = open_run(self._store.url, storage=self._storage).checkpoint(step=self.step)
            check_whole(checkpoint)
            return checkpoint
        passed: list[str] = []
        for decided in History.load(self._store).readable():
            checkpoint = Checkpoint(self._store, decided)
            try:
                check_whole(checkpoint)
            except DamageError as error:
                passed.append(f"{decided.generation} cannot be read: {error}")
                log.warning("falling back from %s", shorten(passed[-1]))
                tell(self._on_event, Event("fallen-back", self._rank, decided.generation, passed[-1]))
            else:
                return checkpoint
        raise NotFound(f"run {self.url} has no checkpoint that can be read" + "".join(f"\n  - {reason}" for reason in passed))

    def _at(self, generation: str) -> Catalogue:
        """The catalogue of the generation that the coordinator has chosen."""
        if self._catalogue is None or str(self.generation) != generation:
            checkpoint = open_run(self._store.url, storage=self._storage).checkpoint(generation=generation)
            self._catalogue = catalogue(checkpoint, self._root)
        return self._catalogue

    def _find_own(self, checkpoint: Checkpoint, choice: _Choice) -> list[tuple[TorchTarget, Mapping[str, Found]]]:
        """What the checkpoint has for the components that are this rank's own."""
        if not self._per_rank:
            return []
        for name in self._per_rank:
            checkpoint.ranks(name)  # raises NotFound, naming the components that there are
        before = checkpoint.manifest.topology.participants
        if self._remap is None and before != choice.ranks:
            raise CallError(
                f"per_rank: {sorted(self._per_rank)} of {checkpoint.generation} is that of {before} ranks, this job has"
                f" {choice.ranks}; pass remap={{new rank: old rank}}, or leave it out to begin that state anew"
            )
        source = choice.rank if self._remap is None else self._remap.get(choice.rank)
        if source is None:
            raise CallError(f"remap has no entry for rank {choice.rank}")
        own = {name: held.as_per_rank(value) for name, value in self._per_rank.items()}
        target = TorchBackend().target(own, own)
        ranks = dict.fromkeys(self._per_rank, source)
        return [(target, restore.find(checkpoint, target, rules=Rules(), ranks=ranks))]


def _check_fit(known: Catalogue, tensors: list[ReadItem], targets: list[torch.Tensor], others: list[ReadItem]) -> None:
    pairs = zip(tensors, targets, strict=True)
    differences = [problem for item, target in pairs for problem in _problems(known, item, target)]
    absent = (item.storage_index.fqn for item in others if item.storage_index.fqn not in known.objects)
    differences.extend(f"{fqn}: the checkpoint has no object of that name" for fqn in absent)
    if differences:
        raise StructureMismatch(f"generation {known.checkpoint.generation} does not fit the state dict", differences)


def _problems(known: Catalogue, item: ReadItem, target: torch.Tensor) -> Iterator[str]:
    fqn = item.storage_index.fqn
    leaf = known.tensors.get(fqn)
    if leaf is None:
        yield f"{fqn}: the checkpoint has no tensor of that name"
        return
    record, box = _record(leaf), _box(item)
    dtype = leaves.torch_dtype(record.dtype, fqn)
    if target.dtype != dtype:
        yield f"{fqn}: {dtype} in the checkpoint, {target.dtype} in the state dict; load it as it is, then convert it"
    if len(box.start) != len(record.shape) or not Box.whole(record.shape).contains(box):
        yield f"{fqn}: shape {list(record.shape)} in the checkpoint, which does not have {list(box.start)} to {list(box.stop)}"
    if tuple(target.shape) != box.shape:
        yield f"{fqn}: the planner gives a tensor of shape {list(target.shape)} for a box of {list(box.shape)}"


def _request(known: Catalogue, item: ReadItem) -> tuple[StoredLeaf, list[Box]]:
    return known.tensors[item.storage_index.fqn], [_box(item)]


def _box(item: ReadItem) -> Box:
    """The box that a read item asks for: the only chunk begins at zero, so its offsets are those in the array."""
    start = tuple(item.storage_offsets)
    return Box(start, tuple(a + b for a, b in zip(start, item.lengths, strict=True)))


def _record(leaf: StoredLeaf) -> ArrayLeaf:
    if not isinstance(leaf.record, ArrayLeaf):
        raise TypeError(f"{leaf.name} is a value")
    return leaf.record


def _whole(leaf: StoredLeaf) -> Box:
    return Box.whole(_record(leaf).shape)


def _logical(leaf: StoredLeaf, array: np.ndarray) -> np.ndarray:
    return dtypes.from_stored(array, _record(leaf).dtype)


def _host(stand_in: HostArray, array: np.ndarray) -> Any:
    return array.tobytes() if stand_in.is_bytes else _logical(stand_in.leaf, array)


def _handed_over(value: Any) -> io.BytesIO:
    """A value in the form that DCP's planners take objects in. It exists in memory only, made from decoded JSON."""
    form = io.BytesIO()
    torch.save(value, form)
    form.seek(0)
    return form


def _done() -> torch.futures.Future[None]:
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future
