"""The generations of a run as people see them: what became of each, and what was noted on it later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckptcore import notes, records
from ckptcore.errors import CallError, NotFound
from ckptcore.events import shorten
from ckptcore.history import History
from ckptcore.names import GenerationId

State = Literal["committed", "retired", "aborted", "unreadable", "undecided"]


@dataclass(frozen=True)
class Generation:
    """One generation as a listing shows it. `obstacle` says why it cannot be resumed from, None if it can.

    `metrics`, `tags`, `pinned` and `verified` are what its notes say; those on a retired one are not read.
    """

    id: GenerationId
    state: State
    obstacle: str | None
    manifest: records.Manifest | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    pinned: bool = False
    verified: bool = False

    @property
    def generation(self) -> GenerationId:
        """Its ID: so it can be given to everything that takes a generation."""
        return self.id

    @property
    def step(self) -> int:
        """The number of completed updates."""
        return self.id.step

    def __repr__(self) -> str:
        shown = [f"{str(self.id)!r}", repr(self.state)]
        shown += [f"guarantee={self.manifest.guarantee.level!r}"] if self.manifest else []
        shown += [f"obstacle={shorten(self.obstacle)!r}"] if self.obstacle else []
        told = {"metrics": self.metrics, "tags": self.tags, "pinned": self.pinned, "verified": self.verified}
        return f"Generation({', '.join([*shown, *(f'{name}={value!r}' for name, value in told.items() if value)])})"


def describe(history: History, generation: GenerationId) -> Generation:
    """What the records say of `generation`."""
    decided = history.decided(generation)
    if generation in history.unreadable:
        return Generation(generation, "unreadable", str(history.unreadable[generation]), None)
    obstacle = history.obstacle(generation)
    if decided is None:
        return Generation(generation, "undecided", obstacle, None)
    if isinstance(decided.record, records.Abort):
        return Generation(generation, "aborted", obstacle, None)
    told = history.notes.get(generation, [])
    return Generation(
        generation,
        "retired" if history.generations[generation] else "committed",
        obstacle,
        decided.record,
        metrics=notes.metrics(told),
        tags=tuple(sorted(note.tag for note in told if note.tag is not None)),
        pinned=notes.has(told, "pin"),
        verified=notes.has(told, "verified"),
    )


def best(found: Iterable[Generation], metric: str, mode: Literal["min", "max"], *, where: str) -> Generation:
    """The commit with the least, or greatest, value of `metric`; of equal ones the newer. Raises `NotFound` when none has it."""
    if mode not in ("min", "max"):
        raise CallError(f"mode={mode!r}: expected 'min' or 'max'")
    sign = 1 if mode == "max" else -1
    commits = [known for known in found if known.state == "committed"]
    scored = [known for known in commits if not math.isnan(known.metrics.get(metric, math.nan))]
    if not scored:
        noted = sorted({name for known in commits for name in known.metrics})
        raise NotFound(f"{where} has no checkpoint with a metric {metric!r} to compare; noted are {noted}")
    return max(scored, key=lambda known: (sign * known.metrics[metric], known.id))
