"""SIGTERM: one step for all ranks, whatever their pace; a second signal ends the process."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import CallError, CheckpointError
from tests.torchckpt.procs import Job, run_job
from torchckpt.preemption import Preemption

SIZE = 3

ROUNDS = """
    import itertools, os, random, signal, threading, time
    from torchckpt.channel import open_channel
    from torchckpt.preemption import Preemption

    channel = open_channel()
    same = random.Random(7)  # draws the same on every rank
    own = random.Random(RANK)
    before = signal.getsignal(signal.SIGTERM)

    def end_after(seconds):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGTERM)

    stops = []
    for turn in range(120):
        preemption = Preemption()
        victims = same.sample(range(SIZE), same.randint(1, SIZE))
        pace = own.choice([0, 0, 1e-4, 5e-4])
        thread = threading.Thread(target=end_after, args=[own.uniform(0, 0.01)])
        when = own.randint(1, 40)
        if [RANK] == victims:  # at any moment, also in the middle of a request
            thread.start()
        for step in itertools.count(1):
            if RANK in victims[1:] + victims[:1] * (len(victims) > 1) and step == when:
                os.kill(os.getpid(), signal.SIGTERM)
            if preemption.reached(step):
                break
            time.sleep(pace * own.random())
        assert preemption.reached(step)
        if [RANK] == victims:
            thread.join()
        preemption.close()
        assert signal.getsignal(signal.SIGTERM) == before
        told = {int(stop) for stop in channel.gather(b"%d" % step, timeout=60, what="the step")}
        assert len(told) == 1, (turn, told)
        stops.append(step)
    print("STOPS", len(stops), len(set(stops)))
"""

TRAINING = """
    import itertools, threading
    from torchckpt.preemption import Preemption

    preemption = Preemption("run")
    print("READY", flush=True)
    # The sum stands for a training step.
    for step in itertools.count(1):
        if SIZE > 1:
            dist.all_reduce(torch.ones(1))
        if preemption.reached(step):
            break
    print("REACHED", step, flush=True)
    threading.Event().wait()
"""


@pytest.mark.slow
def test_many_rounds_of_signals_at_any_moment_and_ranks_of_any_pace() -> None:
    told = {tuple(output.split()) for output in run_job(ROUNDS, size=SIZE)}
    ((name, rounds, different),) = told
    assert (name, rounds) == ("STOPS", "120")
    assert int(different) > 10


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_all_ranks_stop_at_one_step_and_a_second_signal_ends_the_process_at_once(size: int) -> None:
    with Job(TRAINING, size=size) as job:
        for rank in job.ranks:
            rank.wait_for("READY")
        job.ranks[-1].send(signal.SIGTERM)
        assert len({rank.wait_for("REACHED") for rank in job.ranks}) == 1
        for rank in job.ranks:
            rank.send(signal.SIGTERM)
            assert rank.wait(timeout=10) == -signal.SIGTERM


class Schedule:
    """A store of one process, and ranks of which one gets its turn right before another's request."""

    def __init__(self, turns: list[tuple[str, int]]) -> None:
        self.values: dict[str, bytes] = {}
        self.requests = 0
        self._turns = iter(turns)
        self._busy: set[int] = set()
        self._calls = [0] * SIZE
        self.stopped: dict[int, int] = {}
        self.watches = [Preemption() for _ in range(SIZE)]
        for watch in self.watches:
            watch._store = self

    def close(self) -> None:
        for watch in self.watches:
            watch.close()

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As a `TCPStore` does it."""
        self.turn()
        self.requests += 1
        value = self.values.get(key)
        if (expected or None) == value:
            self.values[key] = value = desired
        return expected if value is None else value

    def turn(self) -> bool:
        """The next rank's turn, unless it is in a request; whether there was one."""
        what, rank = next(self._turns, ("end", 0))
        if what == "signal":
            self.watches[rank].handler.asked = True
        elif what == "call" and rank not in self._busy and rank not in self.stopped:
            self.call(rank)
        return what != "end"

    def call(self, rank: int) -> None:
        self._busy.add(rank)
        self._calls[rank] += 1
        if self.watches[rank].reached(self._calls[rank]):
            self.stopped[rank] = self._calls[rank]
        self._busy.remove(rank)


TURNS = st.lists(st.tuples(st.sampled_from(["call", "call", "call", "signal"]), st.integers(0, SIZE - 1)), max_size=60)


@given(TURNS)
def test_in_any_order_of_requests_signals_and_calls_all_stop_at_one_call(turns: list[tuple[str, int]]) -> None:
    schedule = Schedule(turns)
    try:
        while schedule.turn():
            pass
        # From here on the ranks go on alone, one after the other: none ever waits for another.
        asked = any(watch.handler.asked for watch in schedule.watches)
        for rank in sorted(range(SIZE), key=lambda rank: not schedule.watches[rank].handler.asked):
            while asked and rank not in schedule.stopped:
                schedule.call(rank)
        assert len(set(schedule.stopped.values())) == asked
        assert len(schedule.stopped) == SIZE * asked
    finally:
        schedule.close()


def test_a_call_costs_one_request_at_most_and_none_when_others_are_ahead() -> None:
    schedule = Schedule([])
    for call in range(1, 11):
        schedule.call(0)
        assert schedule.requests == call
    for _ in range(10):
        schedule.call(1)
    assert schedule.requests == 11
    schedule.watches[1].handler.asked = True
    for _ in range(11):
        schedule.call(2)
    # Rank 1 is told at its 11th call; but rank 2 has gone on from there, so the 12th is the first that all can stop at.
    for rank in (1, 0, 2, 1, 0):
        assert rank not in schedule.stopped
        schedule.call(rank)
    assert schedule.stopped == dict.fromkeys(range(SIZE), 12)
    schedule.close()


def test_a_store_that_fails_is_an_error() -> None:
    class Gone:
        def compare_set(self, *_: Any) -> bytes:
            raise RuntimeError("Broken pipe")

    preemption = Preemption()
    preemption._store = Gone()
    with pytest.raises(CheckpointError, match=r"preemption: the store of the process group failed \(Broken pipe\)"):
        preemption.reached(1)
    preemption.close()


def test_the_handler_from_before_comes_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        preemption = Preemption()
        assert not preemption.reached(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.reached(2)
        assert preemption.reached(3)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        preemption.close()
        preemption.close()
        assert seen == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_the_main_thread_can_watch() -> None:
    errors: list[CallError] = []

    def watch() -> None:
        try:
            Preemption()
        except CallError as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert "main thread" in str(*errors)


def test_a_job_without_its_group_is_told_so_and_leaves_the_signal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CallError, match="init_process_group"):
        Preemption()
    assert signal.getsignal(signal.SIGTERM) == before
