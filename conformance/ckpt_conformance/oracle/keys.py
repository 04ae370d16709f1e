"""Where the records of a run lie (spec: chapter 3)."""

from __future__ import annotations

import re
from typing import NamedTuple

_GENERATION = r"(?P<generation>(?!000000)[0-9]{6}-[0-9]{12}-[1-9][0-9]{0,5})"
_DIGEST = r"(?P<digest>(?:blake3|sha256)-[0-9a-f]{64})"
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}"
_INCARNATION = r"(?P<incarnation>(?!000000)[0-9]{6})"
_RANK = r"(?P<rank>[0-9]{5})"
_ATTEMPT = r"(?P<attempt>(?!00000000)[0-9]{8})"
_COMPONENT = r"(?P<component>(?!rank_state-)[A-Za-z_][A-Za-z0-9_\-]{0,63})"

_KINDS = {
    "run": r"run\.json",
    "claim": rf"incarnations/{_INCARNATION}/claim\.json",
    "base": rf"incarnations/{_INCARNATION}/base\.json",
    "layout": rf"generations/{_GENERATION}/layouts/{_DIGEST}\.json",
    "values": rf"generations/{_GENERATION}/values/{_RANK}\.json",
    "receipt": rf"generations/{_GENERATION}/receipts/{_RANK}\.json",
    "staged-receipt": rf"generations/{_GENERATION}/staged/{_RANK}\.json",
    "index": rf"generations/{_GENERATION}/index/{_COMPONENT}-{_DIGEST}\.json",
    "roster": rf"generations/{_GENERATION}/roster-{_DIGEST}\.json",
    "decision": rf"ledger/{_GENERATION}\.json",
    "retired": rf"ledger/{_GENERATION}\.retired\.json",
    "staged": rf"ledger/{_GENERATION}\.staged\.json",
    "note": rf"notes/{_GENERATION}/(?P<name>{_SEGMENT})\.json",
    "attempt-node": rf"supervision/{_ATTEMPT}/nodes/(?P<nonce>[0-9a-f]{{8,64}})\.json",
    "attempt-plan": rf"supervision/{_ATTEMPT}/plan\.json",
    "attempt-resumed": rf"supervision/{_ATTEMPT}/resumed\.json",
    "attempt-end": rf"supervision/{_ATTEMPT}/end\.json",
}
_PLACES = {kind: re.compile(pattern) for kind, pattern in _KINDS.items()}
_FOLDER = re.compile(rf"generations/{_GENERATION}/")


class Named(NamedTuple):
    """What the key of a record says: its kind, and the parts of the key by name."""

    kind: str
    parts: dict[str, str]


class Generation(NamedTuple):
    """A generation ID, in the order of generations (L-8)."""

    incarnation: int
    step: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> Generation:
        """The parts of an ID that has the form of L-7."""
        incarnation, step, attempt = text.split("-")
        return cls(int(incarnation), int(step), int(attempt))


def named(key: str) -> Named | None:
    """What record lies at `key`; None for a key that is no place of a record (L-3)."""
    for kind, place in _PLACES.items():
        found = place.fullmatch(key)
        if found:
            return Named(kind, found.groupdict())
    return None


def generation_of(key: str) -> str | None:
    """The generation whose folder `key` lies in."""
    found = _FOLDER.match(key)
    return found["generation"] if found else None


def folder(generation: str) -> str:
    """The folder of a generation, with a slash at its end."""
    return f"generations/{generation}/"


def decision(generation: str) -> str:
    """The key of a generation's decision."""
    return f"ledger/{generation}.json"


def retired(generation: str) -> str:
    """The key of a generation's retired record."""
    return f"ledger/{generation}.retired.json"


def on_nodes(generation: str) -> str:
    """The key of the record that a generation is whole on the nodes (N-4)."""
    return f"ledger/{generation}.staged.json"


def claim(incarnation: int) -> str:
    """The key of an incarnation's claim."""
    return f"incarnations/{incarnation:06}/claim.json"


def base(incarnation: int) -> str:
    """The key of an incarnation's base."""
    return f"incarnations/{incarnation:06}/base.json"


def receipt(generation: str, rank: int) -> str:
    """The key of a rank's receipt."""
    return f"generations/{generation}/receipts/{rank:05}.json"


def staged(generation: str, rank: int) -> str:
    """The key of a rank's staged receipt (N-3)."""
    return f"generations/{generation}/staged/{rank:05}.json"


def values(generation: str, rank: int) -> str:
    """The key of a rank's values."""
    return f"generations/{generation}/values/{rank:05}.json"


def layout(generation: str, digest: str) -> str:
    """The key of a layout of that digest."""
    return f"generations/{generation}/layouts/{in_key(digest)}.json"


def roster(generation: str, digest: str) -> str:
    """The key of the roster of that digest."""
    return f"generations/{generation}/roster-{in_key(digest)}.json"


def index(generation: str, component: str, digest: str) -> str:
    """The key of a component's index of that digest."""
    return f"generations/{generation}/index/{component}-{in_key(digest)}.json"


def database(generation: str, rank: int, nonce: str) -> str:
    """The folder of a rank's database, with a slash at its end (L-15)."""
    return f"generations/{generation}/state/ranks/{rank:05}-{nonce}/"


def state(generation: str) -> str:
    """The folder of the merged view, with a slash at its end."""
    return f"generations/{generation}/state/"


def attempt(number: int, what: str) -> str:
    """The key of a record of a supervisor's attempt: its `plan`, `resumed` or `end` (U-1)."""
    return f"supervision/{number:08}/{what}.json"


def announcement(number: int, nonce: str) -> str:
    """The key by which a node's supervisor announces itself for an attempt (U-18)."""
    return f"supervision/{number:08}/nodes/{nonce}.json"


def in_key(digest: str) -> str:
    """A digest as keys have it (L-13)."""
    return digest.replace(":", "-", 1)


def stored_name(name: str, scope: str, rank: int) -> str:
    """The stored name of the leaf of that layout name (L-21)."""
    return f"rank_state.{rank}.{name}" if scope == "rank" else name
