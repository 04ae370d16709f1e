"""What the run is, and what goes wrong in it: one thing after the other, each once, whatever attempt it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec

SAMPLES = 480
BATCH = 48
STEPS_PER_EPOCH = SAMPLES // BATCH
TOTAL = 24 * STEPS_PER_EPOCH
SAVE_EVERY = 10
RANKS = 4
FEWEST = 3

Framework = Literal["jax", "torch"]
Doing = Literal["slow", "SIGKILL", "SIGSTOP", "SIGTERM", "dies-in-commit", "raise"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong. `slot`: with the rank on it; None: with the whole job."""

    name: str
    do: Doing
    slot: int | None


FAULTS = (
    Fault(name="straggler", do="slow", slot=2),
    Fault(name="kill", do="SIGKILL", slot=1),
    Fault(name="hang", do="SIGSTOP", slot=2),
    Fault(name="preemption", do="SIGTERM", slot=None),
    Fault(name="coordinator", do="dies-in-commit", slot=0),
    Fault(name="failure", do="raise", slot=3),
    Fault(name="failure-again", do="raise", slot=3),
)
"""In this order. All but the first end the attempt in which they happen."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, as its supervisor and its training program are told of it. `folder`: where ranks log and faults are noted."""

    framework: Framework
    url: str
    folder: str
    cache: str
    faults: bool

    def to_json(self) -> str:
        """The plan as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        return cls(**json.loads(text))

    def log(self, attempt: int, rank: int) -> Path:
        """The log of one rank in one attempt: a JSON object a line."""
        return Path(self.folder) / f"attempt-{attempt:03d}" / f"rank-{rank}.jsonl"

    @property
    def marks(self) -> Path:
        """The folder in which it is noted what has gone wrong."""
        return Path(self.folder) / "marks"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was done: in which attempt, after how many updates, and when (seconds since 1970)."""

    attempt: int
    step: int
    at: float
    generation: str = ""


def due(done: Mapping[str, Mark], attempt: int) -> Fault | None:
    """What goes wrong next in `attempt`; None if it has had its share, or nothing is left."""
    place = next((place for place, fault in enumerate(FAULTS) if fault.name not in done), None)
    if place is None:
        return None
    before = FAULTS[place - 1] if place else None
    over = before is None or before.do == "slow" or done[before.name].attempt < attempt
    return FAULTS[place] if over else None


def is_moment(fault: Fault, step: int, made: int) -> bool:
    """Whether it is to happen in update `step`, the `made`-th of this attempt: between two saves, so that something is lost.

    A commit and a straggler have moments of their own.
    """
    if fault.do == "raise":
        return made == 3
    if fault.do == "SIGTERM":
        return made >= SAVE_EVERY
    return made > SAVE_EVERY and step % SAVE_EVERY == 6


def note(folder: Path, name: str, *, attempt: int, step: int, generation: str = "") -> None:
    """Note that a fault is done now."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = Mark(attempt=attempt, step=step, at=time.time(), generation=generation)
    temporary = folder / f".{name}"
    temporary.write_bytes(msgspec.json.encode(mark))
    temporary.replace(folder / name)


def marks(folder: Path) -> dict[str, Mark]:
    """What is done."""
    names = (fault.name for fault in FAULTS)
    return {name: msgspec.json.decode((folder / name).read_bytes(), type=Mark) for name in names if (folder / name).exists()}
