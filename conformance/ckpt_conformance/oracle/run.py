"""A run as it lies in the store: every record, read once and judged by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from ckpt_conformance.oracle import digests, keys, records
from ckpt_conformance.oracle.records import Judged
from ckpt_conformance.place import Place

Value = Mapping[str, Any]


class Run:
    """The records of a run.

    Attributes:
      place: where it lies.
      keys: every key there is.
      damaged: keys of objects that were damaged from outside, so that nothing is concluded from them.
      content: key → bytes, of records.
      judged: key → what the record says, and what is wrong with it.

    """

    def __init__(self, place: Place, damaged: Collection[str] = ()) -> None:
        self.place = place
        self.damaged = frozenset(damaged)
        self.keys = place.keys()
        self.named = {key: found for key in self.keys if (found := keys.named(key)) is not None}
        read = {key: place.read(key) for key in self.named}
        self.content = {key: data for key, data in read.items() if data is not None}
        self.judged = {key: records.judge(self.named[key].kind, data) for key, data in self.content.items()}

    def of_kind(self, kind: str) -> dict[str, Judged]:
        """The records of a kind, by key."""
        return {key: judged for key, judged in self.judged.items() if self.named[key].kind == kind}

    def value(self, key: str, *kinds: str) -> Value | None:
        """What the record at `key` says; None if it is absent, was damaged, cannot be understood, or is of another kind."""
        judged = self.judged.get(key)
        known = judged is not None and key not in self.damaged and (not kinds or judged.kind in kinds)
        return judged.value if known and judged is not None else None

    def digest(self, key: str) -> str | None:
        """The digest of the record at `key`; None where nothing can be said of it."""
        return digests.digest(self.content[key]) if key in self.content and key not in self.damaged else None

    def claim(self, incarnation: int) -> Value | None:
        """The claim of an incarnation."""
        return self.value(keys.claim(incarnation))

    def manifest(self, generation: str) -> Value | None:
        """The manifest of a generation that is committed."""
        return self.value(keys.decision(generation), "manifest")

    def is_retired(self, generation: str) -> bool:
        """Whether a generation has a retired record, whatever it says, or had one before it was damaged."""
        return keys.retired(generation) in self.damaged.union(self.content)

    @cached_property
    def run_id(self) -> str | None:
        """The run's ID; None if `run.json` does not tell."""
        value = self.value("run.json")
        return None if value is None else value["run_id"]

    @cached_property
    def claims(self) -> dict[int, str]:
        """The keys of all claims, by incarnation."""
        return {int(self.named[key].parts["incarnation"]): key for key in self.of_kind("claim")}

    @cached_property
    def bases(self) -> dict[int, str]:
        """The keys of all bases, by incarnation."""
        return {int(self.named[key].parts["incarnation"]): key for key in self.of_kind("base")}

    @cached_property
    def decided(self) -> list[str]:
        """The generations that have a decision, oldest first."""
        found = (self.named[key].parts["generation"] for key in self.judged if self.named[key].kind == "decision")
        return sorted(found, key=keys.Generation.parse)

    @cached_property
    def generations(self) -> list[str]:
        """The generations that have a record in `ledger/` or anything under `generations/`, oldest first."""
        folders = {found for key in self.keys if (found := keys.generation_of(key)) is not None}
        on_nodes = {named.parts["generation"] for named in self.named.values() if named.kind == "staged"}
        return sorted(folders.union(self.decided, on_nodes), key=keys.Generation.parse)

    def below(self, prefix: str) -> list[str]:
        """The keys that start with `prefix`."""
        return [key for key in self.keys if key.startswith(prefix)]
