"""What is saved of an object, and how it is filled again: the words between the parts of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ckptcore.backend import Found
from ckptcore.geometry import Box
from ckptcore.names import Path
from ckptcore.records import ArrayLeaf


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of a component: a tensor (perhaps a `DTensor`), a numpy array, bytes or another value.

    `path` begins at the component. `tied_to` is the path of the stored leaf that this one is another name of.
    `lowest_counts`: every rank has a copy, which may differ, and the lowest rank's is the one that counts.
    """

    path: Path
    data: Any
    tied_to: Path | None = None
    lowest_counts: bool = False


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A part of a restore target that takes whatever was stored at and below `path`.

    `boxes_of` says which boxes of an array below this rank needs, given its path from here and its record (None: the
    whole). `prepare` makes ready what was found, and changes nothing: it raises `StructureMismatch` if it does not fit. What
    it returns puts it in place. `optional`: nothing may be stored there; then `prepare` is given None.
    """

    path: Path
    prepare: Callable[[Found | None], Callable[[], None]]
    boxes_of: Callable[[Path, ArrayLeaf], tuple[Box, ...]] | None = None
    optional: bool = False
