"""safetensors: one file of tensors. It has no sharding and no background save."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks import on_torch
from benchmarks.peers import durable
from benchmarks.subject import Mesh, Saved

FILE = "state.safetensors"


class Subject:
    """`save_file`, and `safe_open` to read tensor by tensor into those that are there."""

    title = "safetensors"
    settings = (
        "`save_file` of all tensors, then an fsync of the file and the folders, in the time shown; "
        "`safe_open`, each tensor copied into the one that is there: it maps the file, whose pages are in the peak of a restore. "
        "No digest, nothing in the background."
    )
    packages = ("safetensors", "torch")
    meshes: frozenset[Mesh] = frozenset({"one"})

    def __init__(self) -> None:
        self._size = ""
        self._mesh: Mesh = "one"
        self._state: on_torch.State = {}

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """As `Subject.prepare`."""
        self._size, self._mesh = size, mesh
        self._state = (on_torch.zeros if zeros else on_torch.arrays)(size, mesh)

    def save(self, folder: Path, step: int) -> Saved:
        """As `Subject.save`."""
        checkpoint = durable.path_of(folder, step)
        started = time.perf_counter()
        checkpoint.mkdir(parents=True)
        save_file(self._flat(), checkpoint / FILE)
        durable.flush(checkpoint)
        total = time.perf_counter() - started
        return Saved(total, total)

    def restore(self, folder: Path) -> None:
        """As `Subject.restore`: in place."""
        with safe_open(durable.newest(folder) / FILE, framework="pt") as file:
            for name, tensor in self._flat().items():
                tensor.copy_(file.get_tensor(name))

    def check(self) -> None:
        """As `Subject.check`."""
        on_torch.check(self._size, self._mesh, self._state)

    def close(self) -> None:
        """As `Subject.close`: there is nothing to end."""

    def _flat(self) -> dict[str, torch.Tensor]:
        return {f"{component}/{name}": tensor for component, tensors in self._state.items() for name, tensor in tensors.items()}
