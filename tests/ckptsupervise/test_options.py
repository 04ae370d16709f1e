"""What `ckpt supervise` says of its options, and refuses before it starts anything."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from ckptcli.app import main
from ckptcli.durations import seconds
from ckptsupervise.deadlines import Deadlines


def test_the_help_has_the_defaults_of_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["supervise", "--help"]) == 0
    told = re.findall(r"(\w+)=(\d+min)", capsys.readouterr().out.partition("--deadline")[2].partition("[default:")[2])
    assert {phase: seconds(span, what=phase) for phase, span in told} == asdict(Deadlines())


def test_the_help_says_what_a_span_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["supervise", "--help"]) == 0
    (spans,) = re.findall(r"A SPAN is ([^.]*)\.", " ".join(capsys.readouterr().out.split()))
    assert [seconds(span, what="SPAN") for span in re.split(", | or ", spans)] == [90, 90, 900, 10_800, 172_800]


@pytest.mark.parametrize(
    ("program", "why"),
    [("no-such-program-as-this", "it is in no folder of PATH"), ("./text", "there is no such file that may be executed")],
)
def test_a_command_that_nobody_can_run_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no program")
    assert main(["supervise", "--run", str(tmp_path / "run"), "--nproc", "2", "--", program]) == 2
    assert f"the command {program!r} cannot be run: {why}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
