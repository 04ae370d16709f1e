"""One process of a test of the peers: `python -m tests.benchmarks.round_trips FOLDER NAME…`.

For each mesh that a peer claims for so many processes: what is saved there is restored there and on the next one, and is right;
what is saved after one value has changed is found to be wrong.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.state import Different
from benchmarks.subject import MESHES, Mesh, Saved, Subject, load, processes

SIZE = "smoke"
COMPONENT, NAME = "nu", "h01.mlp.out.bias"


class Made:
    """All subjects of this process. They are closed together, at its end: closing one ends the process group."""

    def __init__(self) -> None:
        self._subjects: list[Subject] = []

    def new(self, name: str) -> Any:
        subject = load(name)
        self._subjects.append(subject)
        return subject

    def prepared(self, name: str, mesh: Mesh, *, zeros: bool = False) -> Any:
        subject = self.new(name)
        subject.prepare(SIZE, mesh, zeros=zeros)
        return subject

    def close(self) -> None:
        for subject in self._subjects:
            subject.close()


def claimed(subject: Subject, ranks: int) -> list[Mesh]:
    """The meshes of a subject that take so many processes."""
    return [mesh for mesh in MESHES if mesh in subject.meshes and processes(subject.packages, mesh) == ranks]


def saved(subject: Subject, folder: Path, step: int) -> None:
    """Save, in times that can be."""
    times = subject.save(folder, step)
    assert 0 < times.blocked <= times.total, times
    assert isinstance(times, Saved)


def refused(subject: Subject) -> bool:
    """Whether its check finds the value that has changed."""
    try:
        subject.check()
    except Different as different:
        return f"{COMPONENT}/{NAME}" in str(different)
    return False


def round_trip(made: Made, name: str, folder: Path, mesh: Mesh, other: Mesh) -> None:
    saver = made.prepared(name, mesh)
    saved(saver, folder, 1)
    for target in (mesh, other):
        restorer = made.prepared(name, target, zeros=True)
        restorer.restore(folder)
        restorer.check()
    saver._state[COMPONENT][NAME] = saver._state[COMPONENT][NAME] + 1
    saved(saver, folder, 2)
    restorer = made.prepared(name, mesh, zeros=True)
    restorer.restore(folder)
    assert refused(restorer), f"{mesh}: a changed value was not found"


def run(folder: Path, names: list[str]) -> None:
    made = Made()
    for name in names:
        meshes = claimed(made.new(name), int(os.environ["WORLD_SIZE"]))
        for index, mesh in enumerate(meshes):
            round_trip(made, name, folder / name / mesh, mesh, meshes[(index + 1) % len(meshes)])
            sys.stdout.write(f"{name} {mesh}\n")
    made.close()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
