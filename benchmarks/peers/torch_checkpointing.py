"""`torch_checkpointing`: saves from a process of its own, over shared memory.

As it comes it cannot save to ext4: it opens its files with `O_DIRECT` and then writes pieces of any size, which that refuses
(`EINVAL`). So direct I/O is off here. It flushes nothing: its files are flushed here.

Several ranks need CUDA: to be restored on another mesh an item needs a resharder, and then the ranks exchange metadata before the
first save, in tensors that 0.1.1 makes on `cuda` whatever the process group is (`Torch not compiled with CUDA enabled`).
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch_checkpointing import CheckpointManager
from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig
from torch_checkpointing.config import AsyncCheckpointSaverConfig, CheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from benchmarks import on_torch, state
from benchmarks.peers import durable
from benchmarks.subject import Mesh, Saved


class Subject:
    """`CheckpointManager`, saving asynchronously."""

    title = "torch_checkpointing"
    settings = (
        "`CheckpointManager`, asynchronous: copied to shared memory that `prewarm_staging` has made ready, written by another "
        "process, whose own memory is not in the peak shown. Parameters and either moment are an item each; "
        "`file_write_max_threads=3`; `use_direct_io=False`, since its direct writes fail on ext4; "
        "`torch.serialization.set_crc32_options(False)` in the process that writes. The training loop goes on when "
        "`manager.lock()` lets it change the state. No digest, and no CRC-32 of the values, at which `torch.load` never looks. "
        "It flushes nothing: all files and folders are flushed afterwards, several at a time, in the time shown. "
        "One process only: several need CUDA to exchange what a restore on another mesh needs."
    )
    packages = ("torch_checkpointing", "torch", "safetensors")
    meshes: frozenset[Mesh] = frozenset({"one"})

    def __init__(self) -> None:
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: on_torch.State = {}
        self._manager: CheckpointManager | None = None

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`. To save, it starts its process and makes the shared memory, as a job does before it trains."""
        self._size, self._mesh = size, mesh
        self._state = (on_torch.zeros if zeros else on_torch.arrays)(size, mesh)
        if not zeros:
            self._opened(_in_the_background()).prewarm_staging(self._state)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`."""
        manager, checkpoint = self._opened(_in_the_background()), durable.path_of(folder, step)
        started = time.perf_counter()
        written = manager.save(str(checkpoint), self._state)
        with manager.lock():
            blocked = time.perf_counter() - started
        if written is not None:
            written.result()
        durable.flush(checkpoint)
        return Saved(blocked, time.perf_counter() - started)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`: in place."""
        self._opened(SyncCheckpointSaverConfig()).load(durable.newest(folder), into=self._state, strict=True)

    def check(self) -> None:
        """As `Subject.check`."""
        on_torch.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`."""
        if self._manager is not None:
            self._manager.close()

    def _opened(self, saving: CheckpointSaverConfig) -> CheckpointManager:
        if self._manager is None:
            self._manager = CheckpointManager(_config(saving))
        return self._manager


def _config(saving: CheckpointSaverConfig) -> CheckpointManager.Config:
    return CheckpointManager.Config(
        save=saving,
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
        subprocess_init_fn=torch.serialization.set_crc32_options,
        subprocess_init_args=(False,),
    )


def _in_the_background() -> AsyncCheckpointSaverConfig:
    return AsyncCheckpointSaverConfig(writer_config=CheckpointWriterConfig(file_write_max_threads=len(state.COMPONENTS)))
