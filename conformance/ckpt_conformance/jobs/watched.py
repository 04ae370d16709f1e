"""A run as the suite sees it from step to step: what the checker says of it, and that no decisive record ever changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ckpt_conformance.oracle import checker
from ckpt_conformance.place import Place


class WatchedRun:
    """A run and its place. `damaged` names the generations and the keys that the suite itself has spoilt."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.damaged: set[str] = set()
        self._decisive: Mapping[str, bytes] = {}

    def look(self, *, by_suite: bool = False) -> tuple[list[str], Any]:
        """What is wrong, and the survey. `by_suite`: what has changed since the last look was changed by the suite itself."""
        found = [
            f"{problem.key}: {problem.text} ({problem.clause})" for problem in checker.check(self.place, damaged=self.damaged)
        ]
        before, self._decisive = self._decisive, checker.decisive(self.place)
        return found + ([] if by_suite else changes(before, self._decisive)), self.survey()

    def survey(self) -> Any:
        """What the run holds, as JSON (SCENARIOS.md, "Store")."""
        survey = asdict(checker.survey(self.place))
        return {**survey, "incarnations": {str(number): what for number, what in survey["incarnations"].items()}}

    def accept(self) -> None:
        """Take what the run holds now as it is: it was looked at before it was copied here."""
        self._decisive = checker.decisive(self.place)


def changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """The records that were there before and have changed or gone (R-9, L-5)."""
    gone = [f"{key} is gone (L-5)" for key in before if key not in after]
    return gone + [f"{key} has changed (R-9)" for key in before if key in after and after[key] != before[key]]
