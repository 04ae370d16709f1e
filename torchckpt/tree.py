"""Components as torch programs have them: dicts, lists and tuples of tensors, modules, optimizers, other objects and values.

`walk` finds the nodes; `build` puts new ones in the containers of old ones. Unlike JAX's
trees nothing needs to be registered: whatever is not a plain container is a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ckptcore import nested
from ckptcore.errors import UnsupportedLeaf
from ckptcore.names import Path, PathElement, show_path


class Merged:
    """Several modules, or several optimizers, that share one name space: the parts of a pipeline that one rank holds.

    `Merged(*parts)` as a component gives the leaves of all parts as if they were one object's. Names have to be distinct.
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def walk(component: str, node: Any) -> Iterator[tuple[Path, Any]]:
    """The nodes of a component with their paths, containers taken apart; empty containers and None are nodes.

    Raises `UnsupportedLeaf` for dict keys that are neither text nor an int, and for endless nesting.
    """
    yield from _walk(component, (), node)


def build(node: Any, made: Callable[[Any], Any]) -> Any:
    """`node` with `made(part)` in the place of every node that `walk` gives, in its order. Containers are new, of the same types.

    A `Merged` stays what it is: its parts are filled in place.
    """
    if isinstance(node, Merged):
        for part in node.parts:
            build(part, made)
        return node
    if not _is_container(node):
        return made(node)
    if isinstance(node, dict):
        filled = {key: build(child, made) for key, child in node.items()}
        return filled if type(node) is dict else _like(node, filled)
    filled = [build(child, made) for child in node]
    if hasattr(node, "_fields"):
        return type(node)(*filled)
    return filled if isinstance(node, list) else tuple(filled)


def _walk(component: str, path: Path, node: Any) -> Iterator[tuple[Path, Any]]:
    nested.check_depth(path, where=component)
    if isinstance(node, Merged):
        for part in node.parts:
            yield from _walk(component, path, part)
    elif _is_container(node):
        for element, child in _children(component, path, node):
            yield from _walk(component, (*path, element), child)
    else:
        yield path, node


def _is_container(node: Any) -> bool:
    """Whether a node is taken apart. State dicts of torch are `OrderedDict`s."""
    return isinstance(node, dict | list | tuple) and len(node) > 0 and not hasattr(node, "state_dict")


def _children(component: str, path: Path, node: Any) -> Iterator[tuple[PathElement, Any]]:
    if isinstance(node, dict):
        for key, child in node.items():
            if type(key) not in (str, int):
                above = show_path(component, path)
                raise UnsupportedLeaf(f"{above}: the key {key!r} ({type(key).__name__}) is neither text nor an int")
            yield ("key", key), child
    elif hasattr(node, "_fields"):
        for name in node._fields:
            yield ("attr", name), getattr(node, name)
    else:
        for index, child in enumerate(node):
            yield ("index", index), child


def _like(node: dict[Any, Any], filled: dict[Any, Any]) -> Any:
    """A dict of a subclass with new items: a copy, so that what else it carries comes along."""
    copied = node.copy()
    copied.update(filled)
    return copied
