"""PyTorch's distributed checkpoint (DCP): `save`, and `async_save`.

Tried on two busy cores without a GPU: the CRC-32 of `torch.save` is work that no restore uses; four threads and eight are
alike, faster than two; `async_save` in a process is as fast as in a thread within the noise, and takes another process for
each rank; `cache_staged_state_dict` raises, since it pins memory. DCP flushes its files itself (`sync_files`); the rename of
`.metadata` and the folders are flushed here.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks import on_torch
from benchmarks.peers import durable
from benchmarks.subject import MESHES, Mesh, Saved

THREADS = 4
"""Files that a rank writes at a time."""

WRITER = (
    f"`FileSystemWriter(thread_count={THREADS}, single_file_per_rank=True, sync_files=True)`, "
    "`torch.serialization.set_crc32_options(False)`. No digest, and no CRC-32 of the values, at which `torch.load` never looks. "
    "DCP flushes its files itself; the folders are flushed afterwards, in the time shown."
)


class Sync:
    """`dcp.save`: the training loop waits for the disk."""

    title = "torch DCP"
    settings = f"`dcp.save`, {WRITER}"
    packages = ("torch",)
    meshes: frozenset[Mesh] = frozenset(MESHES)

    def __init__(self) -> None:
        torch.serialization.set_crc32_options(False)
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: on_torch.State = {}

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`."""
        on_torch.join()
        self._size, self._mesh = size, mesh
        self._state = (on_torch.zeros if zeros else on_torch.arrays)(size, mesh)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`."""
        checkpoint = durable.path_of(folder, step)
        started = time.perf_counter()
        save(self._state, storage_writer=_writer(checkpoint), no_dist=not dist.is_initialized())
        _flush_folders(checkpoint)
        total = time.perf_counter() - started
        return Saved(total, total)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`: in place."""
        reader = FileSystemReader(durable.newest(folder))
        load(self._state, storage_reader=reader, no_dist=not dist.is_initialized())

    def check(self) -> None:
        """As `Subject.check`."""
        on_torch.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`."""
        on_torch.leave()


class Async(Sync):
    """`dcp.async_save`: the training loop waits for a copy in memory, and a thread writes it."""

    title = "torch DCP, asynchronous"
    settings = (
        "`dcp.async_save` in a thread, `DefaultStager` without pinned or shared memory, a process group for the writers, "
        f"{WRITER}"
    )

    def __init__(self) -> None:
        super().__init__()
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)
        self._group: Any = None

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`. The thread that writes has a group of its own, or it would disturb the training loop's."""
        super().prepare(size, mesh, zeros=zeros)
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo")

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`."""
        checkpoint = durable.path_of(folder, step)
        started = time.perf_counter()
        written = async_save(
            self._state,
            storage_writer=_writer(checkpoint),
            async_stager=self._stager,
            process_group=self._group,
            no_dist=not dist.is_initialized(),
        )
        blocked = time.perf_counter() - started
        cast("Future[Any]", written).result()  # only a stager in the background makes it anything else
        _flush_folders(checkpoint)
        return Saved(blocked, time.perf_counter() - started)

    def close(self) -> None:
        """As `Subject.close`."""
        self._stager.close()
        super().close()


def _writer(checkpoint: Path) -> FileSystemWriter:
    return FileSystemWriter(checkpoint, single_file_per_rank=True, sync_files=True, thread_count=THREADS)


def _flush_folders(checkpoint: Path) -> None:
    """Rank 0 flushes the folders when all ranks have written, and the others wait for it."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        durable.flush(checkpoint)
    on_torch.barrier()
