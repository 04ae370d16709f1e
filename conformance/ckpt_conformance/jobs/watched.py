"""A run as the suite sees it from step to step: what the checker says of it, and what must not change between two looks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ckpt_conformance.jobs import damage
from ckpt_conformance.oracle import checker, keys
from ckpt_conformance.oracle.checker import Kept, Problem
from ckpt_conformance.place import Place, copy_all


class WatchedRun:
    """A run and its place.

    What the suite itself has spoilt is excused, and no more. An object is excused for as long as it is what the suite left. What
    follows from it elsewhere is excused where the checker sees it right after the damage, in the folder of a generation that the
    step names. A key that the step names is excused whatever follows for it later.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._spoilt: dict[str, bytes | None] = {}
        self._undecided: set[str] = set()
        self._consequences: set[tuple[str, str]] = set()
        self._written: set[str] = set()
        self._named: set[str] = set()
        self._is_fresh = False
        self._decisive: Mapping[str, bytes] = {}
        self._kept: Kept | None = None
        self._lost: set[str] = set()
        self._vouched: set[int] = set()

    def damage(self, ops: Sequence[Mapping[str, Any]], named: Collection[str] = ()) -> None:
        """Damage the store. `named`: the generations, and the keys, that are no longer right by it. Raises `ValueError`."""
        before = checker.survey(self.place).generations
        self._written = set(damage.apply(self.place, ops))
        self._named |= set(named)
        self._is_fresh = True
        self._spoilt |= {key: self.place.read(key) for key in self._written}
        decided = {name for name, facts in before.items() if facts.decision != "none"}
        self._undecided |= {key for key in self._written if keys.generation_of(key) not in decided}

    def vouch(self, incarnations: Collection[int]) -> None:
        """From now on nothing has to be kept for the openings of these incarnations (K-7)."""
        self._vouched.update(incarnations)

    def copy_to(self, other: WatchedRun) -> None:
        """Copy everything, and what is excused of it, to another place."""
        copy_all(self.place, other.place)
        other._spoilt |= self._spoilt
        other._undecided |= self._undecided
        other._consequences |= self._consequences
        other._named |= self._named

    def look(self) -> tuple[list[str], Any]:
        """What is wrong, and the survey."""
        survey = self.survey()
        excused = self._excused(survey)
        found = checker.check(self.place, damaged=excused)
        if self._is_fresh:
            here = [problem for problem in found if keys.generation_of(problem.key) in self._named]
            self._consequences |= {(problem.key, problem.clause) for problem in here}
        problems = list(map(str, self._unexpected([*found, *self._collected(excused)])))
        before, self._decisive = self._decisive, checker.decisive(self.place)
        problems += changes(before, self._decisive, self._written)
        self._written, self._is_fresh = set(), False
        return problems, survey

    def survey(self) -> Any:
        """What the run holds, as JSON (SCENARIOS.md, "Store")."""
        survey = asdict(checker.survey(self.place))
        return {**survey, "incarnations": {str(number): what for number, what in survey["incarnations"].items()}}

    def accept(self) -> None:
        """Take what the run holds now as it is: it was looked at before it was copied here."""
        self._decisive = checker.decisive(self.place)
        self._collected(())

    def _excused(self, survey: Any) -> set[str]:
        """The objects that are as the suite left them. No damage excuses a commit that was made after it.

        A claim stays excused: one that was lost is put again with another nonce, and nobody knows the old one (P-8).
        """
        committed = {name for name, facts in survey["generations"].items() if facts["decision"] == "commit"}
        spoilt = {key for key in self._spoilt if not (key in self._undecided and keys.generation_of(key) in committed)}
        return {key for key in spoilt if key.endswith("/claim.json") or self.place.read(key) == self._spoilt[key]}

    def _unexpected(self, found: Sequence[Problem]) -> list[Problem]:
        new = [problem for problem in found if (problem.key, problem.clause) not in self._consequences]
        return [problem for problem in new if problem.key not in self._named]

    def _collected(self, excused: Collection[str]) -> list[Problem]:
        """What was retired or deleted since the last look although it had to be kept."""
        now = checker.kept(self.place, damaged=excused, vouched=self._vouched)
        before, self._kept = self._kept, now
        wanting = {generation: self._wanting(generation, excused) for generation in now.reasons.keys() & now.retired}
        lost, self._lost = self._lost, {generation for generation, wrong in wanting.items() if wrong}
        if before is None:
            return []
        reasons = now.since(before)
        return [
            *checker.retired_too_much(before, now),
            *(
                Problem(keys.folder(name), "K-7", f"had to be kept, for it is {reasons[name]}: {wanting[name][0]}")
                for name in self._lost - lost
                if name in reasons
            ),
        ]

    def _wanting(self, generation: str, excused: Collection[str]) -> list[Problem]:
        return self._unexpected(checker.wanting(self.place, generation, damaged=excused))


def changes(before: Mapping[str, bytes], after: Mapping[str, bytes], by_suite: Collection[str] = ()) -> list[str]:
    """The records that were there before and have changed or gone (R-9, L-5), but for those that the suite itself wrote."""
    gone = [f"{key} is gone (L-5)" for key in before if key not in after and key not in by_suite]
    changed = [key for key in before if key in after and after[key] != before[key] and key not in by_suite]
    return gone + [f"{key} has changed (R-9)" for key in changed]
