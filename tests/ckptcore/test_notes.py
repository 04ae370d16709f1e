"""What is learned about a generation later: metrics, tags, pins, quarantine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ckptcore import names, notes, records
from ckptcore.clock import Clock
from ckptcore.errors import CallError, Retired
from ckptcore.names import GenerationId
from ckptcore.store import Store
from tests.ckptcore.support import file_store

RUN = "00000000-0000-4000-8000-000000000000"
GENERATION = GenerationId(1, 10, 1)


@pytest.fixture
def store(place: Path) -> Store:
    return file_store(place)


def annotate(store: Store, generation: GenerationId = GENERATION, **what: Any) -> None:
    notes.annotate(store, RUN, generation, clock=Clock(), **what)


def test_the_newest_value_of_a_metric_counts(store: Store) -> None:
    annotate(store, metrics={"loss": 0.1, "accuracy": 1})
    annotate(store, metrics={"loss": 0.30000000000000004})
    annotate(store, GenerationId(1, 20, 1), metrics={"loss": 7.0})
    assert notes.metrics(notes.read(store, RUN, GENERATION)) == {"loss": 0.30000000000000004, "accuracy": 1.0}


def test_a_metric_may_be_nan(store: Store) -> None:
    annotate(store, metrics={"loss": math.nan})
    assert math.isnan(notes.metrics(notes.read(store, RUN, GENERATION))["loss"])


@pytest.mark.parametrize("value", ["high", None, [1.0], 1j, 10**400])
def test_a_metric_is_a_number(store: Store, value: Any) -> None:
    with pytest.raises(CallError, match="'loss'"):
        annotate(store, metrics={"loss": value})
    assert list(store.list()) == []


def test_tags_and_pins(store: Store) -> None:
    annotate(store, tags=["best", "v1.0-rc"], pin="used by a paper")
    annotate(store, tags=["best"])
    found = notes.read_all(store, RUN)[GENERATION]
    assert sorted(note.tag for note in found if note.tag) == ["best", "v1.0-rc"]
    assert [note.text for note in found if note.kind == "pin"] == ["used by a paper"]
    assert notes.has(found, "tag")
    assert not notes.has(found, "quarantine")


@pytest.mark.parametrize("tag", ["", "a/b", "../x", "a b", "x" * 300, "\n"])
def test_a_tag_is_a_plain_word(store: Store, tag: str) -> None:
    with pytest.raises(CallError, match="tag"):
        annotate(store, tags=[tag])
    assert list(store.list()) == []


def test_a_quarantine_is_written_once(store: Store) -> None:
    first = notes.write(store, RUN, GENERATION, "quarantine", clock=Clock(), text="spike")
    assert notes.write(store, RUN, GENERATION, "quarantine", clock=Clock(), text="again") == first
    assert [note.text for note in notes.read(store, RUN, GENERATION)] == ["spike"]


@pytest.mark.parametrize("kind", ["quarantine", "damaged-0123", "pin-0123"])
@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":"ckpt/note","version":"9.0"}'])
def test_an_unreadable_note_still_counts_as_what_its_name_says(store: Store, kind: str, data: bytes) -> None:
    store.put_if_absent(names.note_key(GENERATION, kind), data)
    (note,) = notes.read(store, RUN, GENERATION)
    assert note.kind == kind.split("-", maxsplit=1)[0]
    assert "unreadable" in note.text


def test_other_unreadable_and_foreign_notes_are_passed_over(store: Store) -> None:
    annotate(store, metrics={"loss": 1.0})
    foreign = records.Note(
        run_id=RUN.replace("0", "1", 1), generation=str(GENERATION), kind="tag", created=Clock().utc(), tag="x"
    )
    store.put_if_absent(names.note_key(GENERATION, "tag-x"), records.encode(foreign))
    store.put_if_absent(names.note_key(GENERATION, "metrics-bad"), b"\xff")
    store.put_if_absent(f"{names.NOTES}elsewhere/pin.json", b"{}")
    store.put_if_absent(f"{names.NOTES}stray.txt", b"?")
    store.put_if_absent(f"{names.NOTES}stray.json", b"{}")
    assert {generation: [note.kind for note in found] for generation, found in notes.read_all(store, RUN).items()} == {
        GENERATION: ["metrics"]
    }


def test_a_malformed_metric_is_passed_over(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    note = records.Note(run_id=RUN, generation=str(GENERATION), kind="metrics", created=Clock().utc(), metrics={"loss": [1]})
    annotate(store, metrics={"loss": 0.5})
    store.put_if_absent(names.note_key(GENERATION, "metrics-0"), records.encode(note))
    assert notes.metrics(notes.read(store, RUN, GENERATION)) == {"loss": 0.5}
    assert "'loss' of 000001-000000000010-1 is no float" in caplog.text


@pytest.mark.parametrize("what", [{"tags": ["x"]}, {"pin": "a paper"}])
def test_a_pin_or_tag_that_came_too_late_is_told(store: Store, what: dict[str, Any]) -> None:
    store.put_if_absent(names.retired_key(GENERATION), b"{}")
    with pytest.raises(Retired, match="had been retired before it was pinned or tagged"):
        annotate(store, **what)
    annotate(store, metrics={"loss": 0.5})
