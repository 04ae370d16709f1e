"""The report as JUnit XML: a suite for each family, a test case for each cell."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ckpt_conformance.report import summary
from ckpt_conformance.report.text import clean, tail
from ckpt_conformance.results import Result, Run

LOG = 20_000  # characters of the log of a failed cell


def junit(run: Run) -> str:
    """The XML text. Cells that are not offered or that fail as expected are skipped tests; a remark on the run is an error."""
    root = Element("testsuites", {"name": "checkpoint conformance", "time": f"{run.seconds:.3f}", **_totals(run)})
    for family, cases in summary.matrix(run).items():
        results = [result for cells in cases.values() for result in cells.values()]
        duration = sum(result.seconds for result in results)
        facts = {"name": clean(family), "time": f"{duration:.3f}", "timestamp": clean(run.started), **_counted(results)}
        suite = SubElement(root, "testsuite", facts)
        for result in results:
            _case(suite, run, result)
    if remarks := summary.remarks(run):
        _remarks(root, remarks)
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _totals(run: Run) -> dict[str, str]:
    remarks = len(summary.remarks(run))
    return _counted(run.results, tests=remarks, errors=remarks)


def _remarks(root: Element, remarks: list[str]) -> None:
    """What is wrong with the run as a whole."""
    number = str(len(remarks))
    suite = SubElement(root, "testsuite", name="run", tests=number, failures="0", errors=number, skipped="0", time="0.000")
    for remark in remarks:
        SubElement(SubElement(suite, "testcase", classname="run", name=remark, time="0.000"), "error", message=clean(remark))


def _counted(results: Iterable[Result], *, tests: int = 0, errors: int = 0) -> dict[str, str]:
    results = list(results)
    found = summary.counts(results)
    failures = found.get("failed", 0) + found.get("unexpected-pass", 0)
    skipped = found.get("not-offered", 0) + found.get("expected-failure", 0)
    tests, errors = tests + len(results), errors + found.get("error", 0)
    totals = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    return {key: str(number) for key, number in totals.items()}


def _case(suite: Element, run: Run, result: Result) -> None:
    name = clean(f"{result.case}[{result.column}]")
    case = SubElement(
        suite, "testcase", classname=clean(f"{result.family}.{result.column}"), name=name, time=f"{result.seconds:.3f}"
    )
    properties = SubElement(case, "properties")
    for clause in result.clauses:
        SubElement(properties, "property", name="clause", value=clean(clause))
    if result.outcome != "passed":
        _outcome(case, run, result)


def _outcome(case: Element, run: Run, result: Result) -> None:
    tags = {"failed": "failure", "unexpected-pass": "failure", "error": "error"}
    message = clean(result.message or summary.WORDS[result.outcome])
    element = SubElement(case, tags.get(result.outcome, "skipped"), message=message)
    if result.bad:
        element.text = clean("\n".join([result.title, *_problems(result), f"rerun: {summary.rerun(run, result)}"]))
        SubElement(case, "system-err").text = tail(clean("\n".join(step.log for _, step in summary.trouble(result))), LOG)


def _problems(result: Result) -> list[str]:
    return [f"step {number}, {step.title}: {problem}" for number, step in summary.trouble(result) for problem in step.problems]
