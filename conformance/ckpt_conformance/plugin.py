"""The pytest plug-in that runs cells: one item a cell, and a result for each of them.

`python -m ckpt_conformance run` calls pytest with it. pytest adds the order, several processes (pytest-xdist), and what to do
when one of them dies; `execute.run_case` is what an item does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.cases.corpus import load_corpus
from ckpt_conformance.cases.scenario import Case, load_file, select
from ckpt_conformance.jobs.bench import Bench, Column, Options, columns
from ckpt_conformance.jobs.execute import run_case
from ckpt_conformance.results import Result, result_from
from ckpt_conformance.signals import end_as_ctrl_c

OPTION = "--ckpt-options"
_PROPERTY = "ckpt-result"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options come as the JSON of `bench.Options`."""
    parser.addoption(OPTION, default=None, help="options of the conformance suite, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Without options the plug-in does nothing."""
    text = config.getoption(OPTION)
    if text is not None:
        end_as_ctrl_c()
        config.pluginmanager.register(Suite(Options.from_json(text)), "ckpt-suite")


class Suite:
    """The hooks of one process: the items, and the bench that they share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._bench: Bench | None = None

    @property
    def bench(self) -> Bench:
        """Made with the first item: a process that only tells others what to run needs none."""
        if self._bench is None:
            self._bench = Bench(self.options, load_corpus(Path(self.options.scenarios)))
        return self._bench

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Every scenario file is a collection of cells."""
        if file_path.suffix != ".toml" or file_path.parent.parent != Path(self.options.scenarios):
            return None
        return ScenarioFile.from_parent(parent, path=file_path, suite=self)

    def pytest_sessionfinish(self) -> None:
        """End every process, remove what is not kept."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None


class ScenarioFile(pytest.File):
    """A scenario file."""

    def __init__(self, *, suite: Suite, **rest: Any) -> None:
        super().__init__(**rest)
        self._suite = suite

    def collect(self) -> Iterable[pytest.Item]:
        """A cell for each chosen case in each of its columns."""
        for case, column in cells(load_file(self.path), self._suite.options):
            yield CellItem.from_parent(self, name=f"{case.id}[{column.name}]", suite=self._suite, case=case, column=column)


class CellItem(pytest.Item):
    """A case in a column."""

    def __init__(self, *, suite: Suite, case: Case, column: Column, **rest: Any) -> None:
        super().__init__(**rest)
        self._suite = suite
        self._case = case
        self._column = column

    def runtest(self) -> None:
        """Run the cell. Its result travels with the report of the item."""
        result = run_case(self._case, self._column, self._suite.bench)
        self.user_properties.append((_PROPERTY, json.dumps(asdict(result))))
        if result.bad:
            pytest.fail(result.message, pytrace=False)
        if result.outcome == "not-offered":
            pytest.skip(result.message)
        if result.outcome == "expected-failure":
            pytest.xfail(result.message)


class Results:
    """Takes the result of every cell as it ends; registered where the reports are made."""

    def __init__(self, told: Callable[[Result], None]) -> None:
        self.found: list[Result] = []
        self._told = told
        self._is_interrupted = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A process of pytest-xdist has ended. If Ctrl-C has ended it, what it was at is not lost but interrupted."""
        self._is_interrupted |= error == "keyboard-interrupt"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A cell has ended, or the process that ran it has."""
        text = dict(report.user_properties).get(_PROPERTY)
        if report.when == "call" and isinstance(text, str):
            result = result_from(json.loads(text))
        elif report.failed and not self._is_interrupted:
            result = _lost(report)
        else:
            return
        self.found.append(result)
        self._told(result)


def cells(cases: Iterable[Case], options: Options) -> Iterator[tuple[Case, Column]]:
    """The cells that are asked for."""
    for case in select(cases, options.only, quick=options.quick, store=options.kind):
        for column in columns(options.adapters, case.roles):
            yield case, column


def _lost(report: pytest.TestReport) -> Result:
    """A cell without a result: its process died."""
    case, _, column = report.nodeid.rpartition("::")[2].rstrip("]").partition("[")
    message = f"no result came back: {report.longreprtext}"
    return Result(case=case, family=case.partition("/")[0], column=column, outcome="error", seconds=0.0, message=message)
