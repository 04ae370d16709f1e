"""What a run of the suite found: the one form that every report is made from. `results.schema.json` describes its JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

VERSION = 1  # of the JSON form

Outcome = Literal["passed", "failed", "error", "unexpected-pass", "expected-failure", "not-offered"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
BAD: frozenset[Outcome] = frozenset(("failed", "error", "unexpected-pass"))
"""The outcomes that make a run fail."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One step of a case, and what was seen after it.

    `expected`, `found` and `store` are JSON values: what the scenario asks for, the answers by rank with their exits, and the
    survey of the store (null where no store was read). `log` is the end of what the processes wrote, by rank.
    """

    title: str
    expected: Any = None
    found: Any = None
    store: Any = None
    problems: list[str] = field(default_factory=list)
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One cell: a case on an adapter, or on a pair of them (`jax→torch`). `message` says what went wrong, in a paragraph."""

    case: str
    family: str
    column: str
    outcome: Outcome
    seconds: float
    title: str = ""
    why: str = ""
    clauses: list[str] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)
    message: str = ""

    @property
    def bad(self) -> bool:
        """Whether this cell makes the run fail."""
        return self.outcome in BAD


@dataclass(frozen=True, kw_only=True)
class Column:
    """An adapter or a pair: its name, the command (commands) that started it, and its answer to `describe`."""

    name: str
    command: str
    describe: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the suite.

    Attributes:
      started: a UTC time as text.
      seconds: the time it took.
      cells: how many cells were asked for; where the run was ended early there are fewer results.
      interrupted: whether it was ended by Ctrl-C or a signal.
      options: what was asked for.

    """

    started: str
    seconds: float
    suite: str
    columns: list[Column]
    results: list[Result]
    cells: int = 0
    interrupted: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def bad(self) -> list[Result]:
        """The cells that make the run fail."""
        return [result for result in self.results if result.bad]


def to_json(run: Run) -> str:
    """The run as JSON text, in ASCII: what adapters print need not be text that UTF-8 can hold."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(run)}, indent=1) + "\n"


def from_json(text: str) -> Run:
    """The run that `to_json` wrote. ValueError for another version, TypeError for fields that are absent or not known."""
    found = json.loads(text)
    if found.pop("version", None) != VERSION:
        raise ValueError(f"These results are not in version {VERSION} of the form.")
    columns = [Column(**column) for column in found.pop("columns")]
    results = [result_from(result) for result in found.pop("results")]
    return Run(columns=columns, results=results, **found)


def result_from(found: Mapping[str, Any]) -> Result:
    """One cell, from its JSON object: a worker process hands its cells over in this form."""
    steps = [StepResult(**step) for step in found["steps"]]
    return Result(**{**found, "steps": steps})
