"""This project, from PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torchckpt
from benchmarks import on_torch
from benchmarks.peers import ours
from benchmarks.subject import Mesh, Saved


class Torch:
    """`torchckpt.Checkpointer`. One of them makes all saves: the memory of a snapshot serves the next one."""

    title = "torchckpt"
    settings = ours.SETTINGS
    packages = ("jaxckpt", "torch", "tensorstore", "blake3")
    meshes = ours.MESHES

    def __init__(self) -> None:
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: Any = None
        self._saver: torchckpt.Checkpointer | None = None

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`."""
        on_torch.join()
        self._size, self._mesh = size, mesh
        self._state = (on_torch.zeros if zeros else on_torch.arrays)(size, mesh)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`. The first one claims the run as well."""
        return ours.saved(self._opened(folder), step, self._state)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`: in place."""
        ours.restored(self._opened(folder), self._state)

    def check(self) -> None:
        """As `Subject.check`."""
        on_torch.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`."""
        if self._saver is not None:
            self._saver.close()
        on_torch.leave()

    def _opened(self, folder: Path) -> torchckpt.Checkpointer:
        if self._saver is None:
            self._saver = torchckpt.Checkpointer(folder / "run", derived=ours.DERIVED, on_preemption="ignore")
        return self._saver
