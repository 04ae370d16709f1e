"""A checkpoint under another framework's names: what is read of it is rearranged box by box."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptcore.convert.shown import Request, Shown
from ckptcore.geometry import Box
from ckptcore.readable import Readable, StoredLeaf


@dataclass(frozen=True, kw_only=True)
class View:
    """`ckptcore.readable.Readable` over another one.

    `framework` is the one that it is seen as. `shown` has the leaves of each component that was converted, by layout name;
    `hidden` are the source's components that they are made of. All others are those of the source; `plain` are
    those of them that hold parameters by their names, which errors point out.
    """

    source: Readable
    framework: str
    shown: Mapping[str, Mapping[str, Shown]]
    hidden: frozenset[str]
    plain: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is called in errors."""
        plain = f", but {list(self.plain)} as it is: components= says what else is converted" if self.plain else ""
        return f"{self.source.title} (as a checkpoint of {self.framework}{plain})"

    @property
    def names(self) -> Collection[str]:
        """The names of its components."""
        return [*self.shown, *(name for name in self.source.names if name not in self.hidden and name not in self.shown)]

    def leaves(self, component: str, rank: int | None = None) -> Mapping[str, StoredLeaf]:
        """The leaves of a component by layout name. Raises `NotFound`."""
        if component in self.shown:
            return {name: shown.leaf for name, shown in self.shown[component].items()}
        return self.source.leaves(component, rank)

    def value(self, leaf: StoredLeaf) -> Any:
        """The decoded value of a JSON leaf."""
        shown = self._shown(leaf)
        return self.source.value(leaf) if shown is None else shown.value

    def digest(self, leaf: StoredLeaf) -> str | None:
        """Equal for leaves that show the same array in the same way; None where that is not known."""
        shown = self._shown(leaf)
        return self.source.digest(leaf) if shown is None else shown.digest(self.source)

    def read(self, wanted: Sequence[tuple[StoredLeaf, Sequence[Box]]]) -> list[list[np.ndarray]]:
        """Boxes of array leaves, of which the source reads what they are made of, in one call."""
        requests = [self._requests(leaf, box) for leaf, boxes in wanted for box in boxes]
        found = self.source.read([(leaf, [box]) for some in requests for leaf, box in some])
        found.reverse()
        numbers = iter(requests)
        # What was read of the source is let go as soon as it is rearranged.
        return [[self._make(leaf, box, [found.pop()[0] for _ in next(numbers)]) for box in boxes] for leaf, boxes in wanted]

    def _requests(self, leaf: StoredLeaf, box: Box) -> list[Request]:
        shown = self._shown(leaf)
        return [(leaf, box)] if shown is None else shown.requests(box)

    def _make(self, leaf: StoredLeaf, box: Box, read: Sequence[np.ndarray]) -> np.ndarray:
        shown = self._shown(leaf)
        return read[0] if shown is None else shown.make(box, read)

    def _shown(self, leaf: StoredLeaf) -> Shown | None:
        return self.shown[leaf.component][leaf.name] if leaf.component in self.shown else None
