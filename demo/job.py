"""What a training job is told: the only thing that the demo and its training processes share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

TRAIN_SAMPLES = 1536
BATCH = 64
STEPS_PER_EPOCH = TRAIN_SAMPLES // BATCH
SAVE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Process `rank` kills itself in its save of `step`, at `event` (see `demo.faults`)."""

    rank: int
    event: str
    step: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launch of the training job.

    `folder` gets each process's log (`rank-0.jsonl`) and final state (`rank-0.npz`).
    `framework` is that of the program. `mesh` is the shape of JAX's device mesh (data, model): `ranks` times `devices` in all.
    `accept` is the guarantee that the caller accepts when `exact` cannot be kept.
    """

    url: str
    folder: str
    cache: str
    framework: Literal["jax", "torch"] = "jax"
    ranks: int = 2
    devices: int = 2
    mesh: tuple[int, int] = (2, 2)
    total: int = 5 * STEPS_PER_EPOCH
    seed: int = 7
    accept: Literal["exact", "coverage", "replay", "weights"] | None = None
    kill: Kill | None = None

    def to_json(self) -> str:
        """The job as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `to_json` wrote."""
        raw = json.loads(text)
        kill = Kill(**raw.pop("kill")) if raw["kill"] else raw.pop("kill")
        return cls(**{**raw, "mesh": tuple(raw["mesh"]), "kill": kill})

    def log(self, rank: int) -> Path:
        """The log of one process: a JSON object a line."""
        return Path(self.folder) / f"rank-{rank}.jsonl"

    def final(self, rank: int) -> Path:
        """The final state of one process: its shards, by leaf and box."""
        return Path(self.folder) / f"rank-{rank}.npz"

    def errors(self, rank: int) -> Path:
        """What one process wrote to its standard error and output."""
        return Path(self.folder) / f"rank-{rank}.err"
