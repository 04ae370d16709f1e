"""The outcome of a save: waited for, told once, never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptcore import handle as handle_module
from ckptcore.errors import CallError, DeadlineExceeded, SaveAborted
from ckptcore.handle import SaveHandle
from ckptcore.names import GenerationId
from ckptcore.records import Manifest
from tests.ckptcore.support import Job, file_store, manifest

GENERATION = GenerationId(1, 10, 1)


@pytest.fixture
def committed(place: Path) -> Manifest:
    job = Job(file_store(place))
    job.open()
    return manifest(job.save(10))


def failing() -> Manifest:
    raise SaveAborted("rank 1 is late", [1])


def test_a_commit(committed: Manifest) -> None:
    handle = SaveHandle(GENERATION, lambda: committed)
    assert handle.result() == committed
    assert handle.result(timeout=0) == committed
    assert handle.done()
    assert handle.wait() is None


def test_a_wait_can_have_a_deadline_and_go_on(committed: Manifest) -> None:
    go = threading.Event()

    def run() -> Manifest:
        go.wait()
        return committed

    handle = SaveHandle(GENERATION, run)
    with pytest.raises(DeadlineExceeded, match=r"000001-000000000010-1 is not decided after 0\.01 s"):
        handle.result(timeout=0.01)
    assert not handle.done()
    go.set()
    assert handle.result() == committed


def test_an_error_that_was_seen_is_not_told_again() -> None:
    handle = SaveHandle(GENERATION, failing)
    with pytest.raises(SaveAborted, match="rank 1 is late") as caught:
        handle.result()
    assert caught.value.missing == (1,)
    assert handle.wait() is None


def test_an_error_that_nobody_saw_is_told_once() -> None:
    handle = SaveHandle(GENERATION, failing)
    error = handle.wait()
    assert isinstance(error, SaveAborted)
    assert handle.wait() is None


def test_a_timeout_of_the_save_itself_is_no_deadline_of_the_wait() -> None:
    def run() -> Manifest:
        raise TimeoutError("of the save")

    handle = SaveHandle(GENERATION, run)
    assert isinstance(handle.wait(), TimeoutError)
    with pytest.raises(TimeoutError, match="of the save"):
        handle.result(timeout=5)


def test_an_interrupted_wait_does_not_swallow_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def run() -> Manifest:
        go.wait()
        return failing()

    handle = SaveHandle(GENERATION, run)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ckptcore.handle.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.result()
    go.set()
    assert isinstance(handle.wait(), SaveAborted)


@pytest.mark.parametrize("run", [lambda: None, failing])
def test_callbacks_are_called_whatever_the_outcome(run: Callable[[], Any]) -> None:
    called: list[SaveHandle] = []
    handle = SaveHandle(GENERATION, run)
    handle.add_done_callback(called.append)
    handle.wait()
    handle.add_done_callback(called.append)
    assert called == [handle, handle]


def test_an_outcome_that_comes_at_the_deadline_is_the_outcome(committed: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has just ended in vain when the outcome arrives: it is a time-out or the outcome, never a bare `TimeoutError`."""
    go = threading.Event()
    waited = handle_module.wait

    def run() -> Manifest:
        go.wait()
        return committed

    handle = SaveHandle(GENERATION, run)

    def just_missed(*arguments: Any) -> Any:
        found = waited(*arguments)
        go.set()
        handle._thread.join()
        return found

    with monkeypatch.context() as patch:
        patch.setattr("ckptcore.handle.wait", just_missed)
        with pytest.raises(DeadlineExceeded):
            handle.result(timeout=0.01)
    assert handle.result(timeout=0.01) == committed


@pytest.mark.parametrize("ask", [lambda handle: handle.wait(), lambda handle: handle.result(5), lambda handle: handle.result()])
def test_a_forked_process_is_told_that_the_save_is_not_its_own(
    committed: Manifest, monkeypatch: pytest.MonkeyPatch, ask: Callable[[SaveHandle], Any]
) -> None:
    """The thread that saves is not there: to wait for it would never end."""
    handle = SaveHandle(GENERATION, lambda: committed)
    assert handle.wait() is None
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(CallError, match=r"was forked off"):
            ask(handle)
    assert handle.result() == committed


def test_errors_that_cause_each_other_end() -> None:
    def run() -> Manifest:
        one, other = ValueError("one"), ValueError("other")
        one.__cause__, other.__cause__ = other, one
        raise one

    handle = SaveHandle(GENERATION, run)
    with pytest.raises(ValueError, match="one"):
        handle.result(timeout=30)
