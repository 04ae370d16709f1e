"""Data files while they are written: on a file system and in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from ckptcore import array_sinks
from ckptcore.array_sinks import FileSink, Sink, opener


def sink_at(place: Path | None) -> Sink:
    spec = {"driver": "memory", "path": "db/"} if place is None else {"driver": "file", "path": f"{place}/db/"}
    return opener(spec, ts.Context())("d/x")


def test_a_file_has_what_was_written_in_its_order(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    for part in (b"one", b"", b"two"):
        sink.write(memoryview(part))
    sink.finish()
    assert (tmp_path / "db" / "d" / "x").read_bytes() == b"onetwo"


def test_an_object_appears_when_it_is_whole() -> None:
    context = ts.Context()
    sink = opener({"driver": "memory", "path": "db/"}, context)("d/x")
    store = ts.KvStore.open({"driver": "memory", "path": "db/"}, context=context).result()
    sink.write(memoryview(b"one"))
    assert store.list().result() == []
    sink.write(memoryview(b"two"))
    sink.finish()
    assert store["d/x"] == b"onetwo"


@pytest.mark.parametrize("stored", ["file", "object"])
def test_nothing_is_left_of_what_was_not_finished(tmp_path: Path, stored: str) -> None:
    sink = sink_at(tmp_path if stored == "file" else None)
    sink.abandon()
    sink.write(memoryview(b"one"))
    sink.abandon()
    sink.abandon()
    sink.finish()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_finished_stays(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    sink.write(memoryview(b"one"))
    sink.finish()
    sink.abandon()
    assert (tmp_path / "db" / "d" / "x").read_bytes() == b"one"


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        FileSink(f"{tmp_path}/there").write(memoryview(b"new"))
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match="link"):
        FileSink(f"{tmp_path}/link").write(memoryview(b"new"))
    assert (tmp_path / "there").read_bytes() == b"old"


def test_the_disk_is_told_to_begin_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(array_sinks, "EARLY_BYTES", 10)
    monkeypatch.setattr(array_sinks, "_begin_writeback", lambda _, start, nbytes: told.append((start, nbytes)))
    sink = FileSink(f"{tmp_path}/x")
    for _ in range(6):
        sink.write(memoryview(b"four"))
    sink.finish()
    assert told == [(0, 12), (12, 12)]


def test_where_the_system_cannot_begin_early_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __init__(self, _: Any) -> None:
            pass

    monkeypatch.setattr(array_sinks.ctypes, "CDLL", Without)
    monkeypatch.setattr(array_sinks, "_begin_writeback", array_sinks._writeback())
    monkeypatch.setattr(array_sinks, "EARLY_BYTES", 1)
    sink = FileSink(f"{tmp_path}/x")
    sink.write(memoryview(b"one"))
    sink.finish()
    assert (tmp_path / "x").read_bytes() == b"one"
