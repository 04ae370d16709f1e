"""Export: a component as a folder that `torch.distributed.checkpoint.load` reads into a state dict.

Written by torch's own writer. Its planner is told of tensors that have a shape and a dtype only; each is read when
its turn comes to be written, into a file of its own, so that memory holds one or two of them at a time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from ckptcore import dtypes
from ckptcore.errors import CallError, CheckpointError, NotFound, StructureMismatch
from ckptcore.formats.exporting import Exported, Progress
from ckptcore.formats.foreign import Tensor
from ckptcore.formats.fresh_folder import fresh_folder
from ckptcore.formats.renames import Names, Renames
from ckptcore.geometry import Box
from ckptcore.names import show_path
from ckptcore.readable import Readable, StoredLeaf
from ckptcore.records import ArrayLeaf
from torchckpt import leaves


def export_dcp(
    source: Readable,
    path: str | os.PathLike[str],
    *,
    component: str,
    prefix: str = "model.",
    names: Names | None = None,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write a component as a DCP checkpoint into the folder `path`, which must be absent or empty.

    `prefix` comes before each name: with `model.` it is loaded into `{"model": model.state_dict()}`. `names` are the rules
    with which `DcpCheckpoint` would read it again (`ckptcore.formats.renames`), applied backwards; a rule to None leaves out.
    Values become objects that torch pickles; their types are Python's own. `progress` is told of bytes as they are read.
    Raises `CallError` for a folder that is not free, and for two leaves with one name; `StructureMismatch`
    for names that `names` does not bring back, and for random keys; `UnsupportedLeaf` for a dtype that
    torch lacks; `DamageError` for bytes that differ from their digests; `StoreError`.
    """
    chosen = _chosen(source, component, prefix, names)
    state = {name: _stand_in(source, component, leaf) for name, leaf in chosen.items()}
    arrays = {name: leaf for name, leaf in chosen.items() if isinstance(leaf.record, ArrayLeaf)}
    with fresh_folder(path) as folder:
        _save(folder, state, _Planner(source, arrays, progress))
    return Exported(len(arrays), sum(_tensor(leaf.record).nbytes for leaf in arrays.values()))


class _Planner(DefaultSavePlanner):
    """Reads a tensor when it is asked for."""

    def __init__(self, source: Readable, arrays: Mapping[str, StoredLeaf], progress: Progress) -> None:
        super().__init__(flatten_state_dict=False)
        self._source, self._arrays, self._progress = source, arrays, progress

    def resolve_data(self, write_item: WriteItem) -> Any:
        """The content of an item: a tensor in host memory, or the bytes of an object."""
        if write_item.type == WriteItemType.BYTE_IO:
            return super().resolve_data(write_item)
        leaf = self._arrays[write_item.index.fqn]
        tensor = _tensor(leaf.record)
        stored = self._source.read([(leaf, [Box.whole(tensor.shape)])])[0][0]
        self._progress(stored.nbytes)
        return leaves.from_numpy(dtypes.from_stored(stored, tensor.dtype), leaf.name)


def _chosen(source: Readable, component: str, prefix: str, names: Names | None) -> dict[str, StoredLeaf]:
    """The leaves to write by their names in the checkpoint."""
    back, forth, found = Renames.back(names), Renames.of(names), dict[str, StoredLeaf]()
    problems: list[str] = []
    for leaf in source.leaves(component).values():
        own, where = ".".join(str(element) for _, element in leaf.record.path), show_path(component, leaf.record.path)
        name = back(own)
        if name is None:
            continue
        other = found.setdefault(prefix + name, leaf)
        if other is not leaf:
            one = show_path(component, other.record.path)
            raise CallError(f"{one} and {where} would both be called {prefix + name!r}: give other names")
        if isinstance(leaf.record, ArrayLeaf) and leaf.record.prng_impl is not None:
            problems.append(f"{where}: a random key, which torch cannot hold; leave it out: names={{{own!r}: None}}")
        elif forth(name) != own:
            problems.append(f"{where}: would be called {name!r}, which `names` reads as {forth(name)!r}")
    if problems:
        raise StructureMismatch(f"component {component!r} of {source.title} cannot be exported:", problems)
    if not found:
        raise NotFound(f"component {component!r} of {source.title} has no leaves to write")
    return found


def _stand_in(source: Readable, component: str, leaf: StoredLeaf) -> Any:
    """What the planner is told of a leaf: a tensor without memory, or the value itself."""
    if not isinstance(leaf.record, ArrayLeaf):
        return source.value(leaf)
    dtype = leaves.torch_dtype(leaf.record.dtype, show_path(component, leaf.record.path))
    return torch.empty(tuple(leaf.record.shape), dtype=dtype, device="meta")


def _tensor(record: Any) -> Tensor:
    return Tensor(record.dtype, tuple(record.shape))


def _save(folder: Path, state: Mapping[str, Any], planner: _Planner) -> None:
    """Let torch write. What it wraps into an error of its own is raised as it was."""
    writer = FileSystemWriter(folder, single_file_per_rank=False, thread_count=1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process is what is meant
            save(dict(state), storage_writer=writer, planner=planner, no_dist=True)
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            if isinstance(cause, CheckpointError | OSError):
                raise cause from None
        raise
