"""Pytrees as leaves with stable paths, and back.

A leaf is whatever JAX calls one, and also `None` and every node without children, so that
they survive. Flax NNX objects are seen through `nnx.state`; the `.value` that a `Variable`
adds to JAX's paths is left out, so that a module, its `nnx.State` and its pure dict have the
same paths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ckptcore import nested
from ckptcore.errors import UnsupportedLeaf
from ckptcore.names import Path, PathElement, show_path

Leaf = tuple[Path, Any]


@dataclass(frozen=True)
class Tree:
    """A flattened tree. `build` takes one new leaf for each of `leaves`, in their order."""

    leaves: Sequence[Leaf]
    build: Callable[[Sequence[Any]], Any]


def flatten(component: str, tree: Any) -> Tree:
    """Flatten a component. Raises `UnsupportedLeaf` for dict keys that are neither text nor int, and for endless nesting.

    `build` returns containers like those of `tree`; NNX objects are updated in place.
    """
    return _flatten(component, (), tree)


def is_empty_node(leaf: Any) -> bool:
    """Whether `leaf` is None or a pytree node without children."""
    children = _children(leaf)
    return children is not None and not children


def _flatten(component: str, path: Path, tree: Any) -> Tree:
    """Level by level: JAX does not survive containers within themselves, and does not say where it stopped."""
    nested.check_depth(path, where=component)
    try:
        children = _children(tree)
    except ValueError as error:
        what = f"{show_path(component, path)}: JAX cannot flatten this {type(tree).__name__}"
        raise UnsupportedLeaf(f"{what} ({error}); the keys of a dict must be all text or all int") from error
    if not children or _is_nnx(tree):
        return _part(component, path, tree)
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_below_root())
    parts = [_flatten(component, (*path, *_path(component, path, keys)), node) for keys, node in pairs]

    def build(leaves: Sequence[Any]) -> Any:
        rest = iter(leaves)
        return structure.unflatten([part.build([next(rest) for _ in part.leaves]) for part in parts])

    return Tree([leaf for part in parts for leaf in part.leaves], build)


def _part(component: str, path: Path, node: Any) -> Tree:
    """A leaf, or an NNX object, which is flattened in its own way."""
    nnx = _nnx()
    if nnx is not None and isinstance(node, nnx.Variable):
        return _variable(component, path, node)
    if nnx is not None and isinstance(node, nnx.Pytree):
        state = _flatten(component, path, nnx.state(node))

        def update(leaves: Sequence[Any]) -> Any:
            nnx.update(node, state.build(leaves))
            return node

        return Tree(state.leaves, update)
    return Tree([(path, node)], lambda leaves: leaves[0])


def _variable(component: str, path: Path, variable: Any) -> Tree:
    """A Variable has one child, its value, which may be a tree."""
    children, structure = jax.tree_util.tree_flatten(variable, is_leaf=_below_root())
    values = [_flatten(component, path, child) for child in children]

    def build(leaves: Sequence[Any]) -> Any:
        rest = iter(leaves)
        return structure.unflatten([value.build([next(rest) for _ in value.leaves]) for value in values])

    return Tree([leaf for value in values for leaf in value.leaves], build)


def _below_root() -> Callable[[Any], bool]:
    """An `is_leaf` that stops at whatever JAX asks about after the root: a root may be its own child."""
    asked = iter([False])
    return lambda _: next(asked, True)


def _is_nnx(node: Any) -> bool:
    nnx = _nnx()
    return nnx is not None and isinstance(node, nnx.Variable | nnx.Pytree)


def _children(node: Any) -> Sequence[Any] | None:
    """A node's children, or None for a leaf."""
    level = jax.tree_util.default_registry.flatten_one_level(node)
    return None if level is None else tuple(level[0])


def _nnx() -> Any:
    """`flax.nnx` if the program uses it: only then can one of its objects be in a tree."""
    return sys.modules.get("flax.nnx")


def _path(component: str, prefix: Path, keys: Sequence[Any]) -> Iterator[PathElement]:
    for depth, key in enumerate(keys):
        element = _element(key)
        if element is None:
            above = show_path(component, (*prefix, *_path(component, prefix, keys[:depth])))
            kind = type(getattr(key, "key", key)).__name__
            raise UnsupportedLeaf(f"{above}: the key {key} ({kind}) is neither text nor an int; a checkpoint cannot name it")
        yield element


def _element(key: Any) -> PathElement | None:
    """A JAX key as a path element; None if the format has no such key."""
    if isinstance(key, DictKey) and type(key.key) in {str, int}:
        return ("key", key.key)
    if isinstance(key, SequenceKey):
        return ("index", key.idx)
    if isinstance(key, GetAttrKey):
        return ("attr", key.name)
    if isinstance(key, FlattenedIndexKey) and isinstance(key.key, int):
        return ("index", key.key)
    return None
