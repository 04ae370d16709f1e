"""What every report says of a run: how many cells ended how, in which order they stand, and how to run one again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable

from ckpt_conformance.results import OUTCOMES, Outcome, Result, Run, StepResult

MARKS: dict[Outcome, str] = {
    "passed": "✓", "failed": "✗", "error": "!", "unexpected-pass": "‼", "expected-failure": "×", "not-offered": "–",
}  # fmt: skip
WORDS: dict[Outcome, str] = {
    "passed": "passed",
    "failed": "failed",
    "error": "error",
    "unexpected-pass": "passed unexpectedly",
    "expected-failure": "failed as expected",
    "not-offered": "not offered",
}

Matrix = dict[str, dict[str, dict[str, Result]]]


def counts(results: Iterable[Result]) -> dict[Outcome, int]:
    """How many cells ended how, the passed first; outcomes that did not occur are left out."""
    found = Counter(result.outcome for result in results)
    return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}


def headline(run: Run) -> str:
    """`12 cells: 10 passed, 1 failed, 1 not offered`."""
    number = len(run.results)
    found = ", ".join(f"{count} {WORDS[outcome]}" for outcome, count in counts(run.results).items())
    return f"{number} {'cell' if number == 1 else 'cells'}: {found or 'nothing was run'}"


def remarks(run: Run) -> list[str]:
    """What is wrong with the run as a whole, whatever its cells say. Empty: it is complete, and every column was tested."""
    number = len(run.results)
    if run.interrupted:
        return [f"interrupted after {number} of {run.cells} cells"]
    found = [f"{run.cells - number} of {run.cells} cells have no result"] if number < run.cells else []
    return found + [f"nothing was tested{where}: what is not offered is not run" for where in _untested(run)]


def _untested(run: Run) -> list[str]:
    """Columns none of whose cells was run. A direction whose writer says that it does not save is none of them."""
    tested = {result.column for result in run.results if result.outcome != "not-offered"}
    if not tested:
        return [""]
    saves = {column.name: "save" in column.describe.get("verbs", ["save"]) for column in run.columns}
    names = dict.fromkeys(result.column for result in run.results if result.column not in tested)
    return [f" in the column {name}" for name in names if "→" not in name or saves.get(name.partition("→")[0], True)]


def matrix(run: Run) -> Matrix:
    """Family → case → column → cell. Families and cases are sorted by name, columns stand in the order of the run."""
    cells: Matrix = {}
    for result in sorted(run.results, key=lambda result: (result.family, result.case)):
        cells.setdefault(result.family, {}).setdefault(result.case, {})[result.column] = result
    return cells


def columns(run: Run) -> list[str]:
    """Names of the columns: those of the run, then those that only results name."""
    return list(dict.fromkeys([column.name for column in run.columns] + [result.column for result in run.results]))


def trouble(result: Result) -> list[tuple[int, StepResult]]:
    """The steps of a cell at which something was wrong, each with its number; where none says so, the last."""
    steps = list(enumerate(result.steps, 1))
    return [item for item in steps if item[1].problems] or steps[-1:]


def rerun(run: Run, result: Result) -> str:
    """The shell command that runs just this cell's case again, in the same way."""
    commands = {column.name: column.command for column in run.columns if "→" not in column.name}
    adapters = [commands.get(name, name) for name in result.column.split("→")]
    words = ["python", "-m", "ckpt_conformance", "run", "--adapter", adapters[0]]
    if len(adapters) > 1:
        words += ["--cross", adapters[1]]
    for option in ("store", "endpoint", "region"):
        if run.options.get(option) not in (None, "", "file"):
            words += [f"--{option}", str(run.options[option])]
    return shlex.join([*words, "--only", result.case])
