"""`ckpt interval`: published values, asynchronous saves, what a run's receipts tell, and spans of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcli.durations import seconds, shown
from ckptcore.errors import CallError
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, file_store
from tests.ckptcore.training import train

ASYNCHRONOUS = (
    "--mtbf",
    "3h",
    "--blocking",
    "1",
    "--persist",
    "60s",
    "--slowdown",
    "0.05",
    "--restart",
    "2min",
    "--downtime",
    "1min",
)


def answers(document: Any) -> dict[tuple[str, str], Any]:
    return {(each["save"], each["name"]): each for each in document["answers"]}


def test_published_values(ckpt: Ckpt) -> None:
    found = answers(ckpt("interval", "--mtbf", "1440min", "--blocking", "5min", "--json").json)
    minutes = [each["interval_seconds"] / 60 for each in found.values()]
    assert minutes == pytest.approx([120, 116.689815, 116.690073, 116.690073], abs=1e-6)


def test_an_asynchronous_save(ckpt: Ckpt) -> None:
    told = ckpt("interval", *ASYNCHRONOUS, "--json").json
    assert (round(told["period_seconds"], 3), round(told["goodput"], 5)) == (295.278, 0.95165)
    assert not told["bound"]
    assert [each["factor"] for each in told["sensitivity"]] == [0.5, 1.0, 2.0]
    assert all(each["goodput"] <= each["best_goodput"] for each in told["sensitivity"])
    assert told["sensitivity"][1]["goodput"] == told["goodput"] == answers(told)["asynchronous", "exact"]["goodput"]
    lines = ckpt("interval", *ASYNCHRONOUS).out.splitlines()
    assert lines[0] == "save every  4 min 55 s"
    assert lines[1].split() == ["goodput", "95.16%"]


def test_nodes_share_the_mtbf(ckpt: Ckpt) -> None:
    one = ckpt("interval", "--mtbf", "3h", "--blocking", "9", "--json").json
    assert ckpt("interval", "--mtbf", "30h", "--nodes", "10", "--blocking", "9", "--json").json == one


def test_the_time_that_a_save_takes_binds(ckpt: Ckpt) -> None:
    told = ckpt("interval", "--mtbf", "3h", "--blocking", "1s", "--persist", "20min", "--json").json
    assert (told["period_seconds"], told["bound"]) == (1201, True)
    assert (
        "save every  20 min 1 s (bound by the time"
        in ckpt("interval", "--mtbf", "3h", "--blocking", "1", "--persist", "20min").out
    )


def test_costs_of_a_run(ckpt: Ckpt, place: Path) -> None:
    train(place / "run", [10, 20, 30])
    told = ckpt("interval", place / "run", "--mtbf", "3h", "--json").json["costs"]
    assert told["measured_saves"] == 3
    assert 0 < told["blocking_seconds"] < 20
    assert 0 < told["persist_seconds"] < 20
    assert "from 3 saves of the run" in ckpt("interval", place / "run", "--mtbf", "3h").out
    given = ckpt("interval", place / "run", "--mtbf", "3h", "--persist", "9min", "--json").json["costs"]
    assert (given["persist_seconds"], given["blocking_seconds"]) == (540, told["blocking_seconds"])


def test_a_save_that_costs_nothing(ckpt: Ckpt) -> None:
    told = ckpt("interval", "--mtbf", "1h", "--blocking", "0", "--json").json
    assert told["period_seconds"] == 0
    assert told["goodput"] == pytest.approx(1)


def test_an_mtbf_of_ages(ckpt: Ckpt) -> None:
    told = ckpt("interval", "--mtbf", "9999999999w", "--blocking", "1ms", "--json").json
    assert [each["interval_seconds"] for each in told["answers"]] == pytest.approx([told["answers"][0]["interval_seconds"]] * 4)


def test_bad_input(ckpt: Ckpt, place: Path) -> None:
    Job(file_store(place), 1).open()
    refused = ckpt.refused
    assert "--mtbf '3y': expected a span of time" in refused("interval", "--mtbf", "3y", "--blocking", "1", status=2)
    assert "give --blocking" in refused("interval", "--mtbf", "3h", status=2)
    assert "mtbf=0.0: expected the mean time" in refused("interval", "--mtbf", "0", "--blocking", "1", status=2)
    assert "slowdown=1.5" in refused("interval", "--mtbf", "3h", "--blocking", "1", "--slowdown", "1.5", status=2)
    assert "has no checkpoint whose receipts tell" in refused("interval", place, "--mtbf", "3h", status=5)
    for nodes in ("9" * 400, "1000000001", "0"):
        assert "'--nodes'" in refused("interval", "--mtbf", "3h", "--blocking", "1", "--nodes", nodes, status=2)
    assert "there is no run" in refused("interval", place / "no", "--mtbf", "3h", status=5)


def test_without_scipy(ckpt: Ckpt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.special", None)
    assert "pip install 'jaxckpt[interval]'" in ckpt.refused("interval", "--mtbf", "3h", "--blocking", "1", status=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90s", 90),
        ("15min", 900),
        ("3h", 10800),
        ("2d", 172800),
        ("1.5 h", 5400),
        (".5s", 0.5),
        ("20ms", 0.02),
        ("1w", 604800),
    ],
)
def test_spans(text: str, expected: float) -> None:
    assert seconds(text, what="--x") == expected


@pytest.mark.parametrize("text", ["", "-1", "1e9", "3 y", "h", "1h30", "nan", "1.2.3", "٣h"])
def test_no_spans(text: str) -> None:
    with pytest.raises(CallError, match="--x"):
        seconds(text, what="--x")


def test_spans_for_people() -> None:
    assert [shown(each) for each in (0, 0.0123, 0.5, 59.37, 119.9, 295.3, 7322)] == [
        "0 s", "12.3 ms", "0.5 s", "59.4 s", "120 s", "4 min 55 s", "2 h 2 min"
    ]  # fmt: skip
