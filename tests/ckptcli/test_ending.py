"""How the command ends: statuses, one line for an error, a traceback only where it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ckptcli.app import main
from ckptcli.ending import Status, guarded, status_of
from ckptcore.errors import CommitUnknown, Damaged, NotFound, Retired, StoreFull, Superseded
from tests.ckptcli.support import Ckpt


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


def test_debug_shows_where() -> None:
    with pytest.raises(NotFound):
        main(["ls", "/nowhere/at/all", "--debug"])


def test_a_reader_that_goes_away() -> None:
    """`ckpt ls … | head -1` is no error."""
    command = f"{sys.executable} -m ckptcli ls conformance/golden | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
