"""The plot: drawn from a result alone, and the same each time."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.results import MACHINE, result


def test_a_drawing_is_the_same_each_time(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot")
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        plot.draw(result(), file, MACHINE)
    assert ET.parse(files[0]).getroot().tag.endswith("svg")  # noqa: S314 - written here
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_record_is_drawn(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot")
    (tmp_path / "record.json").write_text(json.dumps({"machine": MACHINE, "result": result()}))
    plot.main(str(tmp_path / "record.json"), str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_of_nothing_there_is_no_drawing(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot")
    nothing = {**result(), "rounds": [], "derived": {"floors": {}, "subjects": {}, "budgets": {}}}
    plot.draw(nothing, tmp_path / "plot.svg", MACHINE)
    assert not (tmp_path / "plot.svg").exists()


def test_bars_are_cut_where_they_would_hide_others() -> None:
    plot = pytest.importorskip("benchmarks.plot")

    def cut(*medians: float) -> float:
        return plot._cut([{"median": value} for value in medians])

    assert cut(1.1, 1.5, 20.0) == plot.HIGHEST
    assert cut(65.0, 18.0) > 65  # all are long: a picture of equal bars says nothing
    assert cut(7.0, 8.0, 9.0, 100.0) == pytest.approx(25.5)


@pytest.mark.parametrize("longest", [2.8, 50.0])
def test_an_arrow_is_explained(longest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = pytest.importorskip("benchmarks.plot")
    titles: list[str] = []
    monkeypatch.setattr(plot.Figure, "suptitle", lambda _, text, **__: titles.append(text))
    made = result()
    subjects = made["derived"]["subjects"]
    for name in ("fast2", "fast3"):
        made["subjects"][name], subjects[name] = made["subjects"]["fast"], subjects["fast"]
    subjects["slow"] = {**subjects["slow"], "save_ratio": dict.fromkeys(("median", "min", "max"), longest)}
    plot.draw(made, tmp_path / "plot.png", MACHINE)
    assert ("→ goes on beyond the axis" in titles[0]) == (longest > plot.HIGHEST)


def test_each_panel_is_of_a_figure_that_there_is() -> None:
    plot = pytest.importorskip("benchmarks.plot")
    made = result()
    assert [title for figure, title in plot.PANELS if not plot._spreads(made, figure)] == []


def test_bars_have_the_length_of_the_median(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = pytest.importorskip("benchmarks.plot")
    drawn: list[float] = []
    monkeypatch.setattr(plot, "_bar", lambda _axes, _row, spread, *_: drawn.append(spread["median"]))
    plot.draw(result(), tmp_path / "plot.png", MACHINE)
    assert drawn == pytest.approx([1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 2.8])
