"""One case in one column: from the scenario to the result."""

from __future__ import annotations

import re
import shutil
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from ckpt_conformance.cases.needs import lacking, missing
from ckpt_conformance.cases.scenario import Case
from ckpt_conformance.cases.states import State
from ckpt_conformance.cases.steps import Job
from ckpt_conformance.jobs.bench import FILE, Bench, Column
from ckpt_conformance.jobs.cell import Cell, NotOffered
from ckpt_conformance.jobs.processes import ProcessError
from ckpt_conformance.place import FilePlace, copy_all
from ckpt_conformance.results import Outcome, Result, StepResult

PAIR = "pair"
"""What a case of two roles needs if it makes no sense with one adapter in both."""


def run_case(case: Case, column: Column, bench: Bench) -> Result:
    """Run a case, unless an adapter does not offer what it needs. Nothing is raised: what the suite gets wrong is an `error`."""
    begun = time.monotonic()
    steps: list[StepResult] = []
    reasons = not_offered(case, column, bench.states, bench.options.kind)
    outcome, message = ("not-offered", "; ".join(reasons)) if reasons else _run(case, column, bench, steps)
    reason = bench.options.expected.get(column.name, {}).get(case.id)
    if reason is not None:
        outcome, message = _as_expected(outcome, message, reason)
    return Result(
        case=case.id,
        family=case.family,
        column=column.name,
        outcome=outcome,
        seconds=round(time.monotonic() - begun, 3),
        title=case.title,
        why=case.why,
        clauses=list(case.clauses),
        steps=steps,
        message=message,
    )


def not_offered(case: Case, column: Column, states: Mapping[str, State], store: str) -> list[str]:
    """What the case needs and an adapter of the column does not offer, each as `jax: feature uneven`."""
    found = ["another adapter for the role b"] if PAIR in case.needs and column.a is column.b else []
    for adapter in dict.fromkeys((column.a.name, column.b.name)):
        describe = (column.a if column.a.name == adapter else column.b).describe
        own = [job for job in case.steps if isinstance(job, Job) and getattr(column, job.adapter).name == adapter]
        lacks = [text for job in own for text in missing(job, describe, states)]
        lacks += lacking([*(need for need in case.needs if need != PAIR), store], describe)
        found += [f"{adapter}: {text}" for text in dict.fromkeys(lacks)]
    return found


def _as_expected(outcome: Outcome, message: str, reason: str) -> tuple[Outcome, str]:
    """Expected failures are strict: a pass is one more failure, and what is not run cannot be on the list."""
    if outcome == "passed":
        return "unexpected-pass", f"expected to fail: {reason}"
    if outcome == "not-offered":
        return "error", f"expected to fail ({reason}), and not offered: {message}"
    return ("expected-failure", f"{reason} {message}") if outcome == "failed" else (outcome, message)


def _run(case: Case, column: Column, bench: Bench, steps: list[StepResult]) -> tuple[Outcome, str]:
    """Run the case in a folder of its own. `steps` takes what was seen."""
    folder = bench.folder / "cells" / slug(case.id) / slug(column.name)
    cell = Cell(column, bench, folder)
    outcome: Outcome = "error"
    try:
        with cell:
            outcome, message = _steps(case, column, bench, cell, steps)
    except ProcessError as error:
        message = str(error)
    except Exception as error:  # noqa: BLE001 - one cell must not end the run; what happened is in the report
        steps.append(StepResult(title="the suite itself failed", log=traceback.format_exc()))
        message = f"the suite itself failed: {type(error).__name__}: {error}"
    try:
        _put_away(cell, bench, keep=outcome not in ("passed", "not-offered"))
    except Exception as error:  # noqa: BLE001 - what was found of the implementation is told all the same
        message = f"{message}\nWhat the cell left could not be put away: {type(error).__name__}: {error}".lstrip()
        outcome = "failed" if outcome == "failed" else "error"
    return outcome, message


def _steps(case: Case, column: Column, bench: Bench, cell: Cell, steps: list[StepResult]) -> tuple[Outcome, str]:
    store = cell.folder / "store"
    if bench.options.kind == FILE:
        steps += bench.beginnings.take(column.a.given, case.steps, store)
        cell.resume_from(steps, case.steps[: len(steps)])
    while len(steps) < len(case.steps):
        try:
            steps.append(cell.take(case.steps[len(steps)]))
        except NotOffered as error:
            return "not-offered", f"the adapter said that it cannot: {error}"
        if problems := steps[-1].problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            return "failed", f"step {len(steps)}, {steps[-1].title}: {problems[0]}{more}"
        if bench.options.kind == FILE:
            bench.beginnings.keep(column.a.given, case.steps[: len(steps)], steps, store)
    return "passed", ""


def _put_away(cell: Cell, bench: Bench, *, keep: bool) -> None:
    """Move what the cell left to where it is wanted, and remove the rest."""
    options = bench.options
    wanted = options.dir is not None and (keep or options.keep)
    for name, place in cell.places.items():
        if options.kind != FILE:
            if wanted:
                copy_all(place, FilePlace(cell.folder / "store" / name))
            found = place.keys()
            for key in found:
                place.delete(key)
    if wanted and cell.folder.exists():
        target = Path(options.dir or "") / cell.folder.relative_to(bench.folder / "cells")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(cell.folder, target)
    shutil.rmtree(cell.folder, ignore_errors=True)


def slug(text: str) -> str:
    """The text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text.replace("→", "-to-"))
