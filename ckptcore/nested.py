"""Nested dicts and lists: from leaves and their paths, and from a state to its leaves. Pure.

This is the form in which a checkpoint comes back when no target says which containers it
had: mapping keys and attributes become dict keys, sequence indexes a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ckptcore.errors import InvalidRecord, UnsupportedLeaf
from ckptcore.names import Path, PathElement, show_path

BYTES: PathElement = ("attr", "$bytes")
"""The last path element of a bytes object that is too long for a value: its leaf is a uint8 array."""
MAX_DEPTH = 128
"""How many containers deep a leaf may lie. What lies deeper is a mistake, most likely a container within itself."""


class _Node(dict[PathElement, Any]):
    """A container under construction; tells it from a leaf that is a dict."""


def build(leaves: Mapping[Path, Any], *, where: str) -> Any:
    """The nested tree of `leaves`; `where` names the component in errors.

    A leaf at the empty path is the tree itself. Empty nodes are leaves (`{}`, `[]`, `()`, None)
    and come back as they are. Indexes that are not 0, 1, 2, … (a part of a list)
    become int keys. Raises `InvalidRecord` when two leaves are in each other's way.
    """
    root = _Node()
    for path, leaf in leaves.items():
        _insert(root, (("key", ""), *path), leaf, where)
    return _finish(root[("key", "")], where, ()) if root else {}


def split(state: Any, is_array: Callable[[Any], bool], *, where: str) -> list[tuple[Path, Any]]:
    """The leaves of a plain state: arrays, and the largest parts that hold no array, as one value each.

    Only dicts, lists and tuples that hold an array somewhere are taken apart, so that values
    keep their exact containers. (A tuple with an array inside comes back as a list, a numpy scalar as a 0-d array.)
    Raises `UnsupportedLeaf` for a dict key beside an array that is neither text nor an int, and beyond `MAX_DEPTH`.
    """
    return _split(state, (), is_array, where) or [((), state)]


def check_depth(path: Path, *, where: str) -> None:
    """Raise `UnsupportedLeaf` if `path`, below the component `where`, is longer than `MAX_DEPTH`."""
    if len(path) > MAX_DEPTH:
        raise UnsupportedLeaf(f"{show_path(where, path[:8])}…: nested deeper than {MAX_DEPTH} levels, or within itself")


def _insert(node: _Node, path: Path, leaf: Any, where: str) -> None:
    for element in path[:-1]:
        node = node.setdefault(element, _Node())
        if not isinstance(node, _Node):
            raise InvalidRecord(f"{show_path(where, path[1:])}: another leaf is on its path")
    if path[-1] in node:
        raise InvalidRecord(f"{show_path(where, path[1:])}: there are two leaves, or a leaf and a container")
    node[path[-1]] = leaf


def _finish(node: Any, where: str, path: Path) -> Any:
    if not isinstance(node, _Node):
        return node
    if list(node) == [BYTES]:
        return _bytes(node[BYTES], where, path)
    children = {element: _finish(child, where, (*path, element)) for element, child in node.items()}
    if all(kind == "index" for kind, _ in children) and sorted(key for _, key in children) == list(range(len(children))):
        return [children[("index", index)] for index in range(len(children))]
    plain = {key: child for (_, key), child in children.items()}
    if len(plain) != len(children):
        raise InvalidRecord(f"{show_path(where, path)}: a key, an attribute or an index have the same name")
    return plain


def _bytes(leaf: Any, where: str, path: Path) -> bytes:
    if not isinstance(leaf, np.ndarray) or leaf.dtype != np.uint8:
        raise InvalidRecord(f"{show_path(where, path)}: long bytes are stored as a uint8 array, this is {type(leaf).__name__}")
    return leaf.tobytes()


def _split(node: Any, path: Path, is_array: Callable[[Any], bool], where: str) -> list[tuple[Path, Any]] | None:
    """The leaves below `node`, or None when no array is among them."""
    if is_array(node):
        return [(path, node)]
    check_depth(path, where=where)
    parts = [(below, child, _split(child, below, is_array, where)) for below, child in _children(node, path)]
    if all(leaves is None for _, _, leaves in parts):
        return None
    leaves: list[tuple[Path, Any]] = []
    for below, child, found in parts:
        kind, key = below[-1]
        if kind == "key" and type(key) not in {str, int}:
            raise UnsupportedLeaf(f"{show_path(where, path)}: the key {key!r} is neither text nor an int")
        leaves.extend(found or [(below, child)])
    return leaves


def _children(node: Any, path: Path) -> Sequence[tuple[Path, Any]]:
    if type(node) is dict:
        return [((*path, ("key", key)), child) for key, child in node.items()]
    if type(node) in {list, tuple}:
        return [((*path, ("index", index)), child) for index, child in enumerate(node)]
    return []
