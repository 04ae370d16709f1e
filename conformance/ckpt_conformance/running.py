"""A run of the suite: adapters asked, cells run through pytest, reports written."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ckpt_conformance import data, plugin, results
from ckpt_conformance.cases.corpus import Corpus, load_corpus
from ckpt_conformance.cases.expected import load_expected
from ckpt_conformance.jobs.adapter import Adapter, described
from ckpt_conformance.jobs.bench import FILE, Column, Options, columns
from ckpt_conformance.report import junit, page, summary, terminal
from ckpt_conformance.results import Result, Run

PROJECT = "jaxckpt"
ROOM = 2**30
"""Bytes that a file system in memory must have free to be worked in."""
_SHM = Path("/dev/shm")  # noqa: S108 - a folder of a random name is made in it
INTERRUPTED = 130


class CallError(Exception):
    """The command line makes no sense. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line said; see `python -m ckpt_conformance run --help`."""

    adapter: str
    cross: str | None = None
    quick: bool = False
    only: list[str] = field(default_factory=list)
    jobs: int = 1
    store: str = FILE
    endpoint: str | None = None
    region: str | None = None
    dir: Path | None = None
    keep: bool = False
    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None


def run(asked: Asked) -> int:
    """Run what was asked for, and report. The exit status. Raises `CallError`, `AdapterError`, `ScenarioError`."""
    _check(asked)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes are ended and files removed, as after Ctrl-C
    with tempfile.TemporaryDirectory(prefix="ckpt-conformance-", dir=_roomy(), ignore_cleanup_errors=True) as work:
        return _run(asked, data.folder("scenarios"), work)


def _run(asked: Asked, scenarios: Path, work: str) -> int:
    corpus = load_corpus(scenarios)
    options = _options(asked, corpus, scenarios, work)
    if not any(plugin.cells(corpus.cases.values(), options)):
        raise CallError("no case was chosen: `python -m ckpt_conformance list` shows all of them")
    begun, started = time.monotonic(), datetime.now(UTC)
    taken = plugin.Results(_tell)
    status = pytest.main(_arguments(options, asked.jobs), plugins=[taken])
    used = {result.column for result in taken.found}
    found = Run(
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - begun, 3),
        suite=_version(),
        columns=[_column(column) for column in _columns(options.adapters) if column.a is column.b or column.name in used],
        results=sorted(taken.found, key=lambda result: (result.case, result.column)),
        options=_shown(asked),
    )
    _report(asked, found)
    if status == pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    return 1 if found.bad or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 0


def _check(asked: Asked) -> None:
    if asked.jobs < 1:
        raise CallError(f"-j {asked.jobs}: expected a positive number")
    if asked.store != FILE and not asked.store.startswith("s3://"):
        raise CallError(f"--store {asked.store}: expected file, or s3://bucket/prefix")
    if asked.store == FILE and (asked.endpoint or asked.region):
        raise CallError("--endpoint and --region are for --store s3://…")
    if asked.keep and asked.dir is None:
        raise CallError("--keep: say where with --dir")
    if asked.cross == asked.adapter:
        raise CallError("--cross is the same adapter as --adapter: without --cross it is crossed with itself")
    for path in (asked.json, asked.junit, asked.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise CallError(f"{path}: there is no folder {path.absolute().parent}")


def _options(asked: Asked, corpus: Corpus, scenarios: Path, work: str) -> Options:
    adapters = _adapters([asked.adapter, *([asked.cross] if asked.cross else [])])
    folder = data.folder("expected")
    return Options(
        adapters=adapters,
        scenarios=str(scenarios),
        work=work,
        store=asked.store,
        endpoint=asked.endpoint,
        region=asked.region,
        only=tuple(asked.only),
        quick=asked.quick,
        dir=str(asked.dir.absolute()) if asked.dir else None,
        keep=asked.keep,
        expected={column.name: load_expected(folder, column.name, corpus.cases) for column in _columns(adapters)},
    )


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
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(options.environment)  # the checker reads the store too
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
    message = f"  {result.message.splitlines()[0][:300]}" if result.message else ""
    print(f"{summary.MARKS[result.outcome]} {result.case} [{result.column}] {result.seconds:.1f} s{message}", flush=True)


def _column(column: Column) -> results.Column:
    if column.a is column.b:
        return results.Column(name=column.name, command=column.a.given, describe=dict(column.a.describe))
    return results.Column(name=column.name, command=f"{column.a.given} → {column.b.given}")


def _shown(asked: Asked) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(asked).items()}


def _report(asked: Asked, found: Run) -> None:
    for path, make in ((asked.json, results.to_json), (asked.junit, junit.junit), (asked.html, page.page)):
        if path is not None:
            path.write_text(make(found), encoding="utf-8")
    print("\n" + terminal.table(found, color=sys.stdout.isatty()), end="")


def _version() -> str:
    try:
        return version(PROJECT)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"


def _roomy() -> Path | None:
    """A file system in memory if there is one with room, else the usual place for temporary files."""
    return _SHM if _SHM.is_dir() and shutil.disk_usage(_SHM).free > ROOM else None
