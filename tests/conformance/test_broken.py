"""The suite catches what it is there for: each adapter of `conformance/broken` fails its cases, and nothing beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import data
from ckpt_conformance.cases.corpus import load_corpus
from tests.processes import ROOT

FOLDER = ROOT / "conformance" / "broken"
EXPECTED: dict[str, Any] = tomllib.loads((FOLDER / "expected.toml").read_text())
HEALTHY: list[str] = EXPECTED.pop("healthy")
LIMIT = 540.0  # seconds


def run(command: str, cases: list[str], folder: Path) -> dict[str, str]:
    """Case → outcome."""
    chosen = [word for case in cases for word in ("--only", case)]
    argv = [sys.executable, "-m", "ckpt_conformance", "run", "--adapter", command, "-j", "1", "--json", "results.json", *chosen]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = f"{ROOT / 'conformance'}:{ROOT}"
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (folder / "results.json").exists(), done.stdout + done.stderr
    results = json.loads((folder / "results.json").read_text())["results"]
    return {result["case"]: result["outcome"] for result in results}


def test_every_broken_adapter_has_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXPECTED)
    cases = load_corpus(data.folder("scenarios")).cases
    named = [case for fails in EXPECTED.values() for case in fails]
    assert set(named) | set(HEALTHY) <= set(cases)
    assert all(EXPECTED.values())
    assert not set(named) & set(HEALTHY)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXPECTED)
def test_a_defect_is_seen_by_its_cases_alone(name: str, tmp_path: Path) -> None:
    outcomes = run(f"{sys.executable} {FOLDER / name}.py", [*EXPECTED[name], *HEALTHY], tmp_path)
    assert outcomes == {**dict.fromkeys(HEALTHY, "passed"), **dict.fromkeys(EXPECTED[name], "failed")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_adapter_without_a_defect_passes_them_all(tmp_path: Path) -> None:
    named = sorted({case for fails in EXPECTED.values() for case in fails} | set(HEALTHY))
    outcomes = run("jax", named, tmp_path)
    assert outcomes == dict.fromkeys(named, "passed")
