"""Leaves by the names that people give them, parts of arrays as they write them, and as they read them. Pure."""

from __future__ import annotations

import base64
import difflib
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptcore.errors import CallError, NotFound
from ckptcore.geometry import Box
from ckptcore.inspect import statistics
from ckptcore.names import show_path
from ckptcore.readable import StoredLeaf

EDGE = 3
"""Elements that are shown at each end of a dimension where not all are."""
MOST_SHOWN = 1000
"""As many elements are shown in full, as numpy does it."""
MOST_READ = (2 * EDGE) ** 4
"""As many elements are read at most to show both ends of each dimension."""

_STORED = re.compile(r"rank_state\.(\d+)\.(.+)", re.DOTALL)


def path_of(leaf: StoredLeaf) -> str:
    """A leaf's path for people: `params['Dense_0']['kernel']`."""
    return show_path(leaf.component, leaf.record.path)


def named(name: str) -> tuple[int | None, str]:
    """A name without the rank that a stored name begins with (`rank_state.3.rng.key`), and that rank."""
    match = _STORED.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def find(leaves: Sequence[StoredLeaf], name: str, *, where: str) -> list[StoredLeaf]:
    """The leaf that is called `name`, by its name or its path; else all leaves below it.

    Raises `NotFound` with the names that are most like it.
    """
    wanted = name.replace('"', "'")
    for called in (name, wanted):  # a key that has a quote is shown between the other ones
        exact = [leaf for leaf in leaves if called in (leaf.name, path_of(leaf))]
        below = [leaf for leaf in leaves if _is_below(leaf, called)]
        if exact or below:
            return exact[:1] or below
    known = {called: leaf.name for leaf in leaves for called in (leaf.name, path_of(leaf))}
    close = dict.fromkeys(known[called] for called in difflib.get_close_matches(wanted, known, 6, 0.5))
    ends = [leaf.name for leaf in leaves if leaf.name.rpartition(".")[2] == re.split(r"[.\[]", wanted)[-1].strip("']")]
    like = list(close)[:3] or ends[:3]
    advice = f"; did you mean {' or '.join(like)}?" if like else "; `ckpt tree` shows all"
    raise NotFound(f"{where} has no leaf {name!r}{advice}")


def _is_below(leaf: StoredLeaf, name: str) -> bool:
    path = path_of(leaf)
    return leaf.name.startswith(name + ".") or path.startswith((name + "[", name + "."))


@dataclass(frozen=True)
class Selection:
    """A part of an array: a box, the step along each of its dimensions, and the dimensions that a single index drops."""

    box: Box
    steps: tuple[int, ...]
    dropped: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is selected, with the dropped dimensions."""
        return tuple(len(range(0, extent, step)) for extent, step in zip(self.box.shape, self.steps, strict=True))

    @property
    def kept(self) -> tuple[int, ...]:
        """Of what is selected, as numpy has it."""
        return tuple(extent for axis, extent in enumerate(self.shape) if axis not in self.dropped)

    @property
    def count(self) -> int:
        """How many elements are selected."""
        return math.prod(self.shape)

    def of(self, array: np.ndarray) -> np.ndarray:
        """What is selected of the elements of the box."""
        return np.squeeze(self.stepped(array), axis=self.dropped)

    def stepped(self, array: np.ndarray) -> np.ndarray:
        """Every so many-th of some elements along each dimension."""
        return array[(..., *(slice(None, None, step) for step in self.steps))]


def select(text: str | None, shape: Sequence[int]) -> Selection:
    """The part of an array of `shape` that `text` means: `0:3,:,5`, as in `array[0:3, :, 5]`; all of it for None.

    Raises `CallError` for what numpy would refuse, and for steps that are not positive.
    """
    parts = [] if text is None else [part.strip() for part in text.strip("[]").split(",")]
    parts = [part for part in parts if part] if len(parts) == 1 else parts
    rest = len(shape) - len([part for part in parts if part != "..."])
    if rest < 0 or parts.count("...") > 1:
        raise CallError(f"the slice {text!r} has {len(parts)} dimensions, the array has the shape {tuple(shape)}")
    at = parts.index("...") if "..." in parts else len(parts)
    full = [*parts[:at], *[":"] * rest, *parts[at + 1 :]]
    ranges = [_range(part, extent, text or "") for part, extent in zip(full, shape, strict=True)]
    box = Box(tuple(r.start for r in ranges), tuple(max(r.start, r.stop) for r in ranges))
    dropped = tuple(axis for axis, part in enumerate(full) if ":" not in part)
    return Selection(box, tuple(r.step for r in ranges), dropped)


def _range(part: str, extent: int, text: str) -> range:
    numbers = part.split(":")
    try:
        given = [int(number) if number.strip() else None for number in numbers]
    except ValueError:
        given = []
    if len(numbers) == 1 and given and given[0] is not None:
        index = given[0] + extent if given[0] < 0 else given[0]
        if not 0 <= index < extent:
            raise CallError(f"the slice {text!r}: index {given[0]} is outside of a dimension of {extent}")
        return range(index, index + 1)
    if not 2 <= len(given) <= 3 or (len(given) == 3 and given[2] is not None and given[2] < 1):
        raise CallError(f"the slice {text!r}: {part!r} is neither an index nor start:stop or start:stop:step; such as 0:3,:,5")
    return range(*slice(*given).indices(extent))


def edge_of(selection: Selection) -> int | None:
    """How many elements are shown at each end of a dimension; None: all of them; 0: none, for there are too many dimensions.

    At most `EDGE`, and so few that no more than `MOST_READ` elements are shown.
    """
    if selection.count <= MOST_SHOWN:
        return None
    few = (e for e in range(EDGE, 0, -1) if math.prod(min(extent, 2 * e) for extent in selection.shape) <= MOST_READ)
    return next(few, 0)


def corners(selection: Selection) -> tuple[list[Box], list[list[range]]]:
    """The boxes that have to be read to show a selection, and for each the places that it fills in what is shown.

    A selection of at most `MOST_SHOWN` elements is one box. Of a larger one both ends of each dimension are read, and what
    is shown has one place between them, for what is left out; of one with too many dimensions (`edge_of`) nothing is.
    """
    shape, edge = selection.shape, edge_of(selection)
    if edge == 0:
        return [], []
    axes = [[range(extent)] if edge is None or extent <= 2 * edge else _ends(extent, edge) for extent in shape]
    boxes, places = [], []
    for parts in itertools.product(*axes):
        along = list(zip(parts, selection.box.start, selection.steps, strict=True))
        start = tuple(first + part.start * step for part, first, step in along)
        stop = tuple(first + (part.stop - 1) * step + 1 if part else first for part, first, step in along)
        boxes.append(Box(start, stop))
        places.append([_place(part) for part in parts])
    return boxes, places


def _ends(extent: int, edge: int) -> list[range]:
    return [range(edge), range(extent - edge, extent)]


def _place(part: range) -> range:
    """Where a part of a dimension lies in what is shown of it."""
    return range(len(part) + 1, 2 * len(part) + 1) if part.start else range(len(part))


def joined(selection: Selection, places: Iterable[Sequence[range]], parts: Sequence[np.ndarray]) -> np.ndarray:
    """What is shown of a selection, from the parts that `corners` asked for."""
    placed = [list(place) for place in places]
    shape = tuple(max((place[axis].stop for place in placed), default=0) for axis in range(len(selection.shape)))
    shown = np.zeros(shape, parts[0].dtype)
    for place, part in zip(placed, parts, strict=True):
        shown[(..., *(slice(r.start, r.stop) for r in place))] = selection.stepped(part)
    return np.squeeze(shown, axis=selection.dropped)


def shown(array: np.ndarray, *, edge: int | None, width: int) -> str:
    """An array as numpy prints it; with an `edge` (`edge_of`) an ellipsis stands for the place in the middle of a dimension."""
    plain = _widened(array) if array.dtype.isbuiltin == 2 else array
    threshold = plain.size + 1 if edge is None else 0
    return np.array2string(plain, max_line_width=width, threshold=threshold, edgeitems=edge or EDGE, separator=", ")


def _widened(array: np.ndarray) -> np.ndarray:
    exact = statistics.numbers(array)
    return exact if exact.dtype.kind == "i" else exact.astype(np.float32)


def as_json(array: np.ndarray) -> Any:
    """Elements as nested lists: numbers, booleans, `nan`, `inf` and `-inf` as texts, complex numbers as pairs of them."""
    plain = statistics.numbers(array) if array.dtype.isbuiltin == 2 else array
    return _listed(plain.tolist())


def _listed(element: Any) -> Any:
    if isinstance(element, list):
        return [_listed(each) for each in element]
    if isinstance(element, complex):
        return [_listed(element.real), _listed(element.imag)]
    return element if not isinstance(element, float) or np.isfinite(element) else repr(element)


def as_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON that people read: a tuple is a list, bytes are base64, a key is a text, NaN is NaN."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
