"""Log lines: short ones, and loud when something did not go as planned."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ckptcore.errors import Preempted
from ckptcore.events import Event, shorten, tell
from ckptcore.names import GenerationId
from ckptcore.run import open_run
from tests.ckptcore.support import Job, checkpointer, file_store, flip, same, state, weights

GENERATION = GenerationId(1, 20, 1)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_reason_becomes_one_short_line() -> None:
    assert shorten("a\n  - b\tc") == "a - b c"
    assert shorten(ValueError("x" * 1000)) == "x" * 199 + "…"
    assert shorten("x" * 200) == "x" * 200


def test_an_event_is_one_log_line_and_whole_for_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    tell(heard.append, Event("fallen-back", 3, GENERATION, "why\n" + "x" * 500))
    tell(heard.append, Event("staged", 3, GENERATION))
    assert warnings_of(caplog) == [f"fallen-back {GENERATION} rank=3: why {'x' * 195}…"]
    assert [record.name for record in caplog.records] == ["ckptcore"]
    assert len(heard[0].message) == 504


def test_a_listener_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ConnectionError(event.kind)

    tell(fail, Event("staged", 0, GENERATION))
    assert warnings_of(caplog) == [f"on_event failed at {Event('staged', 0, GENERATION)!r}"]


class Watch:
    """Told to stop before the save of one step."""

    def reached(self, step: int) -> bool:
        return step >= 13

    def close(self) -> None:
        pass


def test_a_preemption_is_told_once(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with checkpointer(place, watch=Watch) as saver:
        assert [step for step in range(1, 16) if saver.should_save(step)] == [10, 13, 14, 15]
        with pytest.raises(Preempted):
            saver.save(15, state(15))
    (told,) = warnings_of(caplog)
    assert told == "preempted rank=0: told to stop: the state after step 13 will be saved, then this job ends"


def test_a_reader_that_falls_back_says_what_it_left_why_and_for_what(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(file_store(place))
    job.open()
    for step in (10, 20):
        job.save(step)
    for key in job.store.list(f"generations/{GENERATION}/state/ranks/"):
        if "/d/" in key:
            flip(place / key, 20)
    assert same(open_run(place).restore(components="params")["w"], weights(10))
    (told,) = warnings_of(caplog)
    assert told.startswith(f"falling back to 000001-000000000010-1: {GENERATION} cannot be read: ")
    assert "params." in told
    assert len(told) < 260
