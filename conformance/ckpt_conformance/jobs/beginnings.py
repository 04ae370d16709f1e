"""Stores that many cases begin with, kept within a process.

Cases often begin with the same saves by the same adapter. The first one runs and checks them; later ones start with a copy of
what it left. That is the same run to whoever reads it: a run knows nothing of the place where it lies.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt_conformance.cases.steps import Job, Step
from ckpt_conformance.results import StepResult


@dataclass(frozen=True)
class Beginning:
    """What some leading steps left: a folder with the runs, and what was seen of the steps."""

    folder: Path
    results: tuple[StepResult, ...]


class Beginnings:
    """Beginnings by adapter and steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[tuple[str, str], Beginning] = {}

    def take(self, adapter: str, steps: Sequence[Step], target: Path) -> tuple[StepResult, ...]:
        """Copy into the folder `target` what as many of the leading steps as possible left. What was seen of these steps."""
        for count in range(leading(steps), 0, -1):
            if beginning := self._kept.get(_key(adapter, steps[:count])):
                shutil.copytree(beginning.folder, target)
                return beginning.results
        return ()

    def keep(self, adapter: str, steps: Sequence[Step], results: Sequence[StepResult], source: Path) -> None:
        """Keep what `steps` left in the folder `source`, if they are such as others begin with, and new."""
        key = _key(adapter, steps)
        if leading(steps) == len(steps) and key not in self._kept:
            folder = self._folder / str(len(self._kept))
            shutil.copytree(source, folder)
            self._kept[key] = Beginning(folder, tuple(results))


def leading(steps: Sequence[Step]) -> int:
    """How many of the first steps are plain saves by the first adapter, which leave the same whoever asks."""
    count = 0
    while count < len(steps) and _is_plain(steps[count]):
        count += 1
    return count


def _is_plain(step: Step) -> bool:
    """What lies on nodes is not kept."""
    is_save = isinstance(step, Job) and step.verb == "save" and step.adapter == "a" and not step.failpoints
    return is_save and not step.fields["nodes"] and step.expect is not None and step.expect.exit == "done"


def _key(adapter: str, steps: Sequence[Step]) -> tuple[str, str]:
    return adapter, repr(tuple(steps))
