"""Orbax: as it comes, and with the settings that its guide and our measurements say are faster on a local disk.

What it flushes itself (seen with `strace`): the data files and manifests that TensorStore writes, and their folders. What it does
not: its own JSON files, and the rename that makes a checkpoint visible. Those are a few small files.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from benchmarks import on_jax
from benchmarks.peers import durable
from benchmarks.subject import MESHES, Mesh, Saved

FILE_BYTES = 256 << 20
"""At which OCDBT begins another data file, in the tuned form."""

NO_DIGESTS = (
    "No digest of the values: OCDBT has CRC-32C over its manifest and index only. "
    "TensorStore flushes the data itself; the other files and the rename are flushed afterwards, in the time shown."
)


class AsItComes:
    """What `StandardCheckpointer()` is: it saves in the background."""

    title = "Orbax, as it comes"
    settings = (
        "as `StandardCheckpointer()` comes: OCDBT, Zarr 2, zstd level 1, data files of up to 2 GiB, saving in the background. "
        f"{NO_DIGESTS}"
    )
    packages = ("orbax-checkpoint", "jax", "jaxlib", "tensorstore")
    meshes: frozenset[Mesh] = frozenset(MESHES)

    def __init__(self) -> None:
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: Any = None
        self._saver = self._opened()

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`. Orbax restores into new arrays, so a target is their shapes and shardings."""
        self._size, self._mesh = size, mesh
        self._state = (on_jax.abstract if zeros else on_jax.arrays)(size, mesh)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`."""
        checkpoint = durable.path_of(folder, step)
        started = time.perf_counter()
        self._begin(checkpoint)
        blocked = time.perf_counter() - started
        self._saver.wait_until_finished()
        durable.flush(checkpoint)
        return Saved(blocked, time.perf_counter() - started)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`."""
        self._state = on_jax.wait(self._restored(durable.newest(folder)))

    def check(self) -> None:
        """As `Subject.check`."""
        on_jax.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`."""
        self._saver.close()

    def _opened(self) -> ocp.AsyncCheckpointer:
        return ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def _begin(self, checkpoint: Path) -> None:
        self._saver.save(checkpoint, args=ocp.args.StandardSave(self._state))

    def _restored(self, checkpoint: Path) -> Any:
        return self._saver.restore(checkpoint, args=ocp.args.StandardRestore(self._state))


class Tuned(AsItComes):
    """`AsyncCheckpointer` of a `PyTreeCheckpointHandler`, without compression."""

    title = "Orbax, tuned"
    settings = (
        "`AsyncCheckpointer(PyTreeCheckpointHandler(use_ocdbt=True, use_compression=False))`, "
        f"`ocdbt_target_data_file_size` of {FILE_BYTES >> 20} MiB. {NO_DIGESTS}"
    )

    def _opened(self) -> ocp.AsyncCheckpointer:
        return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_compression=False))

    def _begin(self, checkpoint: Path) -> None:
        self._saver.save(checkpoint, args=ocp.args.PyTreeSave(self._state, ocdbt_target_data_file_size=FILE_BYTES))

    def _restored(self, checkpoint: Path) -> Any:
        how = ocp.checkpoint_utils.construct_restore_args(self._state)
        return self._saver.restore(checkpoint, args=ocp.args.PyTreeRestore(self._state, restore_args=how))
