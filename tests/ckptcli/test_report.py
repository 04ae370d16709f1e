"""`ckpt report`: a page that needs nothing beside it, tells what happened, and lets nothing stored act on it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ckptcli.report.scale import Linear, Times
from ckptcli.report.timeline import MARKS
from ckptcore.inspect.inventory import State
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.support import Job, checkpointer, file_store, state
from tests.processes import ROOT

GOLDEN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page, parsed: every element has to be closed where it stands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, found in self.elements if (value := found.get(attribute)) is not None]


def report(ckpt: Ckpt, run: Path, out: Path, *options: str) -> Page:
    assert ckpt("report", run, "-o", out, *options).out == f"{out}\n"
    return Page(out.read_text())


def test_a_golden_run(ckpt: Ckpt, tmp_path: Path) -> None:
    page = report(ckpt, GOLDEN, tmp_path / "report.html")
    assert {"timeline", "saves", "ranks", "components", "mesh", "starts", "generations"} <= set(page.values("id"))
    assert not [value for name in ("src", "href") for value in page.values(name) if not value.startswith("#")]
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe"})
    assert "The next start resumes from step 5" in page.text
    assert {link.removeprefix("#") for link in page.values("href")} <= set(page.values("id"))


def test_every_state_has_a_mark() -> None:
    assert set(MARKS) == set(State.__args__)
    assert len(set(MARKS.values())) == len(MARKS) - 1, "damaged and unreadable look alike: stored bytes are wrong in both"


def test_what_is_stored_cannot_act(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    with checkpointer(place / "run") as saver:
        manifest = saver.save(10, state(10)).result()
    open_run(place / "run").quarantine(manifest, "<script>alert('x')</script>\x1b[31m")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert "script" not in {tag for tag, _ in page.elements}
    assert "<script>alert('x')</script>\\x1b[31m" in page.text
    assert "Nothing to resume from" in page.text


def test_a_run_without_saves(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    Job(file_store(place / "run"), 1).open()
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert "generations" not in page.values("id")
    assert "none yet" in page.text


def test_many_ranks_are_not_all_shown(ckpt: Ckpt, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptcli.report.page.RANKS", 2)
    job = Job(file_store(place / "run"), 3)
    job.open()
    job.save(10)
    assert "The slowest 2 of 3 ranks." in report(ckpt, place / "run", tmp_path / "report.html").text


def test_a_file_that_cannot_be_written(ckpt: Ckpt, tmp_path: Path) -> None:
    assert "it is a folder" in ckpt.refused("report", GOLDEN, "-o", tmp_path, status=2)
    assert "there is no folder" in ckpt.refused("report", GOLDEN, "-o", tmp_path / "a" / "b", status=2)


@pytest.mark.parametrize("length", [timedelta(seconds=7), timedelta(hours=3), timedelta(days=20), timedelta(days=4000)])
def test_times_are_labelled_with_few_round_moments(length: timedelta) -> None:
    first = datetime(2026, 11, 20, 8, 3, 11, tzinfo=UTC)
    times = Times(first, first + length, 0, 100)
    ticks = times.ticks()
    assert 1 <= len(ticks) <= 9
    assert all(0 <= times(moment) <= 100 for moment, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_values_are_labelled_with_few_round_numbers() -> None:
    assert Linear(0, 2.4, 0, 1).ticks() == [0, 0.5, 1.0, 1.5, 2.0]
    assert Linear(3, 3, 0, 1)(3) == 0.5
    assert Linear(3, 3, 0, 1).ticks() == [3]


def test_the_goodput_curve(ckpt: Ckpt, tmp_path: Path) -> None:
    page = report(ckpt, GOLDEN, tmp_path / "report.html", "--mtbf", "8h")
    assert "goodput" in page.values("id")
    assert "best time between saves" in page.text
    assert "goodput" not in report(ckpt, GOLDEN, tmp_path / "report.html").values("id")
    assert "expected a span of time" in ckpt.refused("report", GOLDEN, "-o", tmp_path / "r.html", "--mtbf", "often", status=2)
