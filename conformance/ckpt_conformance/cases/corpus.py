"""All that the suite asks: the cases and the states that their steps name, read from the data files and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ckpt_conformance.cases.boxes import axes_of
from ckpt_conformance.cases.scenario import Case, load
from ckpt_conformance.cases.states import State, load_states
from ckpt_conformance.cases.steps import Job
from ckpt_conformance.cases.texts import ScenarioError


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The cases by ID, in the order of their files, and the states by name."""

    cases: Mapping[str, Case]
    states: Mapping[str, State]


def load_corpus(folder: Path) -> Corpus:
    """The corpus under a folder `scenarios`. Raises `ScenarioError`, also for a state or a mesh axis that is not there."""
    states = load_states(folder / "states.toml")
    cases = {case.id: case for case in load(folder)}
    for case in cases.values():
        for number, step in enumerate(case.steps, 1):
            if isinstance(step, Job):
                _check(f"{case.id}: step {number}", step, states)
    return Corpus(cases=cases, states=states)


def _check(where: str, job: Job, states: Mapping[str, State]) -> None:
    for name in job.states:
        if name not in states:
            raise ScenarioError(f"{where}: there is no state {name!r} in states.toml")
        for leaf in states[name]["leaves"]:
            if unknown := axes_of(leaf) - set(job.mesh):
                raise ScenarioError(
                    f"{where}: the mesh has no axis {min(unknown)!r}, and {leaf['name']} of the state {name} is sharded over it"
                )
