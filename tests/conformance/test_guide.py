"""The guide's two first adapters do what it says of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance import data
from ckpt_conformance.jobs.adapter import problems_of

CONFORMANCE = Path(__file__).parents[2] / "conformance"
GUIDE = (CONFORMANCE / "GUIDE.md").read_text(encoding="utf-8")
SAMPLES = dict(
    re.findall(
        r"^\$ python -m ckpt_conformance run --adapter (.+? --only golden/\S+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL
    )
)
PROGRAMS = dict(re.findall(r"^```python (\S+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))


def _ask(name: str, folder: Path, **request: Any) -> tuple[int, Any]:
    program = folder / name
    program.write_text(PROGRAMS[name], encoding="utf-8")
    given = json.dumps({"contract": 1, **request})
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def test_the_guide_has_two_programs() -> None:
    assert sorted(PROGRAMS) == ["step1.py", "step2.py"]


@pytest.mark.parametrize("name", ["step1.py", "step2.py"])
def test_they_keep_the_contract(tmp_path: Path, name: str) -> None:
    status, answer = _ask(name, tmp_path, verb="describe")
    assert (status, problems_of(answer)) == (0, [])
    assert _ask(name, tmp_path, verb="save") == (11, None)


def test_the_second_takes_a_quarantined_generation_for_the_newest(tmp_path: Path) -> None:
    golden = data.folder("golden") / "1.0-by-jax-0.1.0"
    answer = _ask("step2.py", tmp_path, verb="latest", store=golden.as_uri())
    assert answer == (0, {"generation": "000002-000000000006-1", "step": 6})
    assert (golden / "notes" / "000002-000000000006-1" / "quarantine.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", sorted(SAMPLES))
def test_what_the_guide_shows_is_what_is_printed(tmp_path: Path, arguments: str) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = shlex.split(arguments.replace('"python ', f'"{sys.executable} '))
    command = [sys.executable, "-m", "ckpt_conformance", "run", "--adapter", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False)
    shown, printed = (_lines(text) for text in (SAMPLES[arguments], done.stdout))
    assert [line for line in shown if not any(_fits(line, other) for other in printed)] == []


def _lines(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    return [re.sub(r"\d+(\.\d)? s\b", "… s", line).replace(sys.executable, "python") for line in text.splitlines()]


def _fits(shown: str, printed: str) -> bool:
    """Whether a line is what the guide shows, in which `…` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed) is not None


def test_the_guide_has_samples() -> None:
    assert len(SAMPLES) == 3


def test_links_resolve() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", GUIDE)
    assert targets
    assert [target for target in targets if not (CONFORMANCE / target).exists()] == []
