"""The command line, on a small suite of its own with the toy adapter."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ckpt_conformance.results import from_json
from tests.conformance.small_suite import LIMIT, SCENARIO, TOY, call, command, make_suite, run

pytestmark = pytest.mark.slow


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return make_suite(tmp_path)


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
def test_json_is_what_its_schema_says(suite: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    run(suite, "--only", "toy", "--json", "out.json")
    schema = Path(__file__).parents[2] / "conformance" / "ckpt_conformance" / "results.schema.json"
    jsonschema.validate(json.loads((suite / "out.json").read_text()), json.loads(schema.read_text()))
