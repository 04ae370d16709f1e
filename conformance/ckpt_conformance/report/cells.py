"""The details of the HTML page: for each case why it is there, and for each column what was expected and found at every step."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from ckpt_conformance.report import summary
from ckpt_conformance.report.text import by_rank, clean, clip, pretty, seconds, short, tail
from ckpt_conformance.results import Result, Run, StepResult

PAGE = 1_000_000  # characters for all logs and answers of cells that did not pass, shared among them
LEAST = 800  # characters that every one of them gets
PASSED = 500  # characters of an answer that was right


@dataclass(frozen=True)
class Budget:
    """How many characters a log, and an answer, of a cell that did not pass may have: the page stays small however many fail."""

    limit: int

    @classmethod
    def of(cls, run: Run) -> Budget:
        """The budget of a run's page."""
        logs = sum(len(result.steps) for result in run.results if result.outcome != "passed")
        return cls(max(LEAST, min(20_000, PAGE // max(1, 2 * logs))))


def text(value: object, limit: int | None = None) -> str:
    """The value as escaped HTML text, also fit for an attribute in quotation marks."""
    cleaned = clean(str(value))
    return html.escape(cleaned if limit is None else clip(cleaned, limit), quote=True)


def prose(value: str) -> str:
    """A sentence of a scenario as escaped HTML, in which `code` is set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def cell_id(result: Result) -> str:
    """The anchor of a cell, fit for an attribute and for a URL."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{result.case}--{result.column.replace('→', '-to-')}")


def badge(result: Result, label: str) -> str:
    """The outcome of a cell as a colored word; `label` stands before it."""
    return f'<span class="count {result.outcome}">{text(label)}: {summary.WORDS[result.outcome]}</span>'


def detail(run: Run, case: str, cells: dict[str, Result], marks: str, budget: Budget) -> str:
    """Everything about one case, in all columns."""
    first = next(iter(cells.values()))
    badges = " ".join(badge(result, name) for name, result in cells.items())
    columns = "\n".join(_column(run, result, budget) for result in cells.values())
    return (
        f'<details class="case" {marks}><summary><h3>{prose(first.title or case)}</h3> <code>{text(case)}</code> '
        f'<span class="small">{badges}</span></summary>\n'
        f'<div class="body"><p>{prose(first.why)}</p>{_clauses(first)}\n{columns}</div></details>'
    )


def _clauses(result: Result) -> str:
    return f'<p class="small quiet">Clauses of the specification: {text(", ".join(result.clauses))}</p>' if result.clauses else ""


def _column(run: Run, result: Result, budget: Budget) -> str:
    message = f'<p class="message">{text(short(result.message), limit=4000)}</p>' if result.message else ""
    again = (
        ""
        if result.outcome == "not-offered"
        else f'<p class="small quiet">Run it again:</p><pre class="wrap">{text(summary.rerun(run, result))}</pre>'
    )
    return (
        f'<section class="column" id="{cell_id(result)}"><header><h3>{text(result.column)}</h3>'
        f'<span class="count {result.outcome}">{summary.WORDS[result.outcome]}</span>'
        f'<span class="small quiet">{seconds(result.seconds)}</span><a class="small" href="#matrix">matrix</a></header>'
        f"{message}{_steps(result, budget)}{again}</section>"
    )


def _steps(result: Result, budget: Budget) -> str:
    wrong = set() if result.outcome == "passed" else {number for number, _ in summary.trouble(result)}
    stores = [None, *(step.store for step in result.steps)]
    items = [
        _step(step, before=before, wrong=number in wrong, limit=budget.limit if wrong else PASSED, log=bool(wrong))
        for number, (step, before) in enumerate(zip(result.steps, stores, strict=False), 1)
    ]
    return f'<ol class="steps">{"".join(items)}</ol>' if items else ""


def _step(step: StepResult, *, before: Any, wrong: bool, limit: int, log: bool) -> str:
    problems = "".join(f"<li>{text(short(problem), limit=2000)}</li>" for problem in step.problems)
    parts = [
        f'<ul class="problems">{problems}</ul>' if problems else "",
        f'<div class="pair"><div>{_expected(step, limit)}</div><div>{_found(step, limit)}</div></div>',
        _store(step.store, None if wrong else before),
        f'<h4>Log</h4><pre class="wrap">{text(tail(clean(step.log), limit))}</pre>' if log and step.log.strip() else "",
    ]
    return f"<li><details{' open' if wrong else ''}><summary>{text(short(step.title))}</summary>{''.join(parts)}</details></li>\n"


def _json(value: Any, limit: int) -> str:
    return f"<pre>{text(clip(short(pretty(value, 64)), limit))}</pre>"


def _expected(step: StepResult, limit: int) -> str:
    return "" if step.expected is None else f"<h4>Expected</h4>{_json(step.expected, limit)}"


def _found(step: StepResult, limit: int) -> str:
    answers = by_rank(step.found)
    return "".join(f"<h4>Found{f', {label}' if label else ''}</h4>{_json(answer, limit)}" for label, answer in answers)


def _store(store: Any, before: Any) -> str:
    if store is None:
        return ""
    if store == before:
        return '<p class="small quiet">The store held the same as after the step before.</p>'
    if _is_survey(store):
        return f"<h4>The store held</h4>{_survey(store)}"
    if isinstance(store, dict) and all(map(_is_survey, store.values())):
        return "".join(f"<h4>Run {text(run)} held</h4>{_survey(found)}" for run, found in store.items())
    return f"<h4>The store held</h4>{_json(store, 4000)}"


def _is_survey(store: Any) -> bool:
    generations = store.get("generations") if isinstance(store, dict) else None
    return isinstance(generations, dict) and all(isinstance(facts, dict) for facts in generations.values())


def _survey(store: dict[str, Any]) -> str:
    return _incarnations(store) + _generations(store["generations"])


def _incarnations(store: dict[str, Any]) -> str:
    found = store.get("incarnations")
    if not isinstance(found, dict) or not found:
        return ""
    return f'<p class="small">Incarnations: {text(", ".join(f"{number} ({what})" for number, what in found.items()))}</p>'


def _generations(generations: dict[str, dict[str, Any]]) -> str:
    if not generations:
        return '<p class="small">No generation.</p>'
    keys = [
        key
        for key in dict.fromkeys(key for facts in generations.values() for key in facts)
        if any(facts.get(key) for facts in generations.values())
    ]
    head = "".join(f'<th scope="col">{text(key)}</th>' for key in ("generation", *keys))
    rows = "".join(
        f'<tr><th scope="row">{text(short(name))}</th>{"".join(f"<td>{_fact(facts.get(key))}</td>" for key in keys)}</tr>'
        for name, facts in generations.items()
    )
    return f'<div class="scroll"><table class="store"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _fact(fact: Any) -> str:
    if isinstance(fact, list):
        return text(", ".join(map(str, fact)) or "–", limit=300)
    return (
        {True: "yes", False: "no", None: "–"}.get(fact, "")
        if isinstance(fact, bool) or fact is None
        else text(fact or "–", limit=300)
    )
