"""Threads of our own: results in order, errors that arrive, and work that is taken to the very end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from ckptcore.workers import NICENESS, Workers, at_most


def test_results_come_in_the_order_of_the_items() -> None:
    last_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 3:
            last_is_done.set()
        assert last_is_done.wait(10)
        return -item

    with Workers(4, "test") as pool:
        assert pool.size == 4
        assert pool.map(work, [0, 1, 2, 3]) == [0, -1, -2, -3]


def test_many_more_tasks_than_threads() -> None:
    with Workers(2, "test") as pool:
        assert pool.map(str, range(1000)) == [str(item) for item in range(1000)]
    assert pool.size == 0


def test_the_first_error_is_raised() -> None:
    def work(item: int) -> None:
        raise ValueError(str(item))

    with Workers(2, "test") as pool, pytest.raises(ValueError, match=r"^0$"):
        pool.map(work, range(10))


def test_what_has_not_begun_is_dropped_at_the_close() -> None:
    begun, go = threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        assert go.wait(10)
        return "done"

    pool = Workers(1, "test")
    running, waiting = pool.submit(first), pool.submit(str, 2)
    assert begun.wait(10)
    waiting.add_done_callback(lambda _: go.set())  # the first ends only when the second has been dropped
    pool.close()
    assert running.result() == "done"
    with pytest.raises(CancelledError):
        waiting.result()


@pytest.mark.parametrize("granted", [0, 1])
def test_fewer_threads_than_asked_for_do_the_same_work(monkeypatch: pytest.MonkeyPatch, granted: int) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == granted:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        pool = Workers(4, "test")
    assert pool.size == granted
    with pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


PROGRAM = """
import threading
from ckptcore.workers import NICENESS, Workers, at_most

def after_main():
    threading.main_thread().join()
    with Workers(2, "late") as pool:
        print(pool.map(abs, [-1, -2]))

threading.Thread(target=after_main).start()
"""


def test_they_work_after_the_main_thread_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[1, 2]", "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_threads_stand_behind_those_that_train_if_they_are_told_to() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = priority()
    with Workers(1, "test", behind=True) as pool, Workers(1, "test") as other:
        assert pool.submit(priority).result(10) == min(19, own + NICENESS)
        assert other.submit(priority).result(10) == own
    assert priority() == own


def test_without_a_thread_of_its_own_nobody_stands_behind() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with at_most(0), Workers(1, "test", behind=True) as pool:
        assert pool.submit(str, 1).result() == "1"
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
