"""Scenarios: from the files under `scenarios/` to cases whose steps can be run."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt_conformance.cases.steps import Act, Job, Step, known, one_of, step_of
from ckpt_conformance.cases.texts import ScenarioError, fill

_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_CLAUSE = re.compile(r"[A-Z]-[1-9][0-9]*")
_FILE_KEYS = {"title", "why", "clauses", "needs", "stores", "roles", "cases", "steps"}
_CASE_KEYS = {"quick", "title", "why", "clauses", "needs"}
STORES = ("file", "s3")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case: a scenario with its parameters filled in.

    Attributes:
      id: `<family>/<file>.<case>`.
      needs: what adapters have to offer beyond what follows from the steps.
      stores: the kinds of store on which it makes sense.
      roles: the number of adapters, 1 or 2.

    """

    id: str
    title: str
    why: str
    clauses: tuple[str, ...]
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    stores: tuple[str, ...] = STORES
    roles: int = 1
    quick: bool = False

    @property
    def family(self) -> str:
        """The folder of its file."""
        return self.id.partition("/")[0]


def load(folder: Path) -> list[Case]:
    """Every case of the scenarios under `folder`, sorted by file. Raises `ScenarioError` that names the file."""
    paths = sorted(folder.glob("*/*.toml"))
    return [case for path in paths for case in load_file(path)]


def load_file(path: Path) -> list[Case]:
    """The cases of one file, in its order. Raises `ScenarioError` that names the file."""
    name = f"{path.parent.name}/{path.stem}"
    try:
        return cases(name, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ScenarioError) as error:
        raise ScenarioError(f"{name}.toml: {error}") from error


def cases(name: str, table: Mapping[str, Any]) -> list[Case]:
    """The cases of a scenario: `name` is `<family>/<file>`, `table` the content of the file. Raises `ScenarioError`."""
    known("the file", table, _FILE_KEYS, {"title", "why", "clauses", "cases", "steps"})
    for part in (*name.split("/"), *table["cases"]):
        if not _NAME.fullmatch(part):
            raise ScenarioError(f"{part!r} is no name: lower-case letters and digits, parts joined by '-' or '.'")
    if not table["cases"] or not table["steps"]:
        raise ScenarioError("a scenario has at least one case and one step")
    found, used = zip(*(_case(name, key, table) for key in table["cases"]), strict=True)
    unused = {key for case in table["cases"].values() for key in case} - _CASE_KEYS - set().union(*used)
    if unused:
        raise ScenarioError(f"parameter {min(unused)!r} is used by no step")
    return list(found)


def select(found: Iterable[Case], only: Iterable[str], *, quick: bool = False, store: str | None = None) -> list[Case]:
    """The cases that one of `only` names (all, if it is empty; see `names`), of the quick subset, and for that kind of store."""
    patterns = list(only)
    return [
        case
        for case in found
        if (not patterns or any(names(pattern, case.id) for pattern in patterns))
        and (case.quick or not quick)
        and (store is None or store in case.stores)
    ]


def names(pattern: str, case: str) -> bool:
    """Whether `pattern` is the case's ID, a beginning of it, or a glob that matches it."""
    return case.startswith(pattern) or fnmatch.fnmatchcase(case, pattern)


def _case(name: str, key: str, table: Mapping[str, Any]) -> tuple[Case, set[str]]:
    try:
        return _expanded(f"{name}.{key}", table["cases"][key], table)
    except ScenarioError as error:
        raise ScenarioError(f"case {key}: {error}") from error


def _expanded(case_id: str, own: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[Case, set[str]]:
    known("cases", own, own)
    parameters = {key: value for key, value in own.items() if key not in _CASE_KEYS}
    merged = {**table, **{key: own[key] for key in _CASE_KEYS if key in own}}
    texts, used = fill({"title": merged["title"], "why": merged["why"]}, parameters)
    steps: list[Step] = []
    for number, step in enumerate(table["steps"], 1):
        try:
            made, names_used = _step(step, parameters)
        except ScenarioError as error:
            raise ScenarioError(f"step {number}: {error}") from error
        used |= names_used
        steps += made
    case = Case(
        id=case_id,
        steps=tuple(steps),
        clauses=tuple(merged["clauses"]),
        needs=tuple(merged.get("needs", ())),
        stores=tuple(table.get("stores", STORES)),
        roles=table.get("roles", 1),
        quick=own.get("quick", False),
        **texts,
    )
    _check(case)
    return case, used


def _step(table: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[list[Step], set[str]]:
    """The step, or none where its `when` is false, and the parameters that it uses."""
    filled, used = fill(table, parameters)
    when = filled.pop("when", True)
    if type(when) is not bool:
        raise ScenarioError(f"when is {when!r}: expected true or false")
    return ([step_of(filled)] if when else []), used


def _check(case: Case) -> None:
    for clause in case.clauses:
        if not _CLAUSE.fullmatch(clause):
            raise ScenarioError(f"{clause!r} is no clause of the spec")
    if not case.clauses or not case.title or not case.why:
        raise ScenarioError("a case has a title, a reason (why) and a clause")
    one_of("roles", case.roles, {1, 2})
    one_of("quick", case.quick, {True, False})
    for store in case.stores:
        one_of("stores", store, STORES)
    if any(isinstance(step, Job) and step.adapter == "b" for step in case.steps) != (case.roles == 2):
        raise ScenarioError("a scenario has roles = 2 if and only if a step has the adapter b")
    _check_references(case.steps)


def _check_references(steps: Iterable[Step]) -> None:
    """Jobs and answers that a step names belong to a step before it."""
    jobs: set[str] = set()
    answers: set[str] = set()
    for number, step in enumerate(steps, 1):
        if isinstance(step, Job):
            if step.expect and step.expect.like and step.expect.like.name not in answers:
                raise ScenarioError(f"step {number}: no step before it has keep_as = {step.expect.like.name!r}")
            jobs |= {step.background} if step.background else set()
            answers |= {step.keep_as} if step.keep_as else set()
        elif isinstance(step, Act) and "job" in step.fields:
            if step.fields["job"] not in jobs:
                raise ScenarioError(f"step {number}: no step before it has background = {step.fields['job']!r}")
            jobs -= {step.fields["job"]}
