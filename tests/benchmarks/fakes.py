"""Subjects that need no framework, and that fail in all the ways there are."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks import state
from benchmarks.subject import Mesh, Saved

RANK = os.environ.get("RANK", "0")


class Plain:
    """One file for each step and rank."""

    title = "Plain"
    settings = "nothing"
    packages: tuple[str, ...] = ("numpy",)
    meshes: frozenset[Mesh] = frozenset({"one"})

    def __init__(self) -> None:
        self._data = b""
        self._size = ""

    def prepare(self, size: str, mesh: Mesh, *, zeros: bool = False) -> None:  # noqa: ARG002 - the same on all of them
        self._size = size
        self._data = b"" if zeros else self._expected()

    def save(self, folder: Path, step: int) -> Saved:
        started = time.perf_counter()
        (folder / f"{step}-{RANK}").write_bytes(self._data)
        return Saved(0.0, time.perf_counter() - started)

    def restore(self, folder: Path) -> None:
        self._data = (folder / f"2-{RANK}").read_bytes()

    def check(self) -> None:
        if self._data != self._expected():
            raise state.Different("other bytes")

    def close(self) -> None:
        pass

    def _expected(self) -> bytes:
        return b"".join(values.tobytes() for _, _, values in state.each(self._size))


class Absent(Plain):
    """It needs a package that is not installed."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'nowhere'")


class Several(Plain):
    """On several processes: the packages say so."""

    title = "Several"
    packages = ("torch", "numpy")
    meshes = frozenset({"1d", "2d"})


class Refuses(Plain):
    """Its save is refused on one rank."""

    meshes = frozenset({"1d"})
    packages = ("torch",)

    def save(self, folder: Path, step: int) -> Saved:
        if RANK == "2":
            raise ValueError(f"no room in {folder}/x\nand more")
        return super().save(folder, step)


class Dies(Plain):
    """Its process ends in the middle of a restore."""

    def restore(self, folder: Path) -> None:
        sys.stderr.write(f"the last word from {folder}\n")
        os._exit(7)


class Wrong(Plain):
    """Its restore gives other bytes, which nobody but `check` sees."""

    def restore(self, folder: Path) -> None:
        super().restore(folder)
        self._data = self._data[:-1] + b"?"


class Deaf(Plain):
    """Its save never ends."""

    def save(self, folder: Path, step: int) -> Saved:
        time.sleep(3600)
        return super().save(folder, step)
