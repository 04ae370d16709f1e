"""The log of one training process: a JSON object a line, written by it, read by the demo."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one process logged of one step. `loss` is the float's exact hexadecimal form."""

    loss: str
    rng: tuple[int, ...]
    samples: tuple[int, ...]


@dataclass(kw_only=True)
class RankLog:
    """What one process logged in one launch."""

    start: int | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    killed: str | None = None
    accuracy: float | None = None
    cursor: Any = None

    @property
    def last(self) -> int:
        """The last step that was logged; the start when there was none."""
        return max(self.steps, default=self.start or 0)

    def loss(self, step: int) -> float:
        """The loss of a step that was logged."""
        return float.fromhex(self.steps[step].loss)


def write_line(log: TextIO, **line: Any) -> None:
    """Write one line whole and hand it to the kernel at once: a killed process loses none."""
    log.write(json.dumps(line) + "\n")
    log.flush()


def read_log(path: Path) -> RankLog:
    """Read one process's log. A last line that a kill cut short is passed over."""
    log = RankLog()
    lines = path.read_text().split("\n") if path.exists() else []
    for line in lines[:-1]:  # what follows the last newline is empty, or cut short
        raw = json.loads(line)
        if "step" in raw:
            log.steps[raw["step"]] = Step(loss=raw["loss"], rng=tuple(raw["rng"]), samples=tuple(raw["samples"]))
        else:
            log.start = raw.get("start", log.start)
            log.killed = raw.get("killed", log.killed)
            log.accuracy = raw.get("accuracy", log.accuracy)
            log.cursor = raw.get("cursor", log.cursor)
    return log
