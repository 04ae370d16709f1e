"""What ranks have logged, and which of it counts in the end: steps that were lost are made again by a later attempt.

Pure, but for `read` and `read_rank`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """What one rank logged of one update. `loss`: the float's exact hexadecimal form. `state`: a digest of what it holds."""

    loss: str
    state: str
    samples: tuple[int, ...]


@dataclass(kw_only=True)
class RankLog:
    """What one rank logged in one attempt. `start`: None if it had not begun. `position`: of the data cursor, at the end."""

    start: int | None = None
    size: int = 0
    slot: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    position: int | None = None


Logs = Mapping[int, Sequence[RankLog]]
"""Attempt → its ranks, in order."""


@dataclass(frozen=True)
class Made:
    """An update as it counts: which attempt made it, and what each of its ranks logged."""

    attempt: int
    ranks: tuple[Step, ...]

    @property
    def samples(self) -> list[int]:
        """The global batch."""
        return [sample for rank in self.ranks for sample in rank.samples]


def began(ranks: Sequence[RankLog]) -> bool:
    """Whether all ranks of an attempt have begun to train."""
    return bool(ranks) and len(ranks) == ranks[0].size and all(rank.start is not None for rank in ranks)


def complete(ranks: Sequence[RankLog]) -> list[int]:
    """The updates that every rank has made."""
    return sorted(set.intersection(*(set(rank.steps) for rank in ranks)))


def history(logs: Logs) -> dict[int, Made]:
    """Update → as it counts in the end. An attempt makes all updates after its start anew."""
    found: dict[int, Made] = {}
    for attempt, ranks in sorted(logs.items()):
        if began(ranks):
            start = min(rank.start or 0 for rank in ranks)
            found = {step: made for step, made in found.items() if step <= start}
            found |= {step: Made(attempt, tuple(rank.steps[step] for rank in ranks)) for step in complete(ranks)}
    return found


def disagreeing(logs: Logs) -> list[str]:
    """Attempts whose ranks did not all begin at the same step."""
    starts = {attempt: {rank.start for rank in ranks} for attempt, ranks in sorted(logs.items()) if began(ranks)}
    return [f"attempt {attempt} began at {sorted(map(str, found))}" for attempt, found in starts.items() if len(found) > 1]


def undivided(logs: Logs, size: int) -> tuple[Logs, int]:
    """The attempts before the first that had not `size` ranks, and the update after which that one began."""
    others = [attempt for attempt, ranks in sorted(logs.items()) if began(ranks) and ranks[0].size != size]
    if not others:
        return logs, max(history(logs), default=0)
    before = {attempt: ranks for attempt, ranks in logs.items() if attempt < others[0]}
    return before, logs[others[0]][0].start or 0


def differences(logs: Logs, reference: Mapping[int, Made]) -> tuple[int, list[str]]:
    """Every update of every rank beside the reference's, also those lost later: how many were the same, and the others."""
    same, found = 0, list[str]()
    for attempt, ranks in sorted(logs.items()):
        for number, rank in enumerate(ranks):
            for step, made in sorted(rank.steps.items()):
                expected = reference[step].ranks[number] if step in reference else None
                same += made == expected
                if made != expected:
                    found.append(f"step {step} of rank {number} in attempt {attempt}")
    return same, found


def read(folder: Path) -> dict[int, list[RankLog]]:
    """All logs in a folder."""
    attempts = sorted(folder.glob("attempt-*"))
    return {int(each.name.split("-")[1]): [read_rank(path) for path in _ranks(each)] for each in attempts}


def read_rank(path: Path) -> RankLog:
    """One rank's log. A last line that a kill cut short is passed over."""
    log = RankLog()
    for line in path.read_text().split("\n")[:-1]:  # what follows the last newline is empty, or cut short
        raw = json.loads(line)
        if "step" in raw:
            log.steps[raw["step"]] = Step(raw["loss"], raw["state"], tuple(raw["samples"]))
        elif "start" in raw:
            log.start, log.size, log.slot = raw["start"], raw["size"], raw["slot"]
        else:
            log.position = raw["position"]
    return log


def _ranks(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*.jsonl"), key=lambda path: int(path.stem.split("-")[1]))
