"""This project, from JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaxckpt
from benchmarks import on_jax
from benchmarks.peers import ours
from benchmarks.subject import Mesh, Saved


class Jax:
    """`jaxckpt.Checkpointer`."""

    title = "jaxckpt"
    settings = ours.SETTINGS
    packages = ("jaxckpt", "jax", "jaxlib", "tensorstore", "blake3")
    meshes = ours.MESHES

    def __init__(self) -> None:
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: Any = None
        self._saver: jaxckpt.Checkpointer | None = None

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`. The target of a restore is abstract: JAX arrays cannot be written to."""
        self._size, self._mesh = size, mesh
        self._state = on_jax.abstract(size, mesh) if zeros else on_jax.arrays(size, mesh)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`. The first one claims the run as well."""
        return ours.saved(self._opened(folder), step, self._state)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`."""
        self._state = on_jax.wait(ours.restored(self._opened(folder), self._state))

    def check(self) -> None:
        """As `Subject.check`."""
        on_jax.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`."""
        if self._saver is not None:
            self._saver.close()

    def _opened(self, folder: Path) -> jaxckpt.Checkpointer:
        if self._saver is None:
            self._saver = jaxckpt.Checkpointer(folder / "run", derived=ours.DERIVED, on_preemption="ignore")
        return self._saver
