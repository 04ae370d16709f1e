"""The leaves that all ranks of a save have between them, from their layouts: pure (spec: commit, proof).

Equal layouts are one stored object, so each distinct one is looked at once, whatever the number of ranks that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec

from ckptcore import names, records
from ckptcore.layout import ComponentFacts
from ckptcore.records import ArrayLeaf, Layout


@dataclass
class Leaf:
    """One leaf of the union of all layouts. `groups` are the ranks that have it, those of one layout together, lowest first."""

    component: str
    record: ArrayLeaf | records.ValueLeaf
    groups: list[Sequence[int]]

    @property
    def lowest(self) -> int:
        """The lowest rank that has it."""
        return self.groups[0][0]

    @cached_property
    def ranks(self) -> Sequence[int]:
        """All ranks that have it, rising. To be asked for when the union is made."""
        return self.groups[0] if len(self.groups) == 1 else sorted(chain.from_iterable(self.groups))


@dataclass
class LeafUnion:
    """Leaves by stored name, components by name, and in what the layouts contradict each other."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    components: dict[str, ComponentFacts] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, layout: Layout, ranks: Sequence[int]) -> None:
        """Add the layout of `ranks`, which rise; of several layouts the one with the lowest rank comes first."""
        for component, table in layout.components.items():
            facts = ComponentFacts(kind=table.kind, scope=table.scope)
            if self.components.setdefault(component, facts) != facts:
                seen = f"sees component {component!r} as {table.kind}, {table.scope}; other ranks do not"
                self.problems.extend(f"rank {rank} {seen}" for rank in ranks)
            for record in table.leaves:
                if table.scope == "global":
                    self._add(record.name, Leaf(component, record, [ranks]))
                else:
                    for rank in ranks:
                        self._add(names.rank_array_name(rank, record.name), Leaf(component, record, [[rank]]))

    def is_of_ranks(self, component: str) -> bool:
        """Whether each rank has a component of its own."""
        return component in self.components and self.components[component].scope == "rank"

    def check_containers(self) -> None:
        """What is a leaf on one rank and a container on another could be written, but not be put together again."""
        shared = {name: leaf for name, leaf in self.leaves.items() if not self.is_of_ranks(leaf.component)}
        above: dict[tuple[str, Any], str] = {}
        for name, leaf in shared.items():
            path = leaf.record.path
            above.update({(leaf.component, path[:depth]): name for depth in range(len(path))})
        for name, leaf in shared.items():
            inside = above.get((leaf.component, leaf.record.path))
            if inside is not None:
                self.problems.append(
                    f"leaf {name!r} of {show_ranks(leaf.ranks)} is elsewhere a container, which holds {inside!r}"
                )

    def _add(self, name: str, leaf: Leaf) -> None:
        known = self.leaves.setdefault(name, leaf)
        if known is leaf:
            return
        known.groups.extend(leaf.groups)
        if not _same(known.record, leaf.record):
            seen = f"rank {known.lowest} see leaf {name!r} with another type, shape or grid"
            self.problems.extend(f"rank {rank} and {seen}" for rank in leaf.ranks)


def unite(layouts: Mapping[str, Layout], layout_of: Sequence[str]) -> LeafUnion:
    """The union of `layouts`; `layout_of` has the name of each rank's, in rank order."""
    alike: dict[str, list[int]] = {}
    for rank, name in enumerate(layout_of):
        alike.setdefault(name, []).append(rank)
    union = LeafUnion()
    for name, ranks in alike.items():
        union.add(layouts[name], ranks)
    union.check_containers()
    return union


def show_ranks(ranks: Sequence[int]) -> str:
    """`rank 7`, `ranks 0, 3, 4`, `ranks 0, 1, 2, … (1021 in all)`."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f", … ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"


def _same(one: object, other: object) -> bool:
    """Whether two ranks' records of a leaf agree in all that reading needs (the sharding text is for people)."""
    if one is other or one == other:
        return True
    if isinstance(one, ArrayLeaf) and isinstance(other, ArrayLeaf):
        blank = {"sharding": None, "memory_kind": None}
        return msgspec.structs.replace(one, **blank) == msgspec.structs.replace(other, **blank)
    return False
