"""The minimal reader, second part: what a run has decided, which generation is its head, and what a checkpoint holds.

Written from the documents in `spec/v1` alone (chapters 8 and 10). Of a checkpoint nothing is used but what its manifest proves.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ckpt_conformance.adapters.minimal_format import (
    GENERATION,
    STORED,
    WAIT,
    Refused,
    Store,
    canonical,
    cells,
    decode,
    digest,
    is_digest,
    is_named,
    is_sound,
    logical_bytes,
    order,
)

Json = Any


def say(message: object) -> None:
    """Tell people, not the suite."""
    print(message, file=sys.stderr)


class Run:
    """A run, read from its ledger (O-1)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        data = store.read("run.json")
        if data is None:
            raise Refused("not-found", "there is no run: run.json is absent")
        self.run_id = decode(data, "run", "run.json")["run_id"]
        based = (
            re.fullmatch(r"incarnations/(\d{6})/base\.json", key) for key in store.list("incarnations/")
        )  # before the ledger
        self.based = sorted((int(found[1]) for found in based if found), reverse=True)
        self.ledger = store.list("ledger/")
        decided = (re.fullmatch(rf"ledger/({GENERATION.pattern})\.json", key) for key in self.ledger)
        self.decided = sorted((found[1] for found in decided if found), key=order)

    def record(self, key: str, kind: str, **expected: Json) -> Json:
        """A record that nothing certifies. Raises `Refused` for one that is absent, wrong, or of something else (R-12)."""
        data = self.store.read(key)
        if data is None or len(data) > 2**24:
            raise Refused("damaged", f"{key} is absent, or too large (R-5)")
        record = decode(data, kind, key)
        for field, value in {"run_id": self.run_id, **expected}.items():
            if record[field] != value:
                raise Refused("foreign-record", f"{key}: its {field} is {record[field]} (R-12)")
        return record

    def decision(self, generation: str) -> Json:
        """What was decided of a generation."""
        return self.record(f"ledger/{generation}.json", "decision", generation=generation)

    def base(self, incarnation: int) -> str | None:
        """The generation that an incarnation starts from. Its claim has to be there too (P-20)."""
        folder = f"incarnations/{incarnation:06}"
        nonce = self.record(f"{folder}/claim.json", "claim", incarnation=incarnation)["nonce"]
        start = self.record(f"{folder}/base.json", "base", incarnation=incarnation, nonce=nonce)["generation"]
        if start is not None and order(start)[0] >= incarnation:
            raise Refused("invalid-record", f"{folder}/base.json starts from no older incarnation (R-31)")
        return start

    def is_retired(self, generation: str) -> bool:
        """Whether retention has given a generation up: not the newest base, whose data is kept (P-21, K-7)."""
        return f"ledger/{generation}.retired.json" in self.ledger and generation != self.newest_base

    def is_retired_now(self, generation: str) -> bool:
        """The same of a generation that turned out to be damaged, by what the store holds by now (O-14)."""
        return self.store.read(f"ledger/{generation}.retired.json") is not None

    @cached_property
    def newest_base(self) -> str | None:
        """The base of the greatest incarnation that has a readable one."""
        for number in self.based:
            try:
                return self.base(number)
            except Refused as error:
                say(error)
        return None

    def candidates(self) -> Iterator[str]:
        """The generations among which the head is sought, best first (P-20)."""
        newest = max([*self.based, *(order(generation)[0] for generation in self.decided)], default=None)
        if newest is None:
            return
        following, seen = self.base(newest), set()
        yield from (generation for generation in reversed(self.decided) if order(generation)[0] == newest)
        while following is not None and following not in seen:
            yield following
            seen.add(following)
            following = self.before(following)

    def before(self, generation: str) -> str | None:
        """The candidate after one of another incarnation (P-20.2)."""
        try:
            decision = self.decision(generation)
            if decision["decision"] == "commit":
                return decision["parent"]
        except Refused as error:
            say(error)
        incarnation = order(generation)[0]
        older = [other for other in self.decided if order(other)[0] == incarnation and order(other) < order(generation)]
        return older[-1] if older else self.base(incarnation)

    def usable(self) -> Iterator[str]:
        """The candidates that are usable (P-21): the first one is the head. What cannot be read is passed over (P-25)."""
        for generation in self.candidates():
            try:
                decision = self.decision(generation)
            except Refused as error:
                say(error)
                continue
            resumable = decision["decision"] == "commit" and decision["guarantee"]["level"] != "weights"
            if resumable and not self.is_retired(generation) and not self.is_marked(generation):
                yield generation

    def is_marked(self, generation: str) -> bool:
        """Whether a note says `quarantine` or `damaged`; one that cannot be read counts by its name (R-73)."""
        kinds = []
        for key in self.store.list(f"notes/{generation}/"):
            name = re.fullmatch(r"notes/[^/]+/(\w[\w.\-]*)\.json", key, re.ASCII)
            if name is None:
                continue  # no place of a note (L-3)
            try:
                kinds.append(self.record(key, "note", generation=generation)["kind"])
            except Refused as error:
                say(error)
                kinds.append("damaged" if name[1].startswith("damaged-") else name[1])
        return "quarantine" in kinds or "damaged" in kinds

    def named(self, generation: str | None, step: int | None) -> str:
        """The commit that a caller names: of several at a step the greatest that is not retired (O-2, O-16)."""
        retired = None
        for found in reversed(self.decided):
            is_named = found == generation if generation is not None else order(found)[1] == step
            if is_named and self.decision(found)["decision"] == "commit":
                if not self.is_retired(found):
                    return found
                retired = retired or found
        if retired is None:
            raise Refused("not-found", f"there is no commit of generation {generation}, step {step}")
        return retired


def in_key(descriptor: Mapping[str, Json]) -> str:
    """The digest of a descriptor as keys have it (L-13)."""
    return descriptor["digest"].replace(":", "-")


class Checkpoint:
    """A commit. Nothing is used of it that its manifest does not prove."""

    def __init__(self, run: Run, generation: str) -> None:
        self.run, self.folder, self.manifest = run, f"generations/{generation}/", run.decision(generation)
        if self.manifest["decision"] != "commit":
            raise Refused("not-found", f"generation {generation} was aborted")

    def proven(self, descriptor: Mapping[str, Json], kind: str, key: str) -> Json:
        """The record of a descriptor: at `key` (L-14), of its size and digest (O-3)."""
        if descriptor["key"] != key:
            raise Refused("invalid-record", f"{descriptor['key']} is named where {key} has to be")
        data = self.run.store.read(key) if self.run.store.size(key) == descriptor["size"] else None
        if data is None or not is_digest(descriptor["digest"], data):
            raise Refused("damaged", f"{key} is absent, or not what its descriptor says")
        return decode(data, kind, key)

    @cached_property
    def ranks(self) -> list[Json]:
        """The roster's entries, each with its layout's components in place of the digest."""
        descriptor = self.manifest["roster"]
        roster = self.proven(descriptor, "roster", f"{self.folder}roster-{in_key(descriptor)}.json")
        if roster["generation"] != self.manifest["generation"]:
            raise Refused("foreign-record", f"the roster is of {roster['generation']} (O-4)")
        layouts = {found["digest"]: self.layout(found) for found in roster["layouts"]}
        numbers = [entry["rank"] for entry in roster["ranks"] if entry["layout"] in layouts]
        if numbers != list(range(self.manifest["topology"]["participants"])):
            raise Refused("invalid-record", "the roster's ranks are not the participants, or a layout is missing (R-58, O-4)")
        return [entry | {"layout": layouts[entry["layout"]]} for entry in roster["ranks"]]

    def layout(self, descriptor: Mapping[str, Json]) -> Json:
        """A layout's components."""
        components = self.proven(descriptor, "layout", f"{self.folder}layouts/{in_key(descriptor)}.json")["components"]
        for component, facts in components.items():
            leaves = {leaf["name"]: leaf for leaf in facts["leaves"]}
            if [leaf["name"] for leaf in facts["leaves"]] != sorted(leaves):
                raise Refused("invalid-record", f"{descriptor['key']}: leaves are not in order, each once (R-36)")
            for leaf in leaves.values():
                if not is_named(component, leaf) or (leaf["kind"] == "array" and not is_sound(leaf, leaves)):
                    raise Refused("invalid-record", f"{descriptor['key']}: {leaf['name']} has no right name, grid or dtype")
        return components

    def component(self, name: str) -> Component:
        """A component, wherever it is held (O-5), every digest between the manifest and its cells compared."""
        entry = self.manifest["components"][name]
        held = self if entry.get("source") is None else Checkpoint(self.run, entry["source"])
        own = held.manifest["components"].get(name, {})
        if own.get("source") is not None or own.get("digest") != entry["digest"]:
            raise Refused("damaged", f"{entry['source']} does not hold {name} as it is said to (O-5)")
        index = held.proven(entry["index"], "index", f"{held.folder}index/{name}-{in_key(entry['index'])}.json")
        if index["component"] != name:
            raise Refused("foreign-record", f"the index of {name} is of {index['component']} (O-4)")
        found = Component(held, name, entry["scope"], index["leaves"])
        digests = {stored: facts["digest"] for stored, facts in found.index.items()}
        if digests.keys() != found.leaves.keys() or not all(map(found.is_proven, digests)):
            raise Refused("damaged", f"the index of {name} does not fit the layouts (O-6)")
        if digest(canonical(["ckpt/component", name, digests])) != entry["digest"]:
            raise Refused("damaged", f"{name} has not the digest that the manifest says (D-7)")
        return found

    def values(self, rank: int) -> Json:
        """A rank's values record, an empty one if it wrote none."""
        descriptor = self.ranks[rank].get("values")
        return {} if descriptor is None else self.proven(descriptor, "values", f"{self.folder}values/{rank:05}.json")

    def absent_files(self) -> Iterator[str]:
        """What the receipts list and is not there so; `Refused` for receipts and values that are not as the roster says (O-8)."""
        for rank, entry in enumerate(self.ranks):
            self.values(rank)
            receipt = self.proven(entry["receipt"], "receipt", f"{self.folder}receipts/{rank:05}.json")
            for file in receipt.get("files", []):
                key = f"{self.folder}state/ranks/{rank:05}-{receipt.get('database')}/{file['path']}"
                right = self.run.store.size(key) == file["size"]
                if not right or (file.get("digest") and not is_digest(file["digest"], self.run.store.read(key) or b"")):
                    yield f"{key} is absent, or not of its size or digest"


@dataclass(frozen=True)
class Component:
    """A component: the checkpoint that holds it, its scope, and its index: stored name → digests."""

    held: Checkpoint
    name: str
    scope: str
    index: Mapping[str, Json]

    @cached_property
    def leaves(self) -> dict[str, tuple[Json, int]]:
        """Stored name (L-21) → the leaf, and the lowest rank whose layout has it."""
        found: dict[str, tuple[Json, int]] = {}
        for rank, entry in enumerate(self.held.ranks):
            for leaf in entry["layout"].get(self.name, {"leaves": []})["leaves"]:
                found.setdefault(self.stored(leaf["name"], rank), (leaf, rank))
        return found

    def stored(self, name: str, rank: int) -> str:
        """The stored name of a leaf on a rank (L-21)."""
        return f"rank_state.{rank}.{name}" if self.scope == "rank" else name

    def origin(self, stored: str) -> tuple[str, Json, int]:
        """A leaf, or the array that it is an alias of (A-13)."""
        leaf, rank = self.leaves[stored]
        name = self.stored(leaf["alias"], rank) if leaf.get("alias") is not None else stored
        return name, *self.leaves[name]

    def is_proven(self, stored: str) -> bool:
        """Whether the index has what it needs of a leaf: the digests of all cells, and that of the leaf from them (D-5, O-6)."""
        name, leaf, _ = self.origin(stored)
        if leaf["kind"] == "value" or name != stored:
            return self.index[stored]["digest"] == self.index[name]["digest"]
        chunks, grid = self.index[stored].get("chunks", []), leaf.get("chunk_shape") or leaf.get("cuts") or []
        made = digest(canonical(["ckpt/leaf", leaf["dtype"], leaf["shape"], grid, chunks]))
        return made == self.index[stored]["digest"] and len(chunks) == sum(1 for _ in cells(leaf))

    def array(self, stored: str) -> np.ndarray:
        """The whole of an array in its stored dtype, every cell compared with its digest (O-10, O-11)."""
        name, leaf, _ = self.origin(stored)
        if leaf["dtype"] not in STORED:
            raise Refused("unsupported-format", f"{name} is of the unknown dtype {leaf['dtype']} (A-9)")
        chunks, state = self.index[name].get("chunks", []), f"{self.held.folder}state/"
        try:
            whole = None if leaf.get("cuts") is not None else self.held.run.store.array(state, name)
            reads = []
            for places, box in cells(leaf):
                piece = f"{name}/{'.'.join(map(str, places))}"
                part = whole[box] if whole is not None else self.held.run.store.array(state, piece)
                reads.append((box, part.read()))
            found = [(box, read.result(timeout=WAIT)) for box, read in reads]
        except ValueError as error:
            raise Refused("damaged", f"{name} cannot be read: {error}") from error
        return self._joined(name, leaf, found, chunks, whole)

    @staticmethod
    def _joined(name: str, leaf: Json, found: list[tuple[Any, np.ndarray]], chunks: list[str], whole: Any) -> np.ndarray:
        array = np.empty(leaf["shape"], found[0][1].dtype if found else whole.dtype.numpy_dtype)
        for (box, content), expected in zip(found, chunks, strict=True):
            if not is_digest(expected, logical_bytes(content, leaf["dtype"])):
                raise Refused("damaged", f"{name}: the cell at {box} has another digest (D-3)")
            array[box] = content
        return array

    def value(self, stored: str) -> Json:
        """The encoded value of a leaf that is no array (V-11)."""
        leaf, rank = self.leaves[stored]
        part = self.held.values(rank).get("own" if self.scope == "rank" else "shared", {}).get(self.name, {})
        if leaf["name"] not in part or digest(canonical(["ckpt/value", part[leaf["name"]]])) != self.index[stored]["digest"]:
            raise Refused("damaged", f"{stored}: its value is absent, or has another digest (D-6)")
        return part[leaf["name"]]
