"""The leaves of a component as a tree of containers, down to a depth. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ckptcore.inspect.difference import nbytes
from ckptcore.names import PathElement, show_path
from ckptcore.readable import StoredLeaf
from ckptcore.records import ArrayLeaf


@dataclass
class Node:
    """A container or a leaf. `leaves` and `bytes` are of all that is below; an alias has no bytes of its own."""

    label: str
    leaf: StoredLeaf | None = None
    children: dict[PathElement, Node] = field(default_factory=dict)
    leaves: int = 0
    bytes: int = 0

    def lines(self, depth: int | None, prefix: str = "") -> Iterator[tuple[str, Node]]:
        """What lies below, a line each: the branches before its label, and the node. Containers `depth` deep stay shut."""
        nodes = list(self.children.values()) if depth is None or depth > 0 else []
        for node in nodes:
            last = node is nodes[-1]
            yield f"{prefix}{'└─ ' if last else '├─ '}", node
            yield from node.lines(None if depth is None else depth - 1, f"{prefix}{'   ' if last else '│  '}")


def outline(component: str, leaves: Iterable[StoredLeaf]) -> Node:
    """The tree of a component's leaves."""
    root = Node(component)
    for leaf in leaves:
        size = own_bytes(leaf)
        node = root
        node.leaves, node.bytes = node.leaves + 1, node.bytes + size
        for element in leaf.record.path:
            node = node.children.setdefault(element, Node(show_path("", (element,)).lstrip(".")))
            node.leaves, node.bytes = node.leaves + 1, node.bytes + size
        node.leaf = leaf
    return root


def own_bytes(leaf: StoredLeaf) -> int:
    """Bytes of a leaf's own elements: none of an alias."""
    return 0 if isinstance(leaf.record, ArrayLeaf) and leaf.record.alias is not None else nbytes(leaf)
