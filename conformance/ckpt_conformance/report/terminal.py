"""The report for a terminal: counts by family and column, then every failure with what to do about it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from ckpt_conformance.report import summary
from ckpt_conformance.report.text import by_rank, clean, clip, pretty, seconds, short
from ckpt_conformance.results import BAD, Outcome, Result, Run, StepResult

WIDTH = 100
LIMIT = 1200  # characters of an answer
_PROCESS = re.compile(r"^--- rank (\d+), process \d+\n", re.MULTILINE)
CODES: dict[Outcome, str] = {
    "passed": "32",
    "failed": "31;1",
    "error": "35;1",
    "unexpected-pass": "33;1",
    "expected-failure": "33",
}


def table(run: Run, *, color: bool = False, kept: Callable[[Result], str] = lambda _: "") -> str:
    """The whole report.

    `color` is for terminals: with it, counts and outcomes are colored by ANSI escapes. `kept` gives the folder that holds
    what a failed cell left, or an empty text.
    """
    parts = [_counts(run, color=color)] if run.results else []
    for result in sorted(run.bad, key=lambda bad: (bad.family, bad.case)):
        folder = kept(result)
        parts += [_failure(run, result, color=color) + (f"\n  kept in: {folder}" if folder else "")]
    if run.bad and not run.options.get("dir"):
        parts.append("With --dir DIR the logs and stores of failed cells are kept; --html FILE shows them on one page.")
    parts.append(f"{summary.headline(run)}, in {seconds(run.seconds)}")
    parts += [_paint(f"{summary.MARKS['error']} {remark}", "error", color=color) for remark in summary.remarks(run)]
    return "\n\n".join(parts) + "\n"


def _paint(text: str, outcome: Outcome, *, color: bool) -> str:
    code = CODES.get(outcome)
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def _counts(run: Run, *, color: bool) -> str:
    names = summary.columns(run)
    rows = [["", *map(clean, names)]]
    for family, cases in summary.matrix(run).items():
        rows.append([clean(family), *(_cell([cells[name] for cells in cases.values() if name in cells]) for name in names)])
    rows.append(["all", *(_cell([result for result in run.results if result.column == name]) for name in names)])
    lines = _aligned(rows)
    lines[1:1] = [rule := "─" * max(map(len, lines))]
    lines[-1:-1] = [rule]
    return "\n".join(_painted(line, color=color) for line in lines) + "\n\n" + _legend(run, color=color)


def _cell(results: Sequence[Result]) -> str:
    return " ".join(f"{count}{summary.MARKS[outcome]}" for outcome, count in summary.counts(results).items())


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _painted(line: str, *, color: bool) -> str:
    outcomes: dict[str, Outcome] = {mark: outcome for outcome, mark in summary.MARKS.items()}
    words = line.split(" ")
    return " ".join(_paint(word, outcomes[word[-1]], color=color) if word[:-1].isdigit() else word for word in words)


def _legend(run: Run, *, color: bool) -> str:
    found = summary.counts(run.results)
    return "   ".join(_paint(f"{summary.MARKS[outcome]} {summary.WORDS[outcome]}", outcome, color=color) for outcome in found)


def _failure(run: Run, result: Result, *, color: bool) -> str:
    head = _paint(clean(f"{summary.MARKS[result.outcome]} {result.case}  [{result.column}]"), result.outcome, color=color)
    lines = [f"{head}  {clean(' '.join(result.clauses))}", *_wrapped(result.title)]
    lines += _wrapped(result.message or summary.WORDS[result.outcome])
    if result.outcome in BAD - {"unexpected-pass"}:
        for number, step in summary.trouble(result):
            lines += _step(number, step)
    return "\n".join([*lines, f"  rerun: {clean(summary.rerun(run, result))}"])


def _step(number: int, step: StepResult) -> list[str]:
    lines = _wrapped(f"step {number}: {step.title}")
    lines += [line for problem in step.problems for line in _wrapped(f"- {problem}", "    ")]
    if step.expected is not None:
        lines += _block("expected", step.expected)
    for label, answer in by_rank(step.found):
        lines += _block(f"found, {label}" if label else "found", answer)
    return lines + [line for rank, said in _last_words(step) for line in _wrapped(f"rank {rank} wrote last: {said}", "    ")]


def _last_words(step: StepResult) -> Iterator[tuple[int, str]]:
    """The last line of the log of each process that ended without an answer, by a traceback, say."""
    answered = {item.get("rank") for item in step.found or () if isinstance(item, dict) and item.get("answer") is not None}
    parts = _PROCESS.split(step.log)
    for rank, log in zip(map(int, parts[1::2]), parts[2::2], strict=True):
        lines = log.strip().splitlines()
        if lines and rank not in answered:
            yield rank, lines[-1]


def _wrapped(text: str, margin: str = "  ") -> list[str]:
    return [
        part
        for line in short(clean(text)).splitlines()
        for part in textwrap.wrap(line, WIDTH, initial_indent=margin, subsequent_indent=margin + "  ", break_on_hyphens=False)
    ]


def _block(label: str, value: object) -> list[str]:
    text = clip(short(clean(pretty(value, WIDTH - 8))), LIMIT)
    return [f"    {label}:", *textwrap.indent(text, "      ").splitlines()]
