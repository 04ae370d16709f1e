"""Layouts: names, grids and the rules that a schema cannot say (spec: L-16 to L-21, R-35 to R-40, A-1 to A-13)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt_conformance.oracle.elements import ELEMENTS

Leaf = Mapping[str, Any]
Fault = tuple[str, str]
"""A clause, and what breaks it."""

_ESCAPED = re.compile(r"[%/\\\x00-\x1f\x7f]")
_MAX_NAME = 1024
_MAX_CELLS = 2**20
_MAX_ELEMENTS = 2**53 - 1
_COMPARED = ("kind", "path", "name", "dtype", "stored_dtype", "shape", "chunk_shape", "cuts", "alias", "weak_type", "prng_impl")


@dataclass(frozen=True)
class Cell:
    """A box of an array's grid: its places along the dimensions, and its bounds."""

    places: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return tuple(last - first for first, last in zip(self.start, self.stop, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        """It as an index of the array."""
        return tuple(slice(first, last) for first, last in zip(self.start, self.stop, strict=True))


def layout_name(component: str, path: Sequence[Sequence[Any]]) -> str:
    """The name that a path gives (L-17)."""
    elements = (_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(element)) for _, element in path)
    return ".".join([component, *elements])


def is_array(leaf: Leaf) -> bool:
    """Whether a leaf is an array with cells of its own or the alias of one."""
    return leaf["kind"] == "array"


def is_stored(leaf: Leaf) -> bool:
    """Whether a leaf is an array that is no alias."""
    return is_array(leaf) and leaf.get("alias") is None


def edges(leaf: Leaf) -> list[list[int]]:
    """For each dimension the boundaries of the cells, from 0 to the extent (A-3, A-4)."""
    if leaf.get("cuts") is not None:
        return [list(cuts) for cuts in leaf["cuts"]]
    sizes = zip(leaf["shape"], leaf["chunk_shape"], strict=True)
    return [[*range(0, extent, chunk), extent] if extent else [0] for extent, chunk in sizes]


def count(leaf: Leaf) -> int:
    """The number of cells of a stored array."""
    if leaf.get("cuts") is not None:
        return math.prod(len(cuts) - 1 for cuts in leaf["cuts"])
    return math.prod(-(-extent // chunk) for extent, chunk in zip(leaf["shape"], leaf["chunk_shape"], strict=True))


def cells(leaf: Leaf) -> Iterator[Cell]:
    """The cells of a stored array in grid order (A-2)."""
    along = [list(itertools.pairwise(cuts)) for cuts in edges(leaf)]
    for places in itertools.product(*(range(len(spans)) for spans in along)):
        bounds = [along[axis][place] for axis, place in enumerate(places)]
        yield Cell(places, tuple(first for first, _ in bounds), tuple(last for _, last in bounds))


def nbytes(leaf: Leaf, cell: Cell) -> int:
    """The logical bytes of a cell (D-3)."""
    return math.prod(cell.shape) * ELEMENTS[leaf["dtype"]].dtype.itemsize


def agree(one: Leaf, other: Leaf) -> bool:
    """Whether two ranks' views of one leaf are the same, but for what may differ (P-35.5)."""
    return all(one.get(field) == other.get(field) for field in _COMPARED)


def nested(leaves: Sequence[Leaf]) -> tuple[str, str] | None:
    """The names of two leaves of which one's path begins with the whole path of the other (P-35.5)."""
    paths = {tuple(map(tuple, leaf["path"])): leaf["name"] for leaf in leaves}
    for path, name in paths.items():
        for length in range(len(path)):
            if path[:length] in paths:
                return paths[path[:length]], name
    return None


def faults(record: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with a layout whose fields have the right types."""
    for component, facts in record["components"].items():
        leaves = {leaf["name"]: leaf for leaf in facts["leaves"]}
        names = [leaf["name"] for leaf in facts["leaves"]]
        if names != sorted(leaves):
            yield "R-36", f"the leaves of {component} are not sorted by name, each once"
        for leaf in facts["leaves"]:
            yield from _leaf_faults(component, facts["scope"], leaf)
            if is_array(leaf):
                yield from _array_faults(leaf, leaves)


def _leaf_faults(component: str, scope: str, leaf: Leaf) -> Iterator[Fault]:
    name = leaf["name"]
    if name != layout_name(component, leaf["path"]):
        yield "L-19", f"{name!r} is not the name that its path gives, {layout_name(component, leaf['path'])!r}"
    longest = f"rank_state.00000.{name}" if scope == "rank" else name
    if len(longest.encode()) > _MAX_NAME:
        yield "L-20", f"{name[:60]!r}… is longer than {_MAX_NAME} bytes"


def _array_faults(leaf: Leaf, leaves: Mapping[str, Leaf]) -> Iterator[Fault]:
    name = leaf["name"]
    element = ELEMENTS.get(leaf["dtype"])
    if element is None:
        yield "A-10", f"{name}: {leaf['dtype']!r} is no dtype of the format"
    elif element.stored != leaf["stored_dtype"]:
        yield "A-9", f"{name}: {leaf['dtype']} is stored as {element.stored}, not as {leaf['stored_dtype']}"
    if math.prod(leaf["shape"]) > _MAX_ELEMENTS:
        yield "R-40", f"{name}: more than 2^53-1 elements"
    if leaf.get("alias") is not None:
        yield from _alias_faults(leaf, leaves.get(leaf["alias"]))
    elif fault := _grid_fault(leaf):
        yield fault
    elif count(leaf) > _MAX_CELLS:
        yield "R-40", f"{name}: {count(leaf)} cells, more than {_MAX_CELLS}"


def _alias_faults(leaf: Leaf, target: Leaf | None) -> Iterator[Fault]:
    if target is None or not is_stored(target):
        yield "A-13", f"{leaf['name']}: an alias of {leaf['alias']!r}, which is no stored array of the component"
    elif any(leaf[field] != target[field] for field in ("dtype", "stored_dtype", "shape")):
        yield "A-13", f"{leaf['name']}: an alias of {leaf['alias']!r}, which has another dtype or shape"


def _grid_fault(leaf: Leaf) -> Fault | None:
    name, shape = leaf["name"], leaf["shape"]
    if leaf.get("chunk_shape") is not None:
        right = len(leaf["chunk_shape"]) == len(shape)
        return None if right else ("A-3", f"{name}: chunk_shape has not as many dimensions as the shape")
    cuts = leaf["cuts"]
    if len(cuts) != len(shape) or not all(map(_rises, cuts, shape)):
        return "A-4", f"{name}: cuts do not rise from 0 to the extent in each dimension"
    return None


def _rises(cuts: Sequence[int], extent: int) -> bool:
    return len(cuts) >= 2 and cuts[0] == 0 and cuts[-1] == extent and all(a < b for a, b in itertools.pairwise(cuts))
