"""A run of the suite: adapters asked, cells run through pytest, reports written."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ckpt_conformance import data, plugin, results
from ckpt_conformance.asked import Asked, CallError, check, check_only
from ckpt_conformance.cases.corpus import Corpus, load_corpus
from ckpt_conformance.cases.expected import load_expected
from ckpt_conformance.jobs.adapter import Adapter, described
from ckpt_conformance.jobs.bench import FILE, Column, Options, columns
from ckpt_conformance.jobs.execute import slug
from ckpt_conformance.place import clear
from ckpt_conformance.report import junit, page, summary, terminal
from ckpt_conformance.report.text import cut
from ckpt_conformance.results import Result, Run
from ckpt_conformance.signals import end_as_ctrl_c
from ckpt_conformance.work import work_folder

PROJECT = "jaxckpt"
INTERRUPTED = 130
LINE = 300
"""Characters of a message that is shown as a cell ends."""


def run(asked: Asked) -> int:
    """Run what was asked for, and report. The exit status. Raises `CallError`, `AdapterError`, `ScenarioError`."""
    end_as_ctrl_c()
    check(asked)
    scenarios = data.folder("scenarios")
    corpus = load_corpus(scenarios)
    check_only(asked, corpus.cases.values())
    with work_folder() as work:
        return _run(asked, _options(asked, corpus, scenarios, work), corpus)


def _run(asked: Asked, options: Options, corpus: Corpus) -> int:
    cells = len(list(plugin.cells(corpus.cases.values(), options)))
    if not cells:
        raise CallError("no case was chosen: `python -m ckpt_conformance list` shows all of them")
    begun, started = time.monotonic(), datetime.now(UTC)
    taken = plugin.Results(_tell)
    status = _pytest(options, asked.jobs, taken)
    used = {result.column for result in taken.found}
    found = Run(
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - begun, 3),
        suite=_version(),
        cells=cells,
        interrupted=status == pytest.ExitCode.INTERRUPTED,
        columns=[_column(column) for column in _columns(options.adapters) if column.a is column.b or column.name in used],
        results=sorted(taken.found, key=lambda result: (result.case, result.column)),
        options=_shown(asked),
    )
    is_written = _report(asked, found)
    if found.interrupted:
        return INTERRUPTED
    if not is_written:
        return 2
    is_good = status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not found.bad and not summary.remarks(found)
    return 0 if is_good else 1


def _pytest(options: Options, jobs: int, taken: plugin.Results) -> int:
    """Run the cells. The exit status of pytest. What they have left in a bucket is removed, however it ends."""
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(options.environment)  # the checker reads the store too
    try:
        return pytest.main(_arguments(options, jobs), plugins=[taken])
    finally:
        if options.kind != FILE:
            _clear(options)


def _clear(options: Options) -> None:
    """A bucket that does not answer any more must not cost the reports."""
    try:
        clear(options.place, options.storage)
    except (OSError, ValueError, RuntimeError) as error:  # those of TensorStore
        print(f"ckpt_conformance: {options.place} could not be removed: {error}", file=sys.stderr)


def _options(asked: Asked, corpus: Corpus, scenarios: Path, work: Path) -> Options:
    adapters = _adapters([asked.adapter, *([asked.cross] if asked.cross else [])])
    return Options(
        adapters=adapters,
        scenarios=str(scenarios),
        work=str(work),
        store=asked.store,
        endpoint=asked.endpoint,
        region=asked.region,
        only=tuple(asked.only),
        quick=asked.quick,
        dir=str(asked.dir.absolute()) if asked.dir else None,
        keep=asked.keep,
        expected={column.name: _expected(asked, column.name, corpus) for column in _columns(adapters)},
    )


def _expected(asked: Asked, column: str, corpus: Corpus) -> Mapping[str, str]:
    """The known failures of a column: those that come with the suite, and those of `--expected`."""
    folders = [data.folder("expected"), *([asked.expected] if asked.expected else [])]
    return {case: why for folder in folders for case, why in load_expected(folder, column, corpus.cases).items()}


def _adapters(given: Sequence[str]) -> tuple[Adapter, ...]:
    """The adapters, asked what they offer; no two of the same name."""
    found: list[Adapter] = []
    for command in given:
        adapter = described(command)
        is_taken = any(adapter.name == other.name for other in found)
        found.append(replace(adapter, name=f"{adapter.name}-2") if is_taken else adapter)
    return tuple(found)


def _columns(adapters: Sequence[Adapter]) -> list[Column]:
    return list({column.name: column for roles in (1, 2) for column in columns(adapters, roles)}.values())


def _arguments(options: Options, jobs: int) -> list[str]:
    """Arguments of pytest, such that nothing that lies around (an ini file, a conftest, other plug-ins) has a say."""
    parallel = ["-p", "xdist", "-n", str(jobs), "--dist=worksteal"] if jobs > 1 else []
    quiet = [part for name in ("cacheprovider", "terminal") for part in ("-p", f"no:{name}")]
    alone = [
        "-c",
        os.devnull,
        "--rootdir",
        options.scenarios,
        "--noconftest",
        "--disable-plugin-autoload",
        "--import-mode=importlib",
    ]
    return ["-p", "ckpt_conformance.plugin", *quiet, *alone, *parallel, plugin.OPTION, options.to_json(), options.scenarios]


def _tell(result: Result) -> None:
    """A line as a cell ends."""
    message = f"  {cut(_first_line(result), LINE)}" if result.message else ""
    _print(f"{summary.MARKS[result.outcome]} {result.case} [{result.column}] {result.seconds:.1f} s{message}")


def _first_line(result: Result) -> str:
    """What went wrong, or what is not offered, with the name of a single adapter once."""
    line = result.message.splitlines()[0]
    return line.replace(f"; {result.column}: ", ", ") if result.outcome == "not-offered" else line


def _column(column: Column) -> results.Column:
    if column.a is column.b:
        return results.Column(name=column.name, command=column.a.given, describe=dict(column.a.describe))
    return results.Column(name=column.name, command=f"{column.a.given} → {column.b.given}")


def _shown(asked: Asked) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(asked).items()}


def _report(asked: Asked, found: Run) -> bool:
    """Show the run, and write the reports. Whether all of them were written."""
    _print("\n" + terminal.table(found, color=sys.stdout.isatty(), kept=lambda result: _kept(asked, result)).rstrip("\n"))
    makers = {"--json": results.to_json, "--junit": junit.junit, "--html": page.page}
    written = [_write(option, path, makers[option](found)) for option, path in asked.reports.items()]
    return all(written)


def _write(option: str, path: Path, text: str) -> bool:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"ckpt_conformance: {option} {path}: {error.strerror}", file=sys.stderr)
        return False
    return True


def _kept(asked: Asked, result: Result) -> str:
    """The folder in which `--dir` kept a cell, empty if it did not."""
    folder = asked.dir / slug(result.case) / slug(result.column) if asked.dir else None
    return str(folder) if folder and folder.is_dir() else ""


def _print(text: str) -> None:
    """Print; a reader that is gone (a closed terminal, `| head`) does not end the run: it writes reports, too."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version(PROJECT)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"
