"""SIGTERM: one step for all ranks, a second signal ends the process, handlers come back."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ckptcore.errors import CallError
from jaxckpt.preemption import Preemption
from tests.jaxckpt.procs import Job

TRAINING = """
    import itertools
    import signal
    import threading
    from jaxckpt.preemption import Preemption

    from jaxckpt.backend import JaxBackend

    channel = JaxBackend().channel()
    preemption = Preemption()
    if "elsewhere" in ARGS:  # a thread of JAX takes the signal
        jax.numpy.ones(1).block_until_ready()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("READY", flush=True)
    # The barrier stands for a training step: it keeps the ranks at the same step.
    for step in itertools.count():
        channel.gather(b"", timeout=60, what="a step")
        if preemption.reached(step):
            break
    assert preemption.reached(step)
    print("REACHED", step, flush=True)
    if "stay" in ARGS:
        threading.Event().wait()
    preemption.close()
"""


def reached_step(line: str) -> int:
    return int(line.split()[1])


def test_both_ranks_stop_at_the_same_step() -> None:
    with Job(TRAINING) as job:
        for rank in job.ranks:
            rank.wait_for("READY")
        job.ranks[1].send(signal.SIGTERM)
        steps = [reached_step(rank.wait_for("REACHED")) for rank in job.ranks]
        assert steps[0] == steps[1]
        job.wait()


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once() -> None:
    with Job(TRAINING, args=["stay"]) as job:
        for rank in job.ranks:
            rank.wait_for("READY")
        job.ranks[0].send(signal.SIGTERM)
        for rank in job.ranks:
            rank.wait_for("REACHED")
        job.ranks[1].send(signal.SIGTERM)
        assert job.ranks[1].wait(timeout=10) == -signal.SIGTERM


def test_one_process_stops_and_a_second_signal_ends_it() -> None:
    with Job(TRAINING, size=1, args=["stay"]) as job:
        (rank,) = job.ranks
        rank.wait_for("READY")
        rank.send(signal.SIGTERM)
        rank.wait_for("REACHED")
        rank.send(signal.SIGTERM)
        assert rank.wait(timeout=10) == -signal.SIGTERM


def test_a_signal_that_another_thread_takes_is_seen_by_a_loop_that_never_waits() -> None:
    with Job(TRAINING, size=1, args=["elsewhere"]) as job:
        (rank,) = job.ranks
        rank.wait_for("READY")
        rank.send(signal.SIGTERM)
        rank.wait_for("REACHED", timeout=20)
        job.wait()


def test_the_handler_from_before_comes_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        preemption = Preemption()
        assert not preemption.reached(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.reached(2)
        assert preemption.reached(3)
        preemption.close()
        preemption.close()
        assert seen == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The signals that the program's own handler gets: it is there before every watch."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_watches_close_in_any_order(seen: list[int], order: tuple[int, ...]) -> None:
    watches = [Preemption() for _ in range(3)]
    for closed in order:
        watches[closed].close()
    ask()
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_watch_is_told_and_its_closing_lets_no_second_signal_pass(seen: list[int], order: tuple[int, ...]) -> None:
    watches = [Preemption() for _ in range(3)]
    ask()
    assert all(watch.reached(1) for watch in watches)
    for closed in order[:-1]:
        watches[closed].close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    watches[order[-1]].close()
    ask()
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_watch_leaves_the_others_watching(seen: list[int], closed: int) -> None:
    watches = [Preemption() for _ in range(3)]
    watches.pop(closed).close()
    ask()
    assert all(watch.reached(1) for watch in watches)
    for watch in watches:
        watch.close()
    ask()
    assert seen == [signal.SIGTERM]


def test_a_handler_that_the_program_set_later_stays(seen: list[int]) -> None:
    watch = Preemption()
    later: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: later.append(number))
    watch.close()
    ask()
    assert (seen, later) == ([], [signal.SIGTERM])


def test_only_the_main_thread_can_watch() -> None:
    errors: list[Exception] = []

    def watch() -> None:
        try:
            Preemption()
        except CallError as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert len(errors) == 1
    with pytest.raises(CallError, match="main thread"):
        raise errors[0]
