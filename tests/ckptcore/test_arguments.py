"""Calls with mistaken arguments: refused before anything happens, without showing a whole state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcore
from ckptcore import names
from ckptcore.errors import CallError, NotFound
from ckptcore.names import GenerationId, named_generation
from ckptcore.run import open_run
from ckptcore.store import open_store
from tests.ckptcore.support import checkpointer, contents, state

GENERATION = GenerationId(1, 10, 1)


def test_errors_are_at_hand() -> None:
    assert ckptcore.errors.NotFound is NotFound
    assert "errors" in ckptcore.__all__


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda saver: saver.save(-1, state(1)), r"step is -1, expected 0 to 999999999999"),
        (lambda saver: saver.save(10**12, state(1)), r"step is 1000000000000, expected 0 to"),
        (lambda saver: saver.save(bool(saver), state(1)), r"step is a bool, expected an int"),
        (lambda saver: saver.save(np.int64(3), state(1)), r"step is an int64, expected an int"),
        (lambda saver: saver.save(state(1), 1), r"step is a dict, expected an int.*save\(step, components\)"),
        (lambda saver: saver.save(1, [state(1)]), r"components is a list, expected a mapping from names to state"),
        (lambda saver: saver.save(1, None), r"components is NoneType"),
        (lambda saver: saver.restore_or_init(state(1), like=state(1)), r"init is a dict.*pass init, not init\(\)"),
        (lambda saver: saver.restore_or_init(lambda: state(1), like=lambda: 0), r"like is a function; call it"),
        (lambda saver: saver.restore_or_init(lambda: state(1), like=[1]), r"like is a list, expected a mapping"),
        (lambda saver: saver.restore(like=lambda: 0), r"like is a function; call it"),
    ],
)
def test_a_mixed_up_call_is_told_what_to_pass(call: Callable[[Any], Any], message: str, place: Path) -> None:
    with checkpointer(place) as saver, pytest.raises(CallError, match=message) as caught:
        call(saver)
    assert len(str(caught.value)) < 200
    assert contents(place) == {}


@pytest.mark.parametrize(("value", "kind"), [("yes", "a str"), ("", "a str"), (1, "an int"), (None, "NoneType")])
def test_a_switch_is_true_or_false(value: Any, kind: str, place: Path) -> None:
    with pytest.raises(CallError, match=f"fetch_once is {kind}, expected True or False"):
        checkpointer(place, fetch_once=value)
    assert contents(place) == {}


def test_what_init_returns_is_checked_too(place: Path) -> None:
    with checkpointer(place) as saver, pytest.raises(CallError, match=r"what init\(\) returned is a list"):
        saver.restore_or_init(lambda: [1], like={})  # pyright: ignore[reportArgumentType, reportReturnType]


def test_reading_takes_a_mapping_too(place: Path) -> None:
    with checkpointer(place) as saver:
        saver.save(1, state(1)).result()
    with pytest.raises(CallError, match="like is a function"):
        open_run(place).restore(like=lambda: state(1))  # pyright: ignore[reportArgumentType]


class Handle:
    generation = GENERATION


class Record:
    generation = str(GENERATION)


@pytest.mark.parametrize("named", [GENERATION, str(GENERATION), Handle(), Record()])
def test_ways_to_name_a_generation(named: Any) -> None:
    assert named_generation(named) == GENERATION


class Fresh:
    generation = None


@pytest.mark.parametrize(
    ("named", "message"),
    [("000001-10-1", "not a generation ID"), ("", "not a generation ID"), (10, "int names no"), (Fresh(), "Fresh names no")],
)
def test_a_mistyped_generation_is_a_mistake_of_the_call(named: Any, message: str, place: Path) -> None:
    with pytest.raises(CallError, match=message):
        named_generation(named)
    with checkpointer(place) as saver:
        saver.save(1, state(1)).result()
    run = open_run(place)
    calls = [
        lambda: run.annotate(named, pin="x"),
        lambda: run.quarantine(named, "x"),
        lambda: run.restore(generation=named),
        lambda: run.fork(place / "other", generation=named),
        lambda: next(run.follow(after=named)),
        lambda: saver.annotate(named, pin="x"),
    ]
    for call in calls:
        with pytest.raises(CallError, match=message):
            call()


def test_a_plain_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert open_store("~/runs/a").url == open_store(place / "runs" / "a").url
    assert open_store("./~/a").url.endswith("/~/a")
    assert open_store("file:///~/a").url == "file:///~/a"
    with pytest.raises(CallError, match="no home directory of that name"):
        open_store("~no-such-user/a")


def test_the_largest_step_is_fine(place: Path) -> None:
    with checkpointer(place) as saver:
        assert saver.save(names.MAX_STEP, state(1)).result().step == names.MAX_STEP
