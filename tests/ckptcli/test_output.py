"""What a terminal shows: tables that fit are drawn, others are plain lines, and no ID is ever cut."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckptcli import text
from ckptcli.output import console, facts, show, table
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
ID = re.compile(r"\b0000\d\d-\d{12}-1\b")


@pytest.fixture(params=[60, 80, 100, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Standard output is taken for a terminal of that width."""
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(request.param)}.items():
        monkeypatch.setenv(name, value)
    assert console().is_terminal
    assert console().width == request.param
    return request.param


def plain(printed: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", printed)


@pytest.mark.usefixtures("width")
def test_generations_and_states_are_not_cut(ckpt: Ckpt, place: Path) -> None:
    job = Job(file_store(place), 1)
    job.open()
    kept = [str(job.save(step).generation) for step in (10, 10**9)]
    open_run(place).annotate(kept[0], tags=["a" * 90], metrics={f"metric-{n}": n for n in range(9)})
    open_run(place).quarantine(kept[1], "a long story " * 7)
    shown = plain(ckpt("ls", place).out)
    assert "…" not in shown
    assert ID.findall(shown) == kept
    assert ["committed" in shown, "quarantined" in shown] == [True, True]


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize(
    "arguments", [["ls", GOLDEN], ["show", GOLDEN], ["gc", GOLDEN], ["status", GOLDEN], ["diff", GOLDEN, "1", "4"]]
)
def test_ids_are_the_same_as_in_a_pipe(ckpt: Ckpt, arguments: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    status = 1 if arguments[0] == "diff" else 0
    shown = plain(ckpt(*arguments, status=status).out)
    monkeypatch.delenv("FORCE_COLOR")
    assert ID.findall(shown) == ID.findall(ckpt(*arguments, status=status).out)


def test_only_the_last_column_folds(width: int, capfd: pytest.CaptureFixture[str]) -> None:
    made = table("name", "count", "why", right=("count",))
    made.add_row("x" * 45, "1,234", "a reason of some length, " * 9)
    show(made)
    told = plain(capfd.readouterr().out).splitlines()
    drawn = width > 60
    assert (max(map(len, told)) <= width) is drawn
    assert (len(told) > 3) is drawn
    assert f"{'x' * 45}   1,234   a reason" in told[2]


def test_a_long_url_is_folded_not_cut(width: int, capfd: pytest.CaptureFixture[str]) -> None:
    url = "file:///" + "0123456789" * 30
    show(facts([("run", url)]))
    told = plain(capfd.readouterr().out)
    assert url in re.sub(r"\s+", "", told)
    assert max(map(len, told.splitlines())) <= width


def test_what_is_stored_is_one_line_of_a_table() -> None:
    assert text.cell("a\n000001-000000000001-1\x1b[2J") == "a\\n000001-000000000001-1\\x1b[2J"
    assert text.plain("a\nb") == "a\nb"
