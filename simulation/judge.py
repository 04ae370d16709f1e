"""The invariants, checked after every change of the store, when a process reports, and at the end.

`Judge` sees everything at once and believes nobody: what the records mean comes from `oracle`, what is stored from the
contents themselves. Every check names the clause that it holds the code to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ckptcore import ledger, restore
from ckptcore.digests import digest
from ckptcore.match import Rules
from ckptcore.names import GenerationId
from ckptcore.reader import Checkpoint
from ckptcore.verify import verify
from simulation.contents import Change, Contents
from simulation.faults import decisive
from simulation.oracle import Oracle
from simulation.scheduler import Process
from simulation.state import told
from simulation.violation import Violation
from simulation.witness import Truth

NO_ROOM = "no room left"
"""In the reason of an abort: the one that a coordinator may put although all receipts are there."""


@dataclass
class Judge:
    """Raises `Violation` at the first thing that must not be."""

    contents: Contents
    oracle: Oracle = field(default_factory=Oracle)
    order: int = 0
    """How many changes there have been."""
    heads: list[tuple[int, GenerationId | None]] = field(default_factory=lambda: [(0, None)])
    """Since which change what was the head."""
    visible_since: dict[GenerationId, int] = field(default_factory=dict)
    complete_since: dict[GenerationId, int] = field(default_factory=dict)
    spoiled: set[GenerationId] = field(default_factory=set)
    """Generations of which a machine has lost derived data (S-9)."""
    _receipts: dict[GenerationId, dict[int, dict[str, Any]]] = field(default_factory=dict)
    _claimed: dict[int, int] = field(default_factory=dict)
    _based: dict[int, int] = field(default_factory=dict)
    _looked: dict[tuple[str, GenerationId], int] = field(default_factory=dict)
    _maybe: set[GenerationId | None] = field(default_factory=set)
    """What still counts as the head for whoever does not see a mark whose put was never answered (S-7)."""
    _failed: set[GenerationId] = field(default_factory=set)
    _in_use: dict[int, GenerationId | None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """What has happened, for people."""

    def adopt(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """Take in what was there before the simulation began, in the order in which it came."""
        for key, data in objects:
            self.oracle.add(key, data)
        self.heads = [(0, self.oracle.head())]

    # Changes

    def changed(self, change: Change) -> None:
        """Called after every change."""
        self.order += 1
        if change.data is None:
            self._gone(change)
            return
        if change.before is not None and change.before != change.data:
            raise Violation("P-51" if decisive(change.key) else "S-9", f"{change.by.name} has overwritten {change.key}")
        if change.before is not None:
            return
        folder, _, rest = change.key.partition("/")
        if folder == "generations":
            self._stored(GenerationId.parse(rest.split("/")[0]), change)
        elif folder in ("ledger", "incarnations", "notes"):
            self._recorded(folder, change)

    def _gone(self, change: Change) -> None:
        if decisive(change.key):
            raise Violation("L-5", f"{change.by.name} has deleted {change.key}")
        folder, _, rest = change.key.partition("/")
        if folder == "generations":
            self._check_deletion(GenerationId.parse(rest.split("/")[0]), change)

    def _stored(self, generation: GenerationId, change: Change) -> None:
        if generation not in self.visible_since and change.how == "heard":
            self.visible_since[generation] = self.order
        parts = change.key.split("/")
        if parts[2] == "receipts":
            self._receive(generation, json.loads(change.data or b""), heard=change.how == "heard")

    def _receive(self, generation: GenerationId, receipt: dict[str, Any], *, heard: bool) -> None:
        if receipt["status"] == "complete" and generation not in self.oracle.decisions:
            self._check_durable(generation, receipt)
        received = self._receipts.setdefault(generation, {})
        if not heard:
            return  # listings may lack it (S-7)
        received[receipt["rank"]] = receipt
        complete = [found for found in received.values() if found["status"] == "complete"]
        if len(complete) == receipt["participants"] and not any((found["lead"] or {}).get("references") for found in complete):
            self.complete_since[generation] = self.order

    def _recorded(self, folder: str, change: Change) -> None:
        before, key, data = self.oracle.head(), change.key, change.data or b""
        kind = key.rsplit("/", 1)[1]
        if kind == "base.json":
            self._check_base(json.loads(data))
        self.oracle.add(key, data, heard=change.how == "heard")
        if kind == "claim.json":
            self._claimed[int(key.split("/")[1])] = self.order
        if kind == "base.json":
            self._based[int(key.split("/")[1])] = self.order
        if folder == "ledger":
            generation = GenerationId.parse(kind.split(".")[0])
            if kind.endswith(".retired.json"):
                self._check_retired(generation, change)
            else:
                self._check_decision(generation, change)
        if folder == "notes" and json.loads(data)["kind"] == "damaged":
            raise Violation("O-14", f"{change.by.name} has marked {key.split('/')[1]} as damaged, in a world where nothing is")
        self._check_head(before, folder, key, change)

    # What is deleted, retired, decided, chosen

    def _check_deletion(self, generation: GenerationId, change: Change) -> None:
        oracle, who = self.oracle, f"{change.by.name} has deleted {change.key}"
        if generation not in oracle.decisions:
            raise Violation("K-10, K-11", f"{who}, which is undecided")
        if not oracle.committed(generation):
            return
        if generation not in oracle.retired:
            raise Violation("P-54", f"{who} of a commit that is not retired")
        if generation in oracle.sources():
            raise Violation("P-54", f"{who}, which a commit that is not retired refers to")
        number = oracle.newest_based()
        base = oracle.base_of(number)
        if base is not None and generation in {base, *oracle.sources_of(base)}:
            if oracle.bases[number] < oracle.retired.get(base, oracle.count + 1):
                raise Violation("K-7", f"{who} of the base that incarnation {number} had recorded, or which it refers to")
            if self._in_use.get(number) == base:
                raise Violation("P-16", f"{who} of what incarnation {number} goes on from")
        if oracle.pinned.get(generation, oracle.count + 1) < oracle.retired[generation]:
            raise Violation("K-7", f"{who} of a commit that had been pinned before it was retired")

    def _check_retired(self, generation: GenerationId, change: Change) -> None:
        if not self.oracle.committed(generation):
            raise Violation("K-6", f"{change.by.name} has retired {generation}, which is no commit")
        left = [found for found in self.oracle.commits() if self.oracle.resumable(found)]
        if self.oracle.resumable(generation):
            if not left or left[-1] < generation:
                raise Violation("K-2", f"{change.by.name} has retired {generation}, the newest resumable commit")
            if len(left) < 2:
                raise Violation("K-3", f"{change.by.name} has retired {generation}, and left {len(left)} resumable commits")
        newer = [found for found in self.oracle.decisions if self.oracle.committed(found) and found > generation]
        if not newer:
            raise Violation("K-2", f"{change.by.name} has retired {generation}, the newest commit")
        self._count("retired")

    def _check_decision(self, generation: GenerationId, change: Change) -> None:
        record, number = self.oracle.decisions[generation], change.by.decides_as(generation.incarnation)
        if number < generation.incarnation:
            raise Violation("P-34", f"{change.by.name} of incarnation {number} has decided {generation}")
        if record["decision"] == "commit":
            if generation in self._failed:
                raise Violation("P-42", f"{generation} has become a checkpoint after a rank had been told that its part failed")
            self.check_commit(generation)
            self._count("finished by anybody" if change.by.role == "finisher" else "committed")
            return
        self._count("aborted")
        if change.by.role == "finisher":
            raise Violation("P-58", f"{change.by.name} has aborted {generation}, which is not its own")
        if NO_ROOM not in record["reason"]:
            self._check_abort(generation, change, number)

    def _check_abort(self, generation: GenerationId, change: Change, number: int) -> None:
        if change.by.role == "collector" and generation.incarnation >= max(self.oracle.claims, default=0):
            raise Violation("K-11", f"{change.by.name} has aborted {generation} of the newest incarnation")
        complete = self.complete_since.get(generation)
        if complete is None or generation in self.spoiled:
            return
        looked = self._claimed.get(number, 0) if number > generation.incarnation else 0
        looked = max(looked, self._looked.get((change.by.name, generation), 0))
        if complete <= looked:
            reason = self.oracle.decisions[generation]["reason"]
            raise Violation("P-12", f"{change.by.name} has aborted {generation}, which was complete when it looked: {reason}")

    def _check_base(self, base: dict[str, Any]) -> None:
        number, since = base["incarnation"], self._claimed.get(base["incarnation"])
        if since is None:
            raise Violation("P-16", f"incarnation {number} has a base, but no claim")
        for generation, seen in self.visible_since.items():
            if generation.incarnation < number and generation not in self.oracle.decisions and seen < since:
                raise Violation("P-10", f"incarnation {number} has recorded its base without having decided {generation}")
        for settled in base["settled"]:
            found = self.oracle.decisions.get(GenerationId.parse(settled["generation"]), {}).get("decision")
            if found != settled["decision"]:
                raise Violation("P-56", f"incarnation {number} says {settled}, the ledger says {found}")
        chosen = None if base["generation"] is None else GenerationId.parse(base["generation"])
        if chosen is not None and not self.oracle.resumable(chosen):
            raise Violation("P-15", f"incarnation {number} starts from {chosen}, which is no resumable commit")
        if base["reason"] in ("new", "newest", "rolled-forward"):
            meanwhile = [*self._heads_since(since), *self._maybe]
            if chosen not in meanwhile:
                raise Violation("P-20", f"incarnation {number} starts from {chosen}, but the head was {_shown(meanwhile)}")
        self._count(f"base: {base['reason']}")

    def _check_head(self, before: GenerationId | None, folder: str, key: str, change: Change) -> None:
        head = self.oracle.head()
        if head == before:
            return
        self.heads.append((self.order, head))
        if folder == "notes" and change.how != "heard":
            self._maybe.add(before)
        if folder == "notes" or key.endswith("base.json"):
            return
        if head is not None and key == f"ledger/{head}.json" and (before is None or head > before):
            return
        if key.endswith(".retired.json") and self.oracle.marked:
            return  # what is the head only since a note came may have been chosen for retirement before
        raise Violation("P-53", f"{change.by.name} has put {key}, and the head has moved from {before} to {head}")

    def check_commit(self, generation: GenerationId) -> None:
        """A commit is whole, and of the save that its name says (P-50, P-52)."""
        store: Any = Truth(self.contents)
        run_id = self.oracle.decisions[generation]["run_id"]
        decided = ledger.commit(store, run_id, generation)
        checkpoint = Checkpoint(store, decided)
        found = verify(checkpoint, deep=True)
        if not found.ok:
            raise Violation("P-50", f"{generation} is committed, but {found.problems[0]}")
        restored = restore.host(checkpoint, ["params"], rules=Rules(), ranks={})
        restored |= restore.host(checkpoint, ["own"], rules=Rules(), ranks={"own": 0})
        self._check_content(generation, restored)

    def _check_content(self, generation: GenerationId, components: Any) -> None:
        try:
            of = told(components)
        except ValueError as error:
            raise Violation("P-52", f"{generation}: {error}") from error
        if of != str(generation):
            raise Violation("P-52", f"{generation} holds what was captured for {of}")

    def _check_durable(self, generation: GenerationId, receipt: dict[str, Any]) -> None:
        """A complete receipt vouches for what is there and has been made durable (P-31, P-32)."""
        rank = receipt["rank"]
        for described in (receipt["layout"], receipt["values"]):
            data = None if described is None else self.contents.get(described["key"])
            if described is not None and (data is None or digest(data) != described["digest"]):
                raise Violation("P-31", f"rank {rank} has signed for {described['key']}, which is not there")
        for file in receipt["files"]:
            key = f"generations/{generation}/state/ranks/{rank:05d}-{receipt['database']}/{file['path']}"
            if not self.contents.durable(key):
                raise Violation("P-32", f"rank {rank} has signed for {key}, which is not durable")

    # What processes say

    def deciding(self, process: Process, generation: GenerationId, fenced: bool) -> None:  # noqa: FBT001
        """See `witness.Listener`."""
        if not fenced:
            raise Violation("P-38", f"{process.name} decides {generation} without having looked for a newer claim right before")

    def listed(self, process: Process, generation: GenerationId, since: int) -> None:
        """See `witness.Listener`."""
        self._looked[process.name, generation] = since

    def opened(self, number: int, base: GenerationId | None) -> None:
        """An incarnation has been opened, and goes on from `base`."""
        oracle = self.oracle
        if base is not None and base in oracle.retired:
            before = max((n for n in oracle.bases if n < number), default=0)
            retired = oracle.retired[base]
            if oracle.claims[number] < retired < oracle.bases[number] and oracle.base_of(before) != base:
                raise Violation("P-16", f"incarnation {number} goes on from {base}, which was retired before it recorded that")
        if self._claimed.get(number + 1, self.order + 1) < self._based[number]:
            raise Violation(
                "P-16", f"incarnation {number} goes on, although {number + 1} had been claimed before its base was there"
            )
        self._in_use[number] = base

    def restored(self, who: str, base: GenerationId, components: Any) -> None:
        """A rank or reader has restored `base`."""
        self._check_content(base, components)
        self._count(f"restored by {who}")

    def acknowledged(self, process: Process, decided: ledger.Decided, began: int) -> None:
        """A rank has been told that its save, which began after `began` changes, is a checkpoint."""
        generation = decided.generation
        stored = self.contents.get(f"ledger/{generation}.json")
        if not self.oracle.committed(generation) or stored is None or digest(stored) != decided.digest:
            raise Violation("P-44", f"{process.name} was told that {generation} is committed; the ledger does not say so")
        if self._claimed.get(generation.incarnation + 1, self.order + 1) < began:
            raise Violation("P-9", f"{process.name} has saved {generation}, although it had been superseded before")
        self._count("acknowledged")

    def aborted(self, process: Process, generation: GenerationId) -> None:
        """A rank has been told that its save will never be a checkpoint."""
        if self.oracle.decisions.get(generation, {}).get("decision") != "abort":
            raise Violation("P-42", f"{process.name} was told that {generation} is aborted; the ledger does not say so")
        self._count("told: aborted")

    def failed(self, process: Process, generation: GenerationId) -> None:
        """A rank has been told that its part of a save failed."""
        if self.oracle.committed(generation):
            raise Violation("P-42", f"{process.name} was told that its part of {generation} failed; it is committed")
        self._failed.add(generation)
        self._count("told: failed")

    def superseded(self, process: Process, number: int) -> None:
        """A process has been told that a newer incarnation has been claimed."""
        if number + 1 not in self.oracle.claims:
            raise Violation("P-9", f"{process.name} stops as superseded, but nobody has claimed incarnation {number + 1}")
        self._count("superseded")

    def lost(self, key: str) -> None:
        """A machine has lost a file of a merged view: whoever meets it may give up the save (S-9, P-12)."""
        self.spoiled.add(GenerationId.parse(key.split("/")[1]))

    def final(self, head: GenerationId | None) -> None:
        """Faults have stopped, and a last job has run to its end: what must hold then."""
        if self.oracle.head() != head:
            raise Violation("P-20", f"the head is {self.oracle.head()}, the last save was {head}")
        for generation in self.oracle.commits()[-2:]:  # each was checked when it came, and whatever was deleted since
            self.check_commit(generation)
        # What was never acknowledged may have been missing from the listings of the last settle: it belongs to the next (P-14).
        undecided = self.visible_since.keys() - self.oracle.decisions.keys()
        if undecided:
            raise Violation("P-55", f"after the end {_shown(sorted(undecided))} is undecided")

    def _heads_since(self, since: int) -> list[GenerationId | None]:
        """What was the head at the change number `since`, or later."""
        first = max(at for at, (order, _) in enumerate(self.heads) if order <= since)
        return [head for _, head in self.heads[first:]]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _shown(found: list[Any]) -> str:
    return ", ".join(map(str, found))
