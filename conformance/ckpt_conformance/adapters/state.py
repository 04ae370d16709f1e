"""The training state of a request: leaves as lists, built into the trees that a framework has, and found in them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ckpt_conformance import fixture
from ckpt_conformance.adapters.answers import Cannot
from ckptcore import digests, dtypes, names, values
from ckptcore.components import PerRank, unwrap

Path = tuple[tuple[str, str | int], ...]
Axes = tuple[tuple[str, ...], ...]
Box = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]
"""Start, stop, and the elements in between, in their logical dtype."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf as one rank has it. Either `value` is the sort of a JSON value, or it is an array of `dtype` and `shape`.

    `sharding`: for each dimension the mesh axes that cut it, the slowest first; None for an array that each process holds
    whole on its host. `content`: the stored name of the array whose elements it has.
    """

    component: str
    path: Path
    name: str
    content: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    sharding: Axes | None = None
    alias: str | None = None
    prng_impl: str | None = None
    value: str | None = None

    def elements(self, step: int, start: Sequence[int] | None = None, stop: Sequence[int] | None = None) -> np.ndarray:
        """The elements of a box, or of all of it, at a step."""
        return fixture.array(self.content, self.dtype, self.shape, step, start=start, stop=stop)


@dataclass(frozen=True)
class State:
    """The components by name, with their scope, and the leaves that one rank has. `partial`: other ranks have more."""

    scopes: Mapping[str, str]
    leaves: tuple[Leaf, ...]
    partial: bool = False

    def only(self, components: Sequence[str] | None) -> State:
        """The state limited to some components; None: all."""
        if components is None:
            return self
        leaves = tuple(leaf for leaf in self.leaves if leaf.component in components)
        return replace(self, scopes={name: self.scopes[name] for name in components if name in self.scopes}, leaves=leaves)

    def build(self, array: Callable[[Leaf], Any], value: Callable[[Leaf], Any]) -> dict[str, Any]:
        """The components, made of what `array` and `value` make of each leaf. Aliases are the very object they name."""
        made = {leaf.name: value(leaf) if leaf.value else array(leaf) for leaf in self.leaves if leaf.alias is None}
        below: dict[str, list[tuple[Path, Any]]] = {name: [] for name in self.scopes}
        for leaf in self.leaves:
            below[leaf.component].append((leaf.path, made[leaf.alias or leaf.name]))
        trees = {name: _nested(items) for name, items in below.items()}
        return {name: PerRank(tree) if self.scopes[name] == "rank" else tree for name, tree in trees.items()}

    def find(self, components: Mapping[str, Any]) -> dict[str, tuple[Leaf, Any]]:
        """What `components` hold at each leaf, by the leaf's name."""
        return {leaf.name: (leaf, _at(unwrap(components[leaf.component])[0], leaf.path)) for leaf in self.leaves}


def parse(told: Mapping[str, Any], rank: int) -> State:
    """The state of a request as `rank` has it."""
    scopes = {name: facts["scope"] for name, facts in told["components"].items()}
    all_leaves = told.get("leaves") or []
    shared = {leaf["name"]: leaf for leaf in all_leaves}
    leaves = [leaf for leaf in all_leaves if leaf.get("ranks") is None or rank in leaf["ranks"]]
    made = tuple(_leaf(leaf, shared, scopes, rank) for leaf in leaves)
    return State(scopes, made, len(leaves) < len(all_leaves))


def _leaf(told: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]], scopes: Mapping[str, str], rank: int) -> Leaf:
    name, component = told["name"], told["component"]
    array = {**shared[told["alias"]], **told} if told.get("alias") else told
    target = told.get("alias") or name
    shape = (told.get("shapes") or {}).get(str(rank)) or told.get("shape") or []
    sharding = array.get("sharding")
    return Leaf(
        component=component,
        path=tuple((kind, value) for kind, value in told["path"]),
        name=name,
        content=names.rank_array_name(rank, target) if scopes[component] == "rank" else target,
        dtype=told.get("dtype") or "",
        shape=tuple(shape),
        sharding=None if sharding is None else tuple(map(_axes, sharding)),
        alias=told.get("alias"),
        prng_impl=told.get("prng_impl"),
        value=told.get("value"),
    )


def _axes(told: str | Sequence[str] | None) -> tuple[str, ...]:
    return (told,) if isinstance(told, str) else tuple(told or ())


def fixture_value(leaf: Leaf, step: int) -> Any:
    """The JSON value of a leaf at a step."""
    return fixture.value(leaf.value or "", leaf.content, step)


def answer(leaf: Leaf, found: Any, boxes: Callable[[Any], Sequence[Box]], *, elements: bool = False) -> dict[str, Any]:
    """What a restore answers for a leaf: `boxes` gives what this process holds of an array, each box once.

    `elements`: those of a binary64 array are told too (TRAINING.md).
    """
    if leaf.value is not None:
        return {"value": values.encode(found, where=leaf.name)}
    told, dtype = [], leaf.dtype
    for start, stop, held in boxes(found):
        dtype = dtypes.name_of(held.dtype, where=leaf.name)
        digest = digests.digest(dtypes.to_stored(np.ascontiguousarray(held).reshape(held.shape)))
        box: dict[str, Any] = {"start": list(start), "stop": list(stop), "digest": digest}
        if elements and dtype == "float64":
            box["elements"] = [element.hex() for element in held.ravel().tolist()]
        told.append(box)
    return {"dtype": dtype, "boxes": told}


def whole(array: np.ndarray) -> list[Box]:
    """A host array as its one box."""
    return [((0,) * array.ndim, array.shape, array)]


def _nested(items: Sequence[tuple[Path, Any]]) -> Any:
    """The containers that the paths tell: dicts by key, lists by index."""
    if len(items) == 1 and not items[0][0]:
        return items[0][1]
    below: dict[tuple[str, str | int], list[tuple[Path, Any]]] = {}
    for path, item in items:
        below.setdefault(path[0], []).append((path[1:], item))
    trees = {element: _nested(rest) for element, rest in below.items()}
    if all(kind == "key" for kind, _ in trees):
        return {key: tree for (_, key), tree in trees.items()}
    if sorted(trees) != [("index", number) for number in range(len(trees))]:
        raise Cannot(f"a container with the elements {sorted(trees, key=repr)}: lists have each index from 0 on")
    return [trees[("index", number)] for number in range(len(trees))]


def _at(tree: Any, path: Path) -> Any:
    for _, element in path:
        tree = tree[element]
    return tree
