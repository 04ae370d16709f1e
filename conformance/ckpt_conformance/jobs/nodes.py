"""What an implementation keeps on nodes (spec: chapter 16): the folder of a run in a directory, wherever it puts that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ckpt_conformance.jobs import damage
from ckpt_conformance.oracle import nodestore
from ckpt_conformance.place import FilePlace, Place


class NodePlace(FilePlace):
    """The folder of a run on a node. Layouts, which tell what cells there are, lie in the run's own place alone (N-1)."""

    def __init__(self, root: Path, run: Place) -> None:
        super().__init__(root)
        self._run = run

    def keys(self, prefix: str = "") -> list[str]:
        """See `Place.keys`."""
        return (self._run if "/layouts/" in prefix else super()).keys(prefix)

    def read(self, key: str) -> bytes | None:
        """See `Place.read`."""
        return (self._run if "/layouts/" in key else super()).read(key)


class WatchedNode:
    """A node and its directory. What the suite itself has damaged there is excused for as long as it is on the node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[str] = set()

    def damage(self, run: Place, ops: Sequence[Mapping[str, Any]]) -> None:
        """Damage what the node has of a run. Raises `ValueError`."""
        self._damaged |= set(damage.apply(place(self.folder, run), ops))

    def has(self, run: Place, key: str) -> bool:
        """Whether it has an object of a run, which may have nothing here yet."""
        return any(folder.size(key) is not None for folder in places(self.folder, run))

    def survey(self, run: Place, generations: Collection[str]) -> dict[str, Any]:
        """What it has of some generations of a run, as JSON (SCENARIOS.md, "Store")."""
        found = places(self.folder, run)
        return {name: nodestore.survey(found[0], name) if found else {"whole": [], "half": []} for name in generations}

    def problems(self, runs: Sequence[Place]) -> Iterator[str]:
        """What the specification does not allow to lie there."""
        for folder in places(self.folder, None):
            yield from (f"on the node {self.folder.name}: {found}" for found in nodestore.faults(folder, runs, self._damaged))

    def markers(self) -> list[bytes]:
        """The markers of its node stores."""
        return [marker for folder in places(self.folder, None) if (marker := folder.read(nodestore.MARKER)) is not None]


def places(node: Path, run: Place | None) -> list[FilePlace]:
    """The folders of runs in a node's directory, each with the layouts of `run`, if that is given."""
    found = sorted(folder.parent for folder in node.rglob("generations") if folder.is_dir())
    return [FilePlace(folder) if run is None else NodePlace(folder, run) for folder in found]


def place(node: Path, run: Place) -> FilePlace:
    """The folder of the run in a node's directory. Raises `ValueError` if there is none, or more than one."""
    found = places(node, run)
    if len(found) != 1:
        raise ValueError(f"the node {node.name} has the data of {len(found)} runs")
    return found[0]


def problems(watched: Mapping[str, WatchedNode], runs: Sequence[Place]) -> list[str]:
    """What is wrong on nodes, by their names; between them too: no two have the same marker (N-12)."""
    found = [problem for node in watched.values() for problem in node.problems(runs)]
    marked = [(name, marker) for name, node in watched.items() for marker in node.markers()]
    pairs = [(one, other) for (one, first), (other, second) in combinations(marked, 2) if first == second and one != other]
    return found + [f"the nodes {one} and {other} have the same marker (N-12)" for one, other in pairs]
