"""The report as one HTML page that needs nothing else: no network, no fonts, no files beside it. It reads without scripts, too.

Everything that comes from a scenario, an adapter or a store passes through `cells.text`, which escapes it.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template

from ckpt_conformance.report import summary
from ckpt_conformance.report.cells import Budget, badge, cell_id, detail, prose, text
from ckpt_conformance.report.text import listed, seconds
from ckpt_conformance.results import Column, Result, Run


def page(run: Run) -> str:
    """The HTML text."""
    main = [_summary(run), _failures(run), _matrix(run), _details(run)]
    return Template(_part("page.html")).substitute(
        title=f"Conformance: {text(listed([column.name for column in run.columns if '→' not in column.name] or ['no adapter']))}",
        style=_part("page.css"),
        header=_header(run),
        main="\n".join(part for part in main if part),
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return files("ckpt_conformance.report").joinpath(name).read_text(encoding="utf-8").strip()


def _header(run: Run) -> str:
    remarks = "".join(
        f'<p class="verdict failed">{text(remark[0].upper() + remark[1:])}</p>\n' for remark in summary.remarks(run)
    )
    kind, verdict = ("failed", "Does not conform") if run.bad else ("passed", "No failures")
    facts = {"Started": run.started, "Took": seconds(run.seconds), "Suite": run.suite, **_options(run)}
    items = "".join(f"<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>" for key, value in facts.items())
    return (
        f"<h1>Checkpoint format: conformance</h1>\n{remarks}"
        f'<p class="verdict {kind}">{verdict}: {text(summary.headline(run))}</p>\n'
        f'<dl class="facts small">{items}</dl>\n{_adapters(run)}'
    )


def _options(run: Run) -> dict[str, str]:
    """The options that say what was run. Where it was written, and on how many processes, matters to nobody else."""
    given = {name.capitalize(): run.options.get(name) for name in ("store", "endpoint", "region", "quick", "only")}
    shown = {name: ", ".join(value) if isinstance(value, (list, tuple)) else value for name, value in given.items()}
    return {name: "yes" if value is True else str(value) for name, value in shown.items() if value}


def _adapters(run: Run) -> str:
    keys = ("framework", "version", "format", "contract")
    rows = "".join(_adapter(column, keys) for column in run.columns if "→" not in column.name)
    head = "".join(f'<th scope="col">{key.capitalize()}</th>' for key in ("adapter", *keys, "command"))
    return f'<div class="scroll"><table class="tight small"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _adapter(column: Column, keys: tuple[str, ...]) -> str:
    facts = "".join(f"<td>{text(column.describe.get(key, '–'))}</td>" for key in keys)
    return f'<tr><th scope="row">{text(column.name)}</th>{facts}<td><code>{text(column.command)}</code></td></tr>'


def _summary(run: Run) -> str:
    names = summary.columns(run)
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in ("Family", *names))
    rows = []
    for family, cases in summary.matrix(run).items():
        found = [[cells[name] for cells in cases.values() if name in cells] for name in names]
        link = f'<a href="#family-{text(family)}">{text(family)}</a>'
        rows.append(f'<tr><th scope="row">{link}</th>{"".join(f"<td>{_counts(results)}</td>" for results in found)}</tr>')
    return (
        '<section aria-labelledby="summary"><h2 id="summary">Summary</h2><div class="scroll"><table class="tight">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _counts(results: list[Result]) -> str:
    found = summary.counts(results).items()
    return " ".join(f'<span class="count {outcome}">{count} {summary.WORDS[outcome]}</span>' for outcome, count in found)


def _failures(run: Run) -> str:
    if not run.bad:
        return ""
    items = "".join(
        f'<li><a href="#{cell_id(result)}">{text(result.case)}</a> {badge(result, result.column)}<br>{prose(result.title)}'
        f'<p class="small message">{text(result.message or summary.WORDS[result.outcome], limit=1000)}</p></li>\n'
        for result in sorted(run.bad, key=lambda bad: (bad.family, bad.case))
    )
    return f'<section aria-labelledby="failures"><h2 id="failures">Failures</h2><ul class="failures">{items}</ul></section>'


def _matrix(run: Run) -> str:
    groups = "\n".join(_group(family, cases, summary.columns(run)) for family, cases in summary.matrix(run).items())
    return f'<section aria-labelledby="matrix"><h2 id="matrix" tabindex="-1">Matrix</h2>{_bar(run)}\n{groups}</section>'


def _group(family: str, cases: dict[str, dict[str, Result]], names: list[str]) -> str:
    used = [name for name in names if any(name in cells for cells in cases.values())]
    head = "".join(f'<th scope="col">{text(name).replace("→", "→<wbr>")}</th>' for name in ("Case", *used))
    rows = "\n".join(_row(case, cells, used) for case, cells in cases.items())
    return (
        f'<table class="matrix" data-family="{text(family)}" id="family-{text(family)}"><caption>{text(family)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
    )


def _row(case: str, cells: dict[str, Result], names: list[str]) -> str:
    title = next(iter(cells.values())).title
    label = f'<th scope="row">{prose(title or case)} <code>{text(case)}</code></th>'
    return f"<tr {_marks(case, cells)}>{label}{''.join(_cell(cells.get(name)) for name in names)}</tr>"


def _marks(case: str, cells: dict[str, Result]) -> str:
    outcomes = sorted({result.outcome for result in cells.values()} | {"bad" for result in cells.values() if result.bad})
    return f'data-case="{text(case)}" data-outcomes="{" ".join(outcomes)}"'


def _cell(result: Result | None) -> str:
    if result is None:
        return "<td></td>"
    word = "" if result.outcome == "passed" else f" <small>{summary.WORDS[result.outcome]}</small>"
    label = f"{result.column}: {summary.WORDS[result.outcome]}"
    mark = f'<span aria-hidden="true">{summary.MARKS[result.outcome]}{word}</span>'
    return f'<td><a class="cell {result.outcome}" href="#{cell_id(result)}" aria-label="{text(label)}">{mark}</a></td>'


def _bar(run: Run) -> str:
    found = summary.counts(run.results)
    choices = {"": "All"} | ({"bad": "Failures"} if run.bad else {})
    choices |= {
        outcome: summary.WORDS[outcome].capitalize() for outcome in found if outcome not in ("failed", "error", "unexpected-pass")
    }
    buttons = "".join(
        f'<button type="button" value="{value}" aria-pressed="{str(not value).lower()}">{label}</button>'
        for value, label in choices.items()
    )
    search = '<input type="search" placeholder="Search cases, clauses, texts" aria-label="Search cases, clauses and texts">'
    return (
        f'<div class="bar" hidden role="search">{buttons}{search}<output class="small quiet" aria-live="polite"></output></div>'
    )


def _details(run: Run) -> str:
    budget = Budget.of(run)
    cases = "\n".join(
        detail(run, case, cells, _marks(case, cells), budget)
        for group in summary.matrix(run).values()
        for case, cells in group.items()
    )
    return f'<section aria-labelledby="details"><h2 id="details">Details</h2>\n{cases}\n</section>'
