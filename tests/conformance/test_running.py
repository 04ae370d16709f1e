"""The command line, on a small suite of its own with the toy adapter."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ckpt_conformance.jobs.processes import until
from ckpt_conformance.results import from_json
from ckpt_conformance.work import PREFIX
from tests.conformance.test_processes import is_gone

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


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with scenarios; in the way of whoever looks for settings there, an ini file and a conftest that break pytest."""
    for name, text in (("toy/save", SCENARIO), ("toy/two", TWO), ("hang/hang", HANG)):
        path = tmp_path / "scenarios" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "scenarios" / "states.toml").write_text(STATES)
    (tmp_path / "expected").mkdir()
    for folder in (tmp_path, tmp_path / "scenarios"):
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
        (folder / "conftest.py").write_text("raise RuntimeError('not to be imported')\n")
    return tmp_path


def command(suite: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", MAIN.format(folder=str(suite), arguments=list(arguments))]


def call(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": "--no-such-option"}
    return subprocess.run(
        command(suite, arguments), cwd=suite, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def run(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call(suite, "run", "--adapter", TOY, *arguments)


def test_a_line_a_case(suite: Path) -> None:
    done = call(suite, "list")
    assert done.stdout.splitlines() == [
        "hang/hang.one  P-1  It hangs",
        "toy/save.right  P-1  A toy is saved",
        "toy/save.wrong  P-1  A toy is saved",
        "toy/two.both  O-1  Another reads",
    ]
    assert call(suite, "list", "--quick").stdout == "toy/save.right  P-1  A toy is saved\n"
    assert call(suite, "list", "--family", "toy").stdout.count("\n") == 3
    done = call(suite, "list", "--family", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ckpt_conformance: --family nope: no such case; the families are hang, toy\n"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_tells_of_every_cell_and_fails_if_one_does(suite: Path, jobs: str) -> None:
    reports = [f"--{kind}={suite / kind}" for kind in ("json", "junit", "html")]
    done = run(suite, "--only", "toy", "-j", jobs, *reports)
    assert done.returncode == 1, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert any(line.startswith("✓ toy/save.right [toy]") for line in lines)
    assert any(line.startswith("✗ toy/save.wrong [toy]") and "answer.step is 1, expected 2" in line for line in lines)
    assert "3 cells: 2 passed, 1 failed" in done.stdout
    found = from_json((suite / "json").read_text())
    assert [(result.case, result.outcome) for result in found.results] == [
        ("toy/save.right", "passed"),
        ("toy/save.wrong", "failed"),
        ("toy/two.both", "passed"),
    ]
    assert (found.columns[0].name, found.columns[0].describe["framework"], found.options["jobs"]) == ("toy", "none", int(jobs))
    assert ET.parse(suite / "junit").getroot() is not None  # noqa: S314 - our own
    assert "toy/save.wrong" in (suite / "html").read_text()


@pytest.mark.slow
def test_a_run_where_all_is_as_expected(suite: Path) -> None:
    assert run(suite, "--quick").returncode == 0
    (suite / "expected" / "toy.toml").write_text('"toy/save.wrong" = "Toys are so."\n')
    done = run(suite, "--only", "toy")
    assert (done.returncode, "1 failed as expected" in done.stdout) == (0, True)
    (suite / "expected" / "toy.toml").write_text('"toy/save.right" = "Toys are so."\n')
    assert run(suite, "--quick").returncode == 1


@pytest.mark.slow
def test_two_adapters_are_crossed(suite: Path) -> None:
    done = run(suite, "--cross", f"{TOY} --second", "--only", "toy/two.both", "--only", "*.right", "-j1")
    assert done.returncode == 0, done.stdout + done.stderr
    cells = {line.split(" ")[1] + " " + line.split(" ")[2] for line in done.stdout.splitlines() if line.startswith("✓ toy")}
    assert cells == {"toy/save.right [toy]", "toy/save.right [toy-2]", "toy/two.both [toy→toy-2]", "toy/two.both [toy-2→toy]"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "toy", "--only", "nothing"], "--only nothing: there is no such case"),
        (["-j", "0"], "expected a positive number"),
        (["-j", "x"], "invalid int"),
        (["--store", "gs://x"], "expected file, or s3://"),
        (["--endpoint", "http://x"], "are for --store s3"),
        (["--keep"], "say where with --dir"),
        (["--cross", TOY], "the same adapter"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["--dir", "/dev/null"], "--dir /dev/null: "),
        (["--cross", "/nobody/here"], "/nobody/here: the adapter cannot be started"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_that_makes_no_sense(suite: Path, arguments: list[str], message: str) -> None:
    done = run(suite, *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_scenario_that_is_wrong(suite: Path) -> None:
    (suite / "scenarios" / "toy" / "bad.toml").write_text(SCENARIO.replace("$step", "$other"))
    for done in (call(suite, "list"), run(suite)):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "ckpt_conformance: toy/bad.toml: case right: step 2: there is no parameter 'other'\n"


def test_expected_failures_of_cases_that_are_not_there(suite: Path) -> None:
    (suite / "expected" / "toy.toml").write_text('"toy/gone.x" = "Why."\n')
    done = run(suite)
    assert (done.returncode, "there is no case 'toy/gone.x'" in done.stderr) == (2, True)


@pytest.mark.slow
def test_what_a_failed_cell_left_is_kept(suite: Path) -> None:
    done = run(suite, "--only", "toy", "--dir", "kept")
    assert [path.name for path in (suite / "kept").iterdir()] == ["toy-save.wrong"]
    assert "  kept in: kept/toy-save.wrong/toy\n" in done.stdout


@pytest.mark.slow
def test_known_failures_of_ones_own(suite: Path) -> None:
    (suite / "mine").mkdir()
    (suite / "mine" / "toy.toml").write_text('"toy/save.wrong" = "Toys are so."\n')
    assert run(suite, "--only", "toy/save.wrong").returncode == 1
    done = run(suite, "--only", "toy/save.wrong", "--expected", "mine")
    assert (done.returncode, "1 failed as expected" in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
def test_a_run_that_tests_nothing_is_no_success(suite: Path) -> None:
    done = call(suite, "run", "--adapter", f"{TOY} '--verbs=[\"save\"]'", "--only", "toy/save")
    assert done.returncode == 1, done.stderr
    lack = "toy: verb latest"
    assert done.stdout.splitlines()[0].endswith(f"s  {lack}")
    assert done.stdout.endswith("! nothing was tested: what is not offered is not run\n")


@pytest.mark.slow
def test_a_report_that_cannot_be_written_costs_no_other(suite: Path) -> None:
    done = run(suite, "--quick", "--json", "/dev/full", "--html", "page.html")
    assert done.returncode == 2
    assert done.stderr == "ckpt_conformance: --json /dev/full: No space left on device\n"
    assert "1 cell: 1 passed" in done.stdout
    assert (suite / "page.html").stat().st_size > 0


@pytest.mark.slow
def test_whoever_reads_may_leave_before_the_end(suite: Path) -> None:
    words = shlex.join([*command(suite, ["run", "--adapter", TOY, "--quick", "--json", "out.json"])])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["/bin/sh", "-c", f"({words}; echo $? > status) | true"],
        cwd=suite, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ((suite / "status").read_text(), done.stderr) == ("0\n", "")
    assert (suite / "out.json").exists()


@pytest.mark.slow
def test_an_adapter_that_hangs_is_interrupted(suite: Path) -> None:
    """Ctrl-C while the adapter is asked what it offers."""
    adapter = shlex.join([sys.executable, "-c", "import signal; open('hangs', 'w'); signal.pause()"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command(suite, ["run", "--adapter", adapter]), cwd=suite, env=environment, stderr=subprocess.PIPE)
    assert until((suite / "hangs").exists, LIMIT)
    children = below(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (130, b"ckpt_conformance: interrupted\n")
    assert children
    assert until(lambda: all(is_gone(pid) for pid in children), LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "jobs"), [("SIGINT", "1"), ("SIGHUP", "1"), ("SIGTERM", "2")])
def test_a_run_that_is_ended_leaves_nobody_and_nothing(suite: Path, by: str, jobs: str) -> None:
    reports = ["--json", "out.json", "--junit", "out.xml", "--html", "out.html"]
    arguments = ["run", "--adapter", TOY, "-j", jobs, "--only", "hang", "--only", "toy", *reports]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command(suite, arguments), cwd=suite, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        children = hanging(process.pid)
        process.send_signal(signal.Signals[by])
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert until(lambda: all(is_gone(pid) for pid in children), LIMIT)
    assert [
        path for folder in ("/dev/shm", tempfile.gettempdir()) for path in Path(folder).glob(f"{PREFIX}{process.pid}-*")
    ] == []
    found = from_json((suite / "out.json").read_text())
    assert (found.interrupted, found.cells, len(found.results) < 4) == (True, 4, True)
    told = f"nterrupted after {len(found.results)} of 4 cells"
    for text in (output, (suite / "out.xml").read_text(), (suite / "out.html").read_text()):
        assert told in text


def hanging(pid: int) -> set[int]:
    """All processes below `pid`, once the toy hangs in one of them."""
    found: set[int] = set()

    def hangs() -> bool:
        found.update(below(pid))
        return any(seen("cmdline", child).count("toy_adapter") and seen("syscall", child).startswith("34 ") for child in found)

    assert until(hangs, LIMIT), "nothing hangs"
    return found


def below(pid: int) -> set[int]:
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {number: seen("stat", number).rpartition(")")[2].split()[1:2] for number in numbers}
    found = {str(pid)}
    while more := {str(child) for child, parent in parents.items() if parent and parent[0] in found} - found:
        found |= more
    return {int(child) for child in found} - {pid}


def seen(name: str, pid: int) -> str:
    """A file of /proc; empty if the process is gone, or hidden."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_json_is_what_its_schema_says(suite: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    run(suite, "--only", "toy", "--json", "out.json")
    schema = Path(__file__).parents[2] / "conformance" / "ckpt_conformance" / "results.schema.json"
    jsonschema.validate(json.loads((suite / "out.json").read_text()), json.loads(schema.read_text()))
