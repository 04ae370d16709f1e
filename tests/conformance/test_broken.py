"""The suite catches what it is there for: each adapter of `conformance/broken` fails its cases, and nothing beside them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import data
from ckpt_conformance.cases.corpus import Corpus, load_corpus
from ckpt_conformance.jobs.adapter import Adapter
from ckpt_conformance.jobs.bench import Bench, Column, Options
from ckpt_conformance.jobs.execute import run_case
from ckpt_conformance.jobs.processes import QUIET, Files, Process, start
from ckpt_conformance.jobs.request import DESCRIBE
from ckpt_conformance.jobs.serving import Server
from tests.ckptcore.support import memory_directory
from tests.processes import ROOT

FOLDER = ROOT / "conformance" / "broken"
EXPECTED: dict[str, Any] = tomllib.loads((FOLDER / "expected.toml").read_text())
HEALTHY: list[str] = EXPECTED.pop("healthy")
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}"}
LIMIT = 100.0  # seconds


@functools.cache
def server() -> Server:
    """One server for all adapters of this process."""
    made = Server([sys.executable, str(ROOT / "tests/conformance/broken_adapter.py")], {**QUIET, **ENVIRONMENT})
    atexit.register(made.close)
    return made


@functools.cache
def corpus() -> Corpus:
    return load_corpus(data.folder("scenarios"))


class Chosen:
    """Starts processes that have a defect."""

    def __init__(self, defect: str | None) -> None:
        self._defect = defect

    def start(self, files: Files) -> Process:
        told = json.loads(files.request.read_text())
        files.request.write_text(json.dumps({**told, "defect": self._defect}))
        return server().start(files)

    def close(self) -> None:
        """The server is kept for the next one."""


@dataclass(frozen=True, kw_only=True)
class Defective(Adapter):
    """`defect`: the name of a file of `conformance/broken`."""

    defect: str | None

    def launcher(self, environment: Any) -> Chosen:  # noqa: ARG002
        return Chosen(self.defect)


@functools.cache
def described() -> dict[str, Any]:
    with memory_directory() as folder:
        (ended,) = start("describe", Chosen(None), [DESCRIBE], folder / "describe", limit=LIMIT).wait()
    assert ended.answer is not None, ended.log
    return dict(ended.answer)


def run(defect: str | None, cases: Sequence[str]) -> dict[str, str]:
    """Case → outcome."""
    name = defect or "jax"
    adapter = Defective(name=name, given=name, describe=described(), defect=defect)
    with memory_directory() as folder:
        options = Options(adapters=(adapter,), scenarios="", work=str(folder))
        with Bench(options, corpus()) as bench:
            found = [run_case(corpus().cases[case], Column(adapter, adapter), bench) for case in cases]
    return {result.case: result.outcome for result in found}


def test_every_broken_adapter_has_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED)
    named = [case for fails in EXPECTED.values() for case in fails]
    assert set(named) | set(HEALTHY) <= set(corpus().cases)
    assert all(EXPECTED.values())
    assert not set(named) & set(HEALTHY)


@functools.cache
def without_defect(case: str) -> str:
    return run(None, [case])[case]


@pytest.mark.whole
@pytest.mark.parametrize("name", EXPECTED)
def test_a_defect_is_seen_by_its_cases_alone(name: str) -> None:
    """The same cases pass without the defect."""
    assert run(name, [*EXPECTED[name], *HEALTHY]) == {
        **dict.fromkeys(HEALTHY, "passed"),
        **dict.fromkeys(EXPECTED[name], "failed"),
    }
    assert [without_defect(case) for case in EXPECTED[name]] == ["passed"] * len(EXPECTED[name])


@pytest.mark.slow
def test_a_broken_adapter_is_an_adapter_like_any_other(tmp_path: Path) -> None:
    """As `conformance/README.md` says: by its command, from the command line."""
    case = "store/newer-receipt.receipt"
    command = f"{sys.executable} {FOLDER}/aborts_what_it_cannot_read.py"
    argv = [sys.executable, "-m", "ckpt_conformance", "run", "--adapter", command, "--json", "results.json", "--only", case]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")} | ENVIRONMENT
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (result["case"], result["outcome"]) == (case, "failed")
