"""The pages are what the records say."""

import json
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.__main__ import WHAT
from tests.benchmarks.results import MACHINE, result

EMPTY = "before\n<!-- recorded: compare -->\nOUTDATED\n<!-- end of compare -->\nafter\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a record of `compare`."""
    record = {"what": "compare", "machine": MACHINE, "arguments": {}, "result": result()}
    (tmp_path / "compare.json").write_text(json.dumps(record))
    return tmp_path


def test_the_pages_are_up_to_date() -> None:
    assert pages.main(["--check"]) == 0


def test_a_block_is_written_from_its_record(recorded: Path) -> None:
    text = pages.written(EMPTY, recorded)
    assert text.startswith("before\n<!-- recorded: compare -->\n\n")
    assert text.endswith("\n\n<!-- end of compare -->\nafter\n")
    assert "| Slow |" in text
    assert "Measured on 2 cores of A processor" in text
    assert "OUTDATED" not in text
    assert pages.written(text, recorded) == text


def test_a_short_block_stays_short(recorded: Path) -> None:
    text = pages.written(EMPTY.replace("compare -->\nOUT", "compare, short -->\nOUT"), recorded)
    assert "<!-- recorded: compare, short -->" in text
    assert "within budget" not in text
    assert "Settings" not in text
    assert pages.written(text, recorded) == text


def test_without_a_record_the_block_says_so(tmp_path: Path) -> None:
    text = pages.written(EMPTY, tmp_path)
    assert "Nothing is recorded of `compare`." in text
    assert pages.written(text, tmp_path) == text


def test_a_page_without_blocks_stays(tmp_path: Path) -> None:
    assert pages.written("as it was\n", tmp_path) == "as it was\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- recorded: compare -->\nno end",
        "no beginning\n<!-- end of compare -->",
        "<!-- recorded: compare -->\n<!-- end of growth -->",
        "<!-- recorded: speed -->\n<!-- end of speed -->",
        "<!-- recorded: compare -->\n<!-- recorded: growth -->\n<!-- end of compare -->",
    ],
)
def test_a_broken_block_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"whole|nothing measures"):
        pages.written(text, tmp_path)


def test_an_old_page_is_told_apart_then_written(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded / "README.md").write_text(EMPTY)
    monkeypatch.setattr(pages, "ROOT", recorded)
    monkeypatch.setattr(pages, "RECORDED", recorded)
    assert pages.main(["--check"]) == 1
    assert "README.md is not what the records say" in capsys.readouterr().err
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    assert "| Slow |" in (recorded / "README.md").read_text()


def test_each_record_is_of_something_and_names_no_path() -> None:
    for file in pages.RECORDED.glob("*.json"):
        record = json.loads(file.read_text())
        assert record["what"] == file.stem
        assert file.stem in WHAT
        assert [place for place in ("/tmp/", "/home/", "/root/", "/Users/") if place in file.read_text()] == []
