"""`ckpt report`: a page that needs nothing beside it, tells what happened, and lets nothing stored act on it."""

from __future__ import annotations

import errno
import re
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ckptcli.report import attempts
from ckptcli.report import timeline as timeline_module
from ckptcli.report.scale import Linear, Times
from ckptcli.report.timeline import MARKS, _dated
from ckptcore.inspect.incidents import PARTS
from ckptcore.inspect.inventory import State
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcli.support import Ckpt
from tests.ckptcore.supervised import OWNER, Supervised, never_begun, of_nodes, supervised
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
    begun = page.text[page.text.index("begun") + 1 :]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", next(text for text in begun if text.strip()))
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
    assert "File name too long" in ckpt.refused("report", GOLDEN, "-o", tmp_path / ("n" * 300), status=2)
    assert "No space left on device" in ckpt.refused("report", GOLDEN, "-o", "/dev/full", status=3)
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
    for mtbf in ("9999999999w", "1ms"):
        assert "goodput" in report(ckpt, GOLDEN, tmp_path / "report.html", "--mtbf", mtbf).values("id")
    assert "mtbf=0.0" in ckpt.refused("report", GOLDEN, "-o", tmp_path / "r.html", "--mtbf", "0", status=2)


def test_the_goodput_curve_without_scipy(ckpt: Ckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    told = ckpt.refused("report", GOLDEN, "-o", tmp_path / "r.html", "--mtbf", "8h", status=2)
    assert "pip install 'jaxckpt[interval]'" in told


def test_the_page_is_written_whole_or_not_at_all(ckpt: Ckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "report.html").symlink_to("real.html")

    def full(path: Path, content: bytes) -> int:  # noqa: ARG001 - as it is called
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert "No space left" in ckpt.refused("report", GOLDEN, "-o", tmp_path / "report.html", status=3)
    assert {path.name for path in tmp_path.iterdir()} == {"real.html", "report.html"}
    assert (tmp_path / "real.html").read_text() == "old"
    report(ckpt, GOLDEN, tmp_path / "report.html")
    assert (tmp_path / "real.html").read_text().startswith("<!")
    assert (tmp_path / "report.html").is_symlink()


def test_the_end_of_the_calendar() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    for length in (timedelta(0), timedelta(seconds=7), timedelta(days=3), timedelta(days=4000), timedelta(days=3_000_000)):
        times = Times(last - length, last, 0, 100)
        assert all(times.first <= moment <= last for moment, _ in times.ticks())


class Counted(GenerationId):
    """A generation that counts how often its incarnation is looked at."""

    looks: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "incarnation":
            Counted.looks += 1
        return super().__getattribute__(name)


def test_a_long_timeline_is_dated_in_one_pass() -> None:
    entries = [SimpleNamespace(generation=Counted(1, step, 1), at=None) for step in range(1000)]
    claimed = datetime(2026, 11, 20, tzinfo=UTC)
    found = _dated(SimpleNamespace(entries=entries), {1: SimpleNamespace(claimed=claimed)})  # pyright: ignore[reportArgumentType]
    assert set(found.values()) == {claimed}
    assert Counted.looks < 20_000


def test_a_supervised_run(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    supervised(place / "run")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert {"incidents", "attempts"} <= set(page.values("id"))
    assert {f"part {part}" for part in PARTS} <= set(page.values("class"))
    assert {"exit", "hang", "signal"} <= set(page.text)
    assert "rank 2 exited with 1: <b>no device</b>" in page.text, "what a program said is text"
    assert any("save (train.py:42)\n    <module> (train.py:50)" in text for text in page.text)
    assert {"attempts", "shrunk", "0-1, 3", "in save at step 440"} <= set(page.text)
    drawn = [found for tag, found in page.elements if tag == "rect" and str(found.get("class")).startswith("part ")]
    assert len(drawn) >= 15
    places = [float(str(found["x"])) for found in drawn]
    assert places == sorted(places)


def test_of_many_attempts_the_newest_are_listed(ckpt: Ckpt, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SHOWN", 2)
    monkeypatch.setattr(timeline_module, "LANES", 2)
    supervised(place / "run")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert "The newest 2 of 3." in page.text
    assert "The newest 2 of 5." in page.text
    assert {"attempt 4", "attempt 5"} == {text for text in page.text if re.fullmatch(r"attempt \d", text)}


def test_an_attempt_before_the_first_save(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    """Nothing is committed, nothing has caught up, several nodes."""
    run = Supervised(place / "run")
    run.clock.seconds = 1
    run.attempts.plan(1, supervisor=OWNER, slots=(0, 1, 0), nodes=("a", "a", "b"), cause="start")
    Job(run.store, 3, clock=run.clock).open()
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert "a: 0-1; b: 0" in page.text
    assert "Nothing to resume from" in page.text


def test_an_attempt_of_several_nodes_names_them_also_while_it_has_one(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    of_nodes(place / "run", "node-two")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert {"node-two: 0-1", "node-two, 4711"} <= set(page.text)


def test_a_run_that_nobody_supervises_has_no_such_sections(ckpt: Ckpt, tmp_path: Path) -> None:
    page = report(ckpt, GOLDEN, tmp_path / "report.html")
    assert {"incidents", "attempts"}.isdisjoint(page.values("id"))
    assert "attempts" not in page.text
    assert not any(name.startswith("part ") for name in page.values("class"))


def test_other_numbers_of_ranks_are_told_with_their_guarantee(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    supervised(place / "run")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert {"4 → 3 ranks: coverage", "3 → 4 ranks: coverage"} <= set(page.text), "beside the strokes of the timeline"
    assert {"4 → 3 × host", "3 → 4 × host"} <= set(page.text), "in the table of starts"
    assert page.text.count("4 → 3") == page.text.count("3 → 4") == 1, "in the table of attempts"
    assert page.text.count("coverage") == 4


def test_a_run_that_no_job_has_begun(ckpt: Ckpt, place: Path, tmp_path: Path) -> None:
    never_begun(place / "run")
    page = report(ckpt, place / "run", tmp_path / "report.html")
    assert "No run has begun here: no job has opened it" in page.text
    assert {"timeline", "incidents", "attempts"} <= set(page.values("id"))
    assert {"generations", "starts", "saves"}.isdisjoint(page.values("id"))
    assert any("another URL than the one that was given as --run" in text for text in page.text)
