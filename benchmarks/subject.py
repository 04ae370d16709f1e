"""What a subject of the comparison is: something that saves and restores the arrays of `benchmarks.state`.

Each operation runs in processes of its own. A JAX subject is one process with `DEVICES` CPU devices (`XLA_FLAGS` is set before
anything is imported). A torch subject runs in `processes(...)` of them, which find `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
`MASTER_PORT` in their environment, as `torchrun` sets them; `prepare` joins the process group where there is more than one.

| mesh | JAX | torch |
| --- | --- | --- |
| `one` | one device | one process, plain tensors |
| `1d` | 8 devices, the first axis that divides | 4 ranks, DTensor, `Shard(0)` |
| `2d` | 4 × 2 devices, the first axes that divide | 2 × 2 ranks, `Shard(0)` and `Shard(1)` |
| `transposed` | 8 devices, the last axis that divides | 4 ranks, `Shard(last)` |

`benchmarks.on_jax` and `benchmarks.on_torch` make the arrays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, cast

from benchmarks.peers import SUBJECTS

Mesh = Literal["one", "1d", "2d", "transposed"]
MESHES: tuple[Mesh, ...] = ("one", "1d", "2d", "transposed")
DEVICES = 8
"""CPU devices of a JAX process."""
RANKS = 4
"""Processes of a torch job, but for `one`."""


@dataclass(frozen=True)
class Saved:
    """Seconds from the call of a save: until the training loop goes on, and until the checkpoint is durable and visible."""

    blocked: float
    total: float


class Subject(Protocol):
    """One way to save and restore, as a person would use it. Its class is called without arguments, once in each process."""

    title: str
    """For people: `Orbax, uncompressed`."""
    settings: str
    """In words: what was set, or that nothing was."""
    packages: tuple[str, ...]
    """The distributions whose versions matter; `torch` among them makes it a torch subject."""
    meshes: frozenset[Mesh]
    """What it can do."""

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:
        """Make the state, in the framework's form, on the mesh; with `zeros` the target of a restore. Not timed.

        A target in host memory has been written to (`np.zeros` alone takes no memory until it is).
        """
        ...

    def save(self, folder: Path, step: int) -> Saved:
        """Save what was prepared. Called once for each of steps 1 and 2, with the same folder, in the same process.

        Whatever does not flush its files to the disk by itself is followed by an fsync of them, inside of `total`.
        """
        ...

    def restore(self, folder: Path) -> None:
        """Restore the newest of `folder` into the prepared target. Returns when all bytes are in place."""
        ...

    def check(self) -> None:
        """Raise `benchmarks.state.Different` unless what was restored is what `benchmarks.state` makes. Not timed."""
        ...

    def close(self) -> None:
        """End its threads and its process group."""
        ...


def load(name: str) -> Subject:
    """The subject of that name, with whatever it imports; `module:class` is one that has no name."""
    module, _, kind = SUBJECTS.get(name, name).partition(":")
    return cast("Subject", getattr(import_module(module), kind)())


def processes(packages: Sequence[str], mesh: Mesh) -> int:
    """How many processes such a subject runs in."""
    return RANKS if "torch" in packages and mesh != "one" else 1
