"""How the command ends: statuses, one line for an error, a traceback only where it is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcli.app import main
from ckptcli.ending import Status, guarded, status_of
from ckptcore.errors import CommitUnknown, Damaged, NotFound, Retired, StoreFull, Superseded
from tests.ckptcli.support import Ckpt
from tests.processes import ROOT

RUN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 5),
        (StoreFull("x"), 3),
        (Damaged("x"), 4),
        (Retired("x"), 4),
        (Superseded("x"), 6),
        (CommitUnknown("x"), 6),
    ],
)
def test_the_status_of_an_error(error: Exception, status: int) -> None:
    assert status_of(error) == status  # pyright: ignore[reportArgumentType]


def test_a_defect_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    def defect() -> None:
        raise KeyError("x")

    assert guarded(defect, debug=False) == Status.DEFECT
    assert "please report it (KeyError: 'x')" in capsys.readouterr().err
    with pytest.raises(KeyError):
        guarded(defect, debug=True)


def test_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert guarded(interrupt, debug=True) == Status.INTERRUPTED
    assert capsys.readouterr().err == "ckpt: interrupted\n"


def test_a_wrong_command_line(ckpt: Ckpt) -> None:
    assert "Missing argument 'RUN'" in ckpt("ls", status=2).error
    assert "No such command" in ckpt("lss", status=2).error
    assert "Commands:" in ckpt("--help").out
    assert ckpt("--version").out.startswith("ckpt ")
    assert ckpt("--version", "--debug").out == ckpt("--debug", "--version").out == ckpt("--version").out
    assert "--version" in ckpt("--help").out


def test_debug_shows_where() -> None:
    with pytest.raises(NotFound):
        main(["ls", "/nowhere/at/all", "--debug"])


def test_a_reader_that_goes_away() -> None:
    """`ckpt ls … | head -1` is no error."""
    command = f"{sys.executable} -m ckptcli ls conformance/golden | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell script in which `ckpt` is the command."""
    defined = f'ckpt() {{ "{sys.executable}" -m ckptcli "$@"; }}; GOLDEN={RUN}'
    told = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = ["bash", "-c", f"{defined}; {script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=told)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["ls $GOLDEN", "ls $GOLDEN --json", "--help", "schema ls"])
def test_a_full_disk_behind_the_output(arguments: str) -> None:
    done = run(f"ckpt {arguments} > /dev/full")
    assert done.returncode == Status.STORE
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_a_closed_output() -> None:
    done = run("ckpt ls $GOLDEN >&-")
    assert (done.returncode, done.stderr) == (Status.STORE, "ckpt: standard output is closed: nothing was done\n")
    assert run("ckpt ls /nowhere 2>&-").returncode == Status.NOT_FOUND
    assert run("ckpt nonsense 2>&-").returncode == Status.CALL


def test_a_terminal_of_few_characters() -> None:
    done = run("ckpt ls $GOLDEN", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()[1]) == {"-"}


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    done = run(f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone; ckpt ls run")
    assert done.returncode == Status.CALL
    assert "the current folder does not exist any more" in done.stderr


def test_arguments_that_are_no_text(ckpt: Ckpt, tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert "is not UTF-8 text" in ckpt.refused("pin", tmp_path / "run", "1", "--reason", "a\udcff", status=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_that_no_store_has_translated(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/x")

    assert guarded(fail, debug=False) == Status.STORE
    assert capsys.readouterr().err == "ckpt: [Errno 13] Permission denied: '/x'\n"


@pytest.mark.parametrize("given", ["-1", "0", "nan", "inf", "1e300"])
def test_timeouts_that_are_none(ckpt: Ckpt, given: str) -> None:
    assert f"--timeout {float(given):g}: expected seconds" in ckpt.refused("--timeout", given, "ls", RUN, status=2)


def test_which_is_bounded(ckpt: Ckpt) -> None:
    for command in ("show", "explain", "verify"):
        line = ckpt.refused(command, RUN, "9" * 5000, status=2)
        assert "is neither a step nor" in line
        assert len(line) < 300
    assert "no checkpoint of step 999999999999" in ckpt.refused("show", RUN, "9" * 12, status=5)


def test_a_store_in_memory_is_of_no_use(ckpt: Ckpt) -> None:
    for command in (["ls"], ["show"], ["cp", RUN], ["mirror", RUN], ["fork", RUN]):
        assert "would be in the memory of this command" in ckpt.refused(*command, "memory://x", status=2)
