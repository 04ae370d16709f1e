"""The command line: what it refuses, and that a reader who has seen enough is no failure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulation import __main__ as command
from tests.processes import ROOT

CALL_ERROR = 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run --seeds 5:2", "'5:2': expected A:B, the seeds from A up to but not B"),
        ("run --seeds 5:5", "'5:5': expected A:B"),
        ("run --seeds 5:", "'5:': expected A:B"),
        ("run --seeds many", "'many': expected A:B"),
        ("run -j 0", "0: expected 1 or more"),
        ("run --minutes 0", "0: expected more than 0"),
        ("run --minutes nan", "nan: expected more than 0"),
        ("replay 3 --without crash,nobody", "--without nobody: neither a kind of fault (crash, "),
        ("replay 3 --without nobody", "nor somebody in seed 3 (a, "),
        ("replay 3 --only 1,x", "'1,x': expected numbers of operations, as in 3,118, or none"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments.split())
    assert refused.value.code == CALL_ERROR
    assert said in capsys.readouterr().err


def test_one_seed_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "--seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("1 seeds in")


def test_what_is_left_out_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["replay", "3", "--without", "crash,a", "--only", "none"]) == 0
    assert "0 fault(s)" in capsys.readouterr().out


def test_an_operation_at_which_nothing_goes_wrong_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["replay", "3", "--only", "99999"]) == 0
    assert "nothing goes wrong at 99999" in capsys.readouterr().out


def test_a_reader_who_has_seen_enough_is_no_failure() -> None:
    replay = subprocess.Popen(
        [sys.executable, "-m", "simulation", "replay", "3", "--trace"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert replay.stdout is not None
    replay.stdout.close()  # before anything is printed
    _, errors = replay.communicate(timeout=60)
    assert (errors, replay.returncode) == ("", command.CUT_OFF)
