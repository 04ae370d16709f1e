"""What can be said of a generation or a start, with the place and the clause of the specification that it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ckptcore import names, records
from ckptcore.history import History
from ckptcore.names import GenerationId

Kind = Literal[
    "resume",
    "begin",
    "stop",
    "passed-over",
    "roll-forward",
    "abort",
    "on-nodes",
    "undetermined",
    "opening",
    "lost-base",
    "next-claim",
    "missing-receipt",
    "failed-receipt",
    "refuted",
    "aborted",
    "unreadable",
    "retired",
    "marked",
    "weights",
    "stray",
    "ancestor",
    "damaged",
    "chunks",
    "whole",
    "undecided",
    "attempt",
    "supervisor",
]
"""What a finding says, as a word for programs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact. `key`: the object that shows it; `leaf`: a stored name, and `chunks` of it by number; `clause`: of the spec."""

    kind: Kind
    text: str
    clause: str = ""
    generation: GenerationId | None = None
    rank: int | None = None
    key: str | None = None
    leaf: str | None = None
    chunks: tuple[int, ...] = ()


def obstacle(history: History, generation: GenerationId) -> Finding | None:
    """Why the records forbid to resume from a generation, None if they do not. Raises as `History.obstacle` does."""
    text = history.obstacle(generation)
    if text is None:
        return None
    kind, clause = _reason(history, generation)
    key = names.ledger_key(generation) if kind in ("unreadable", "aborted") else None
    return Finding(kind=kind, text=text, clause=clause, generation=generation, key=key)


def _reason(history: History, generation: GenerationId) -> tuple[Kind, str]:
    decided = history.decided(generation)
    if decided is None:
        return "unreadable", "P-21, R-11"
    if history.generations.get(generation) and generation != history.newest_base():
        return "retired", "P-21, K-6"
    if isinstance(decided.record, records.Abort):
        return "aborted", "P-1, P-21"
    return ("weights", "P-21, O-18") if decided.record.guarantee.level == "weights" else ("marked", "P-21")
