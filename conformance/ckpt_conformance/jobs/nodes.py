"""What an implementation keeps on a node (spec: N-2): the folder of a run in a directory, wherever it puts that."""

from __future__ import annotations

from pathlib import Path

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


def place(node: Path, run: Place) -> NodePlace:
    """The folder of the run in a node's directory. Raises `ValueError` if there is none, or more than one."""
    found = [folder.parent for folder in node.rglob("generations") if folder.is_dir()]
    if len(found) != 1:
        raise ValueError(f"the node {node.name} has the data of {len(found)} runs")
    return NodePlace(found[0], run)
