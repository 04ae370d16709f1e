"""What the records say, read from the specification alone: no code of `ckptcore` but the names of keys and generations.

It is fed every record as it appears, and answers what the head is (P-20), and what is retired, marked, pinned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ckptcore.names import GenerationId

_LEDGER = re.compile(r"ledger/([0-9]{6}-[0-9]{12}-[0-9]+)(\.retired)?\.json")
_INCARNATION = re.compile(r"incarnations/([0-9]{6})/(claim|base)\.json")
_NOTE = re.compile(r"notes/([0-9]{6}-[0-9]{12}-[0-9]+)/.*\.json")


@dataclass
class Oracle:
    """The decisive records and notes of a run. Every number is that of the record in order of appearance."""

    count: int = 0
    claims: dict[int, int] = field(default_factory=dict)
    bases: dict[int, int] = field(default_factory=dict)
    base_records: dict[int, dict[str, Any]] = field(default_factory=dict)
    decisions: dict[GenerationId, dict[str, Any]] = field(default_factory=dict)
    retired: dict[GenerationId, int] = field(default_factory=dict)
    marked: set[GenerationId] = field(default_factory=set)
    pinned: dict[GenerationId, int] = field(default_factory=dict)
    verified: set[GenerationId] = field(default_factory=set)

    def add(self, key: str, data: bytes, *, heard: bool = True) -> None:
        """Take in a record that has just appeared; others than these are passed over. `heard`: its put was answered (S-7)."""
        self.count += 1
        if found := _LEDGER.fullmatch(key):
            generation = GenerationId.parse(found[1])
            if found[2]:
                self.retired[generation] = self.count
            else:
                self.decisions[generation] = json.loads(data)
        elif found := _INCARNATION.fullmatch(key):
            if found[2] == "claim":
                self.claims[int(found[1])] = self.count
            else:
                self.bases[int(found[1])] = self.count
                self.base_records[int(found[1])] = json.loads(data)
        elif found := _NOTE.fullmatch(key):
            self._note(GenerationId.parse(found[1]), json.loads(data)["kind"], heard=heard)

    def _note(self, generation: GenerationId, kind: str, *, heard: bool) -> None:
        if kind in ("quarantine", "damaged"):
            self.marked.add(generation)
        elif kind in ("pin", "tag") and heard:
            self.pinned.setdefault(generation, self.count)
        elif kind == "verified":
            self.verified.add(generation)

    def committed(self, generation: GenerationId) -> bool:
        """Whether the generation is a commit."""
        return self.decisions.get(generation, {}).get("decision") == "commit"

    def resumable(self, generation: GenerationId) -> bool:
        """Whether it is one that does not hold weights only."""
        return self.committed(generation) and self.decisions[generation]["guarantee"]["level"] != "weights"

    def commits(self) -> list[GenerationId]:
        """Every commit that is not retired, oldest first."""
        return sorted(found for found in self.decisions if self.committed(found) and found not in self.retired)

    def newest_based(self) -> int:
        """The greatest incarnation that has a base, 0 if none has."""
        return max(self.bases, default=0)

    def base_of(self, incarnation: int) -> GenerationId | None:
        """What an incarnation started from."""
        generation = self.base_records.get(incarnation, {}).get("generation")
        return None if generation is None else GenerationId.parse(generation)

    def usable(self, generation: GenerationId) -> bool:
        """P-21."""
        spared = generation not in self.retired or generation == self.base_of(self.newest_based())
        return self.resumable(generation) and generation not in self.marked and spared

    def head(self) -> GenerationId | None:
        """P-20."""
        return next((found for found in self.lineage() if self.usable(found)), None)

    def lineage(self) -> Iterator[GenerationId]:
        """The candidates, in order."""
        number = max([self.newest_based(), *(generation.incarnation for generation in self.decisions)])
        own = sorted((found for found in self.decisions if found.incarnation == number), reverse=True)
        yield from own
        seen, following = set(own), self.base_of(number)
        while following is not None and following not in seen:
            seen.add(following)
            yield following
            following = self._before(following)

    def sources(self) -> set[GenerationId]:
        """The generations that hold a component of a commit that is not retired."""
        return {source for found in self.commits() for source in self.sources_of(found)}

    def sources_of(self, generation: GenerationId) -> set[GenerationId]:
        """The generations that hold a component of a commit, other than itself."""
        entries = self.decisions.get(generation, {}).get("components", {}).values()
        return {GenerationId.parse(entry["source"]) for entry in entries if entry.get("source")}

    def _before(self, generation: GenerationId) -> GenerationId | None:
        if self.committed(generation):
            parent = self.decisions[generation]["parent"]
            return None if parent is None else GenerationId.parse(parent)
        older = [g for g in self.decisions if g.incarnation == generation.incarnation and g < generation]
        return max(older) if older else self.base_of(generation.incarnation)
