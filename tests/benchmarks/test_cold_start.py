"""`cold_start`: phases that add up, and one start at a tiny size."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from threading import Thread

import pytest

from benchmarks import cold_start, cold_start_child
from benchmarks.cold_start_child import Phases


def options(folder: Path, *arguments: str) -> Namespace:
    parser = ArgumentParser()
    cold_start.add_arguments(parser)
    return Namespace(**vars(parser.parse_args(arguments)), smoke=True, dir=folder)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time is what stands in it."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_phases_follow_each_other_without_a_gap(clock: list[float]) -> None:
    phases = Phases(0.0, 1.0)
    clock[0] = 3.0
    phases.mark("import")
    clock[0] = 4.0
    with phases.within("outer"):
        clock[0] = 6.0
        with phases.within("inner"):
            clock[0] = 10.0
        clock[0] = 11.0
    clock[0] = 11.5
    phases.mark("the rest")
    assert phases.seconds == {"interpreter": 1.0, "import": 2.0, "outer": 3.0, "inner": 4.0, "the rest": 1.5}
    assert sum(phases.seconds.values()) == clock[0]


def test_other_threads_are_no_phase(clock: list[float]) -> None:
    phases = Phases(0.0, 0.0)

    def work() -> None:
        with phases.within("elsewhere"):
            clock[0] = 5.0

    thread = Thread(target=work)
    thread.start()
    thread.join(30)
    phases.mark("waiting")
    assert phases.seconds == {"interpreter": 0.0, "waiting": 5.0}


def test_a_function_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start_child, "WATCHED", {"gone": (("ckptcore.restore", "found"),)})
    with pytest.raises(AttributeError, match="found"):
        cold_start_child._watch("jax", Phases(0.0, 0.0))


def test_phases_that_do_not_add_up_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cold_start, "_child", _answer)
    with pytest.raises(ValueError, match=r"phases of 1\.0 s in"):
        cold_start._start("jax", "smoke", tmp_path)


def _answer(*_: str, pipe: int) -> None:
    with open(pipe, "w") as out:
        out.write('{"phases": {"all": 1.0}, "threads": {}, "ended": 0.0}')


@pytest.mark.whole
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_start(tmp_path: Path, framework: str) -> None:
    result = cold_start.run(options(tmp_path, "--framework", framework))
    (shown,) = result["shown"].values()
    assert sum(shown["phases"].values()) == pytest.approx(shown["total"], abs=1e-3)
    expected = {"interpreter", "import the framework", "import this project", "opening: probe", "chunks", "place", "first step"}
    assert expected <= set(shown["phases"])
    lines = cold_start.table(result).splitlines()
    assert f"| seconds | {framework}, warm |" in lines
    assert lines[-2].startswith("| **total** |")
