"""A small suite with scenarios of its own for the toy adapter, and the command line on it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOY = shlex.join([sys.executable, str(Path(__file__).parent / "toy_adapter.py")])
LIMIT = 60.0
STATES = """
[s]
components.step = { scope = "global" }
leaves = [{ component = "step", name = "step", value = "int" }]
"""
SCENARIO = """
title = "A toy is saved"
why = "It is asked for."
clauses = ["P-1"]

[cases.right]
quick = true
step = 1

[cases.wrong]
step = 2

[[steps]]
do = "save"
state = "s"
saves = [1]
expect = { exit = "done" }

[[steps]]
do = "latest"
expect = { exit = "done", answer = { step = "$step" } }
"""
TWO = """
title = "Another reads"
why = "It can."
clauses = ["O-1"]
roles = 2

[cases.both]

[[steps]]
do = "latest"
adapter = "b"
expect = { exit = "done" }
"""
HANG = """
title = "It hangs"
why = "It is told to."
clauses = ["P-1"]

[cases.one]

[[steps]]
do = "save"
state = "s"
saves = [1]
run_id = "hang"
expect = { exit = "done" }
"""
MAIN = """\
import sys
from pathlib import Path
from ckpt_conformance import data
data.folder = lambda name: Path({folder!r}) / name
from ckpt_conformance.__main__ import main
if __name__ == "__main__":
    sys.exit(main({arguments!r}))
"""


def make_suite(folder: Path) -> Path:
    """A folder with scenarios; in the way of whoever looks for settings there, an ini file and a conftest that break pytest."""
    for name, text in (("toy/save", SCENARIO), ("toy/two", TWO), ("hang/hang", HANG)):
        path = folder / "scenarios" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "scenarios" / "states.toml").write_text(STATES)
    (folder / "expected").mkdir()
    for place in (folder, folder / "scenarios"):
        (place / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
        (place / "conftest.py").write_text("raise RuntimeError('not to be imported')\n")
    return folder


def command(suite: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", MAIN.format(folder=str(suite), arguments=list(arguments))]


def call(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": "--no-such-option"}
    return subprocess.run(
        command(suite, arguments), cwd=suite, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def run(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call(suite, "run", "--adapter", TOY, *arguments)
