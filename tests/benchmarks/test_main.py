"""The command: which measurement, what is written, and that nothing is left."""

import argparse
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as command
from tests.processes import Rank

ROOT = Path(__file__).parents[2]
FOLDERS: list[Path] = []


def _fake() -> SimpleNamespace:
    """A measurement that leaves a file and says what it was asked."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=3)
        parser.add_argument("--other", type=Path)
        parser.add_argument("--plot", type=Path)

    def run(options: argparse.Namespace) -> dict[str, Any]:
        (options.dir / "left").touch()
        FOLDERS.append(options.dir)
        return {"count": options.count, "smoke": options.smoke}

    return SimpleNamespace(add_arguments=add_arguments, run=run, table=lambda result: f"| counted {result['count']} |")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The measurements that were looked up; each is the fake."""
    names: list[str] = []
    FOLDERS.clear()
    monkeypatch.setattr(command, "module_of", lambda what: names.append(what) or _fake())
    return names


def test_what_is_written(asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["growth", "--count", "5", "--json", str(tmp_path / "out.json"), "--dir", str(tmp_path / "disk"), "--other", "x.svg"]
    assert command.main(given) == 0
    record = json.loads((tmp_path / "out.json").read_text())
    assert set(record) == {"what", "machine", "arguments", "result"}
    assert record["arguments"] == {"count": 5, "smoke": False}
    assert record["result"] == {"count": 5, "smoke": False}
    assert set(asked) == {"growth"}
    printed = capsys.readouterr().out
    assert printed.startswith("| counted 5 |\n\n")
    assert f"{record['machine']['cores']} cores" in printed


def test_its_files_go_where_it_is_told_and_are_removed(asked: list[str], tmp_path: Path) -> None:
    assert command.main(["soak", "--dir", str(tmp_path / "disk")]) == 0
    assert asked
    assert FOLDERS[0].parent == tmp_path / "disk"
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_record_names_no_path(asked: list[str], tmp_path: Path) -> None:
    command.main(["soak", "--dir", str(tmp_path), "--json", str(tmp_path / "out.json")])
    assert asked
    assert str(tmp_path) not in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("file", ["none/out.json", "."])
def test_where_nothing_can_be_written_nothing_is_measured(
    asked: list[str], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["soak", "--json", str(tmp_path / file)])
    assert asked
    assert FOLDERS == []
    assert "argument --json" in capsys.readouterr().err


@pytest.mark.parametrize(("failed", "status"), [(0, 0), (2, 1)])
def test_what_failed_makes_the_exit_status(failed: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _fake()
    monkeypatch.setattr(fake, "run", lambda _: {"count": 1, "failed": failed})
    monkeypatch.setattr(command, "module_of", lambda _: fake)
    assert command.main(["compare"]) == status


@pytest.mark.usefixtures("asked")
def test_a_plot_that_fails_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = pytest.importorskip("benchmarks.plot")

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(plot, "draw", fails)
    assert command.main(["soak", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "plot.svg")]) == 1
    assert json.loads((tmp_path / "out.json").read_text())["result"]["count"] == 3
    printed = capsys.readouterr()
    assert "| counted 3 |" in printed.out
    assert printed.err == "soak: the disk is full\n"


@pytest.mark.parametrize("arguments", [[], ["--count", "1"]])
def test_compare_is_what_is_meant(asked: list[str], arguments: list[str]) -> None:
    assert command.main(arguments) == 0
    assert set(asked) == {"compare"}


def test_all_are_run_for_a_smoke(asked: list[str]) -> None:
    assert command.main(["all", "--smoke"]) == 0
    assert list(dict.fromkeys(asked)) == list(command.WHAT)


@pytest.mark.parametrize(
    "given",
    [
        *("compare --rounds 0", "cold-start --rounds -1", "interference --rounds x", "ranks --rounds 1.5", "ranks --ranks a,b"),
        *(
            "ranks --ranks 1,0",
            "requests --prices GET=x",
            "requests --prices FOO=1",
            "requests --prices GET",
            "requests --latency -1",
        ),
        *("soak --saves 0", "soak --every 0", f"growth --dir {__file__}"),
    ],
)
def test_nonsense_is_told_as_such(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    what, *arguments = given.split()
    with pytest.raises(SystemExit, match="2"):
        command.parser_of(what).parse_args(arguments)
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


def test_a_record_has_options_as_given() -> None:
    assert command.parser_of("ranks").parse_args(["--ranks", "1,2"]).ranks == "1,2"
    assert command.parser_of("requests").parse_args(["--prices", "GET=1"]).prices == "GET=1"


def test_a_line_needs_three_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["soak", "--saves", "100"]) == 2
    assert "expected 3 samples or more" in capsys.readouterr().err


def _failing(error: Exception) -> SimpleNamespace:
    def run(_: argparse.Namespace) -> dict[str, Any]:
        raise error

    return SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--size", default="small"), run=run)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "part")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FULL, r"soak: \[Errno 28\] .*'part'; [0-9.]+ GB are free in .*, the state has 0\.1 GB: .*README.*"),
        (shutil.Error([("a", "b", str(FULL))]), r"soak: .*free in .*"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), r"soak: \[Errno 13\] Permission denied: 'x'"),
        (subprocess.CalledProcessError(1, ["python"]), "soak: a process failed, see above"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "module_of", lambda _: _failing(error))
    assert command.main(["soak", "--dir", str(tmp_path)]) == 1
    assert re.fullmatch(told, capsys.readouterr().err.rstrip("\n"))


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("benchmarks.silent_damage", "orbax.checkpoint", "orbax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "orbax", None)
    assert command.main(["silent-damage"]) == 2
    assert re.fullmatch(r"silent-damage: .*orbax.*: is it installed\?\n", capsys.readouterr().err)


@pytest.mark.usefixtures("asked")
def test_a_smoke_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["all", "--smoke"]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("==")]
    assert headings == [f"== {what} (smoke: figures mean nothing)" for what in command.WHAT]
    assert command.main(["soak"]) == 0
    assert "==" not in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_all_write_a_file_each(tmp_path: Path) -> None:
    assert command.main(["all", "--smoke", "--json", str(tmp_path / "out.json")]) == 0
    found = {path.name: json.loads(path.read_text())["what"] for path in tmp_path.iterdir()}
    assert found == {f"out-{what}.json": what for what in command.WHAT}


@pytest.mark.parametrize("option", ["--size=small", "--count=2"])
def test_all_have_the_options_of_each_or_nothing_is_measured(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FOLDERS.clear()
    fake = {"growth": _failing(FULL)}
    monkeypatch.setattr(command, "module_of", lambda what: fake.get(what, _fake()))
    with pytest.raises(SystemExit):
        command.main(["all", "--smoke", option])
    assert FOLDERS == []


@pytest.mark.parametrize("arguments", [["all"], ["speed"]])
def test_what_does_not_exist_is_said(asked: list[str], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert asked == []
    assert "one of compare, growth" in capsys.readouterr().err


@pytest.mark.parametrize("what", command.WHAT)
def test_each_has_the_three_functions(what: str) -> None:
    module = command.module_of(what)
    assert all(callable(getattr(module, name)) for name in ("add_arguments", "run", "table"))
    assert command.parser_of(what).parse_args(["--smoke"]).smoke


WAITS = """
import sys, threading
from types import SimpleNamespace
from benchmarks import __main__ as command

def run(options):
    (options.dir / "left").write_text("x")
    threading.Thread(target=threading.Event().wait).start()  # as a rank that waits for others
    print("measuring", flush=True)
    threading.Event().wait(60)

command.module_of = lambda what: SimpleNamespace(add_arguments=lambda parser: None, run=run)
command.process(["soak", "--dir", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command_line = [sys.executable, "-c", WAITS, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    ) as child:
        try:
            Rank(child).wait_for("measuring")
            assert list(tmp_path.rglob("left")) != []
            child.send_signal(number)
            assert child.wait(30) == 128 + number
        finally:
            child.kill()
    assert list(tmp_path.iterdir()) == []
