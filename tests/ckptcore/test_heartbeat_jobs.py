"""Heartbeats of whole jobs: what a `Checkpointer` tells, call by call."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer
from ckptcore.errors import CallError, NotFound, Preempted
from ckptcore.events import Event
from ckptcore.heartbeat import Phase, Pulse, read
from ckptcore.history import read_run
from tests.ckptcore.beats import listen_to, told
from tests.ckptcore.support import DERIVED, HostBackend, checkpointer, file_store, on_ranks, state
from tests.ckptcore.training import must_not_init


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    listen_to(tmp_path, monkeypatch)
    return tmp_path


class Seen:
    """What the beats said at each event of one rank, in the thread that trains."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self.rank, self.thread = folder, rank, threading.get_ident()
        self.at: list[tuple[str, str]] = []

    def __call__(self, event: Event) -> None:
        if threading.get_ident() == self.thread:
            self.at.append((event.kind, told(self.folder, self.rank).phase))


def test_a_job_tells_what_it_does(folder: Path, place: Path) -> None:
    def init() -> dict[str, Any]:
        assert told(folder).phase == "restore"
        return state(0)

    seen = Seen(folder)
    with checkpointer(place, interval=2, on_event=seen) as ckpt:
        assert (told(folder).phase, told(folder).incarnation) == ("init", None)
        ckpt.restore_or_init(init, like=state(0))
        assert (told(folder).incarnation, told(folder).run) == (1, read_run(file_store(place)).run_id)
        assert (told(folder).phase, told(folder).step, told(folder).restored_step) == ("init", 0, 0)
        assert [ckpt.should_save(step) for step in (1, 2)] == [False, True]
        assert (told(folder).phase, told(folder).step) == ("train", 2)
        handle = ckpt.save(2, state(2))
        assert (told(folder).phase, told(folder).step, told(folder).steps) == ("train", 2, 2)
        blocked = told(folder).blocked
        handle.result()
        assert told(folder).blocked > blocked > 0
        blocked = told(folder).blocked
        ckpt.wait()
        assert told(folder).blocked > blocked
        assert told(folder).phase == "train"
    assert told(folder).phase == "final"
    assert {("opened", "restore"), ("staged", "save")} <= set(seen.at)
    assert set(told(folder).marks) == {"init", "restore", "restored", "first-step"}


def test_closing_is_the_end_from_its_beginning(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What closing waits for takes the time that the end may take, not that of a step."""
    phases: list[Phase] = []
    monkeypatch.setattr(HostBackend, "release", lambda _: phases.append(told(folder).phase))
    with checkpointer(place) as ckpt:
        ckpt.save(1, state(1))
    assert phases == ["final"]


def test_a_job_that_resumes_tells_from_where(folder: Path, place: Path) -> None:
    with checkpointer(place) as ckpt:
        ckpt.save(10, state(10))
    seen = Seen(folder)
    with checkpointer(place, on_event=seen) as ckpt:
        ckpt.restore_or_init(must_not_init, like=state(0))
        assert (told(folder).phase, told(folder).restored_step, told(folder).steps) == ("init", 10, 0)
        assert told(folder).incarnation == ckpt.incarnation == 2
        assert ("restored", "restore") in seen.at
        ckpt.heartbeat(12)
        assert (told(folder).phase, told(folder).steps) == ("train", 2)
        ckpt.restore(like=state(0), step=10)
        assert (told(folder).phase, told(folder).restored_step, told(folder).steps) == ("init", 10, 0)


def test_what_a_restore_refuses_is_no_restore(folder: Path, place: Path) -> None:
    with checkpointer(place) as ckpt, pytest.raises(NotFound):
        ckpt.restore()
    assert (told(folder).phase, told(folder).restored_step) == ("final", None)


def left_by(place: Path, error: BaseException) -> None:
    """A job that is left in the midst of training."""
    with checkpointer(place) as ckpt:
        ckpt.restore_or_init(lambda: state(0), like=state(0))
        ckpt.save(1, state(1))
        raise error


def test_an_error_leaves_the_phase_in_which_it_was(folder: Path, place: Path) -> None:
    """By that a supervisor tells what the rank was at; what is closed on the way is told as it is."""
    with pytest.raises(ZeroDivisionError):
        left_by(place, ZeroDivisionError())
    assert (told(folder).phase, told(folder).step) == ("train", 1)


@pytest.mark.parametrize(("code", "phase"), [(0, "final"), (None, "final"), (1, "train"), ("no data", "train")])
def test_only_an_exit_without_a_status_is_an_end_that_was_asked_for(
    folder: Path, place: Path, code: int | str | None, phase: Phase
) -> None:
    with pytest.raises(SystemExit):
        left_by(place, SystemExit(code))
    assert told(folder).phase == phase


def test_every_rank_tells_of_itself(folder: Path, place: Path) -> None:
    def run(link: Channel) -> None:
        with checkpointer(place, link) as ckpt:
            ckpt.restore_or_init(lambda: state(0, link.rank, 3), like=state(0, link.rank, 3))
            ckpt.heartbeat(1, seconds=0.5 + link.rank)
            ckpt.save(1, state(1, link.rank, 3))

    on_ranks(3, run)
    assert [(beat.rank, beat.step, beat.step_seconds) for beat in read(folder)] == [(0, 1, 0.5), (1, 1, 1.5), (2, 1, 2.5)]


class Soon:
    """A watch that is told to stop at the first step."""

    def reached(self, step: int) -> bool:
        return step >= 1

    def close(self) -> None:
        pass


def test_a_preempted_job_waits_inside_of_its_save(folder: Path, place: Path) -> None:
    with Checkpointer(place, backend=HostBackend(), watch=Soon, derived=DERIVED) as ckpt:
        assert ckpt.should_save(1)
        with pytest.raises(Preempted):
            ckpt.save(1, state(1))
        assert told(folder).phase == "train"
    assert (told(folder).phase, told(folder).step) == ("final", 1)


@pytest.mark.parametrize(
    ("arguments", "seconds"), [((-1,), None), ((1.5,), None), ((True,), None), ((1,), -1.0), ((1,), float("nan")), ((1,), "1")]
)
def test_a_heartbeat_of_nonsense_is_refused(place: Path, arguments: tuple[Any, ...], seconds: Any) -> None:
    with checkpointer(place) as ckpt, pytest.raises(CallError):
        ckpt.heartbeat(*arguments, seconds=seconds)


def test_heartbeats_leave_random_states_alone(folder: Path, place: Path) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 -- the one that programs share
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    pulse = Pulse.of(os.environ, 0)
    for step in range(20):
        pulse.stepped(step)
    with checkpointer(place) as ckpt:
        ckpt.heartbeat(1, seconds=0.1)
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002
    assert told(folder).step == 1
