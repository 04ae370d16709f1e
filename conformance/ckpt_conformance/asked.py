"""What the command line asks for, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ckpt_conformance.cases.scenario import Case, select
from ckpt_conformance.jobs.adapter import command_of
from ckpt_conformance.jobs.bench import FILE


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
    expected: Path | None = None
    dir: Path | None = None
    keep: bool = False
    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None

    @property
    def reports(self) -> dict[str, Path]:
        """Where reports are wanted, by option."""
        given = {"--json": self.json, "--junit": self.junit, "--html": self.html}
        return {option: path for option, path in given.items() if path is not None}


def check(asked: Asked) -> None:
    """Raises `CallError` for what makes no sense, or could not be written after a run of minutes. Makes the folder of `--dir`."""
    _check_adapters(asked)
    _check_store(asked)
    if asked.jobs < 1:
        raise CallError(f"-j {asked.jobs}: expected a positive number")
    if asked.expected is not None and not asked.expected.is_dir():
        raise CallError(f"--expected {asked.expected}: there is no such folder")
    _check_reports(asked.reports)
    _check_folder(asked)


def check_only(asked: Asked, cases: Iterable[Case]) -> None:
    """Raises `CallError` if an ID of `--only` chooses nothing."""
    cases = list(cases)
    for pattern in asked.only:
        if not select(cases, [pattern]):
            raise CallError(f"--only {pattern}: there is no such case; `python -m ckpt_conformance list` shows all of them")
        if not select(cases, [pattern], quick=asked.quick, store=asked.store.partition(":")[0]):
            raise CallError(f"--only {pattern}: no such case is in the quick subset and for this kind of store")


def _check_adapters(asked: Asked) -> None:
    if asked.cross is not None and command_of(asked.cross) == command_of(asked.adapter):
        raise CallError(f"--cross {asked.cross}: the same adapter as --adapter; alone it takes both roles anyway")


def _check_store(asked: Asked) -> None:
    if asked.store == FILE and (asked.endpoint or asked.region):
        raise CallError("--endpoint and --region are for --store s3://…")
    parts = urlsplit(asked.store)
    if asked.store != FILE and not (parts.scheme == "s3" and parts.netloc):
        raise CallError(f"--store {asked.store}: expected file, or s3://bucket/prefix")


def _check_reports(reports: dict[str, Path]) -> None:
    for option, path in reports.items():
        folder = path.absolute().parent
        if not folder.is_dir():
            raise CallError(f"{option} {path}: there is no folder {folder}")
        if path.is_dir():
            raise CallError(f"{option} {path}: a folder, and not a file")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise CallError(f"{option} {path}: cannot be written")
    if len({path.absolute() for path in reports.values()}) < len(reports):
        raise CallError("two reports are to be written to the same file")


def _check_folder(asked: Asked) -> None:
    """What an earlier run left could not be told from what this one leaves: so the folder has to be empty."""
    if asked.dir is None:
        if asked.keep:
            raise CallError("--keep: say where with --dir")
        return
    try:
        asked.dir.mkdir(parents=True, exist_ok=True)
        is_empty = not any(asked.dir.iterdir())
    except OSError as error:
        raise CallError(f"--dir {asked.dir}: {error.strerror}") from error
    if not is_empty:
        raise CallError(f"--dir {asked.dir}: not empty; give a new or an empty folder")
    if not os.access(asked.dir, os.W_OK):
        raise CallError(f"--dir {asked.dir}: cannot be written")
