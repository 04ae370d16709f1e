"""Watching one attempt: what is noticed, when, and what is done about it. No process is started, and no time passes."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ckptcore import heartbeat
from ckptcore.heartbeat import Beat, Phase
from ckptsupervise.deadlines import Deadlines
from ckptsupervise.orders import Order
from ckptsupervise.telling import Told
from ckptsupervise.watching import LOOK, Asked, Limits, Watch, Watched, shown_status
from tests.ckptsupervise.fake import FakeEngine, FakeRunning, NodeClock, Script

TIGHT = Deadlines(init=30, restore=30, train=10, save=30, final=30)


class Seen:
    """One attempt of three ranks on slots 0, 2 and 5, watched to its end."""

    def __init__(self, folder: Path, script: Script, asked: Asked | None = None, **options: Any) -> None:
        self.clock = NodeClock()
        order = Order(command=["train"], attempt=7, slots=[0, 2, 5], places=6, folder=folder)
        self.running = FakeEngine(self.clock, [script], obeys=options.pop("obeys", True)).start(order)
        self.told: list[Told] = []
        self.stacks: list[dict[int, int]] = []
        self.recovered: list[float] = []
        limits = Limits(deadlines=TIGHT, grace=options.pop("grace", 20.0), drain=options.pop("drain", False))
        watch = Watch(
            self.running,
            order,
            limits,
            asked or Asked(),
            listener=self.told.append,
            on_recovered=lambda timeline: self.recovered.append(timeline.recovered or 0),
            clock=self.clock,
            take_stacks=self._stacks,
            **options,
        )
        self.watched: Watched = watch.run()

    def _stacks(self, pids: Mapping[int, int], folder: Path) -> str:  # noqa: ARG002
        assert self.running.killed == [], "a process that was killed has no stack"
        self.stacks.append(dict(pids))
        return "in all_reduce"

    @property
    def events(self) -> list[str]:
        return [told.event for told in self.told]

    @property
    def detected(self) -> float:
        return self.watched.detected - self.running.launched


def train(run: FakeRunning, seconds: float, *, until: float = 30.0) -> None:
    """Ranks make a step a second, and end after `until`."""
    run.beat(step=int(seconds) + 1)
    if seconds >= until:
        for rank in range(3):
            run.die(rank, 0)


def test_a_job_that_finishes(tmp_path: Path) -> None:
    seen = Seen(tmp_path, train)
    assert seen.watched.ending.outcome == "finished"
    assert seen.watched.timeline.last_step == 31
    assert seen.events == ["recovered"]
    assert seen.running.killed == []


def test_a_rank_that_dies_takes_the_others_along(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        train(run, seconds)
        if seconds >= 5:
            run.die(1, -signal.SIGSEGV)

    seen = Seen(tmp_path, script)
    ending = seen.watched.ending
    assert (ending.outcome, ending.kind, ending.rank, ending.status) == ("failed", "signal", 1, -signal.SIGSEGV)
    assert (ending.phase, ending.step) == ("train", 6)
    assert seen.detected == pytest.approx(5, abs=2 * LOOK)
    assert seen.running.killed == [(pytest.approx(6, abs=3 * LOOK), (0, 2))]
    assert [told.slot for told in seen.told if told.event == "died"] == [2]


def test_a_rank_that_has_finished_before_the_others_is_waited_for(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        if seconds >= 3:
            run.die(0, 0)
        train(run, seconds, until=40)

    seen = Seen(tmp_path, script)
    assert seen.watched.ending.outcome == "finished"
    assert seen.running.killed == []


def test_a_hang_is_found_within_its_deadline_and_its_stack_is_taken_before_it_is_killed(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        if seconds < 5:
            run.beat(step=4)
        elif seconds < 5.5:
            run.beat(0, 2, step=5)  # and wait for rank 1 in the next step

    seen = Seen(tmp_path, script)
    ending = seen.watched.ending
    assert (ending.kind, ending.rank, ending.phase, ending.step) == ("hang", 1, "train", 4)
    assert 10 <= seen.detected - 5 + LOOK <= 12
    assert seen.stacks == [{1: 1001}]
    assert seen.watched.stack == "in all_reduce"
    assert [ranks for _, ranks in seen.running.killed] == [(1,), (0, 2)]
    assert seen.events == ["recovered", "hung", "killing"]


def test_a_rank_that_never_tells_anything_hangs_in_init(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        run.beat(0, 1, step=int(seconds))

    seen = Seen(tmp_path, script)
    assert (seen.watched.ending.kind, seen.watched.ending.rank) == ("hang", 2)
    assert 30 <= seen.detected <= 32
    assert seen.stacks[0][2] == 1002


@pytest.mark.parametrize("phase", ["init", "restore", "save", "final"])
def test_a_long_phase_is_no_hang_until_its_own_deadline(tmp_path: Path, phase: Any) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        if seconds < 1:
            run.beat(step=1)
        elif run.beats[0].phase != phase:
            run.beat(phase=phase, step=1)

    seen = Seen(tmp_path, script)
    assert seen.watched.ending.phase == phase
    assert 30 <= seen.detected - 1 <= 32


@pytest.mark.parametrize(
    "data",
    [
        b'{"rank":0,"pid":1,"phase":"train","at":1e300,"since":1e300,"step":3}',
        b'{"rank":0,"pid":1,"phase":"train","at":1,"since":1,"step":3,"marks":{"first-step":1e300}}',
        b'{"rank":0,"pid":1,"phase":"train","at":1,"since":1,"step":-3}',
        b'{"rank":0,"pid":1,"phase":"train","at":1,"since":1,"blocked":-1e9}',
        b" " * 100_000_000,
        None,
    ],
)
def test_what_is_no_beat_is_passed_over(tmp_path: Path, data: bytes | None) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        run.beat(1, 2, step=int(seconds) + 1)
        path = heartbeat.beat_file(tmp_path, 0)
        path.write_bytes(data) if data is not None else path.mkdir(exist_ok=True)
        if seconds >= 3:
            for rank in range(3):
                run.die(rank, 0)

    watched = Seen(tmp_path, script).watched
    assert (watched.ending.outcome, sorted(watched.timeline.beats)) == ("finished", [1, 2])
    assert all(each is None for each in (watched.timeline.last_step, watched.timeline.recovered))


def test_ranks_that_the_attempt_does_not_have_are_none_of_it(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        train(run, seconds, until=40)
        now = run.launched + 1
        heartbeat.write(tmp_path, Beat(rank=3, pid=7, phase="train", at=now, since=now, step=1))

    seen = Seen(tmp_path, script)
    assert seen.watched.ending.outcome == "finished"
    assert seen.events == ["recovered"]


def test_a_beat_that_somebody_removes_does_not_make_its_rank_silent_from_the_launch_on(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        if 40 <= seconds < 45:
            heartbeat.beat_file(tmp_path, 1).unlink(missing_ok=True)
        else:
            train(run, seconds, until=60)

    seen = Seen(tmp_path, script)
    assert (seen.watched.ending.outcome, seen.running.killed) == ("finished", [])


def test_a_machine_that_slept_is_no_hang(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        if 5 <= seconds < 6:
            run.clock.now += 1000
        else:
            train(run, seconds, until=1030)

    seen = Seen(tmp_path, script)
    assert seen.watched.ending.outcome == "finished"


def test_nobody_hangs_while_heartbeats_cannot_be_written(tmp_path: Path) -> None:
    full = ""

    def script(run: FakeRunning, seconds: float) -> None:
        nonlocal full
        full = "No space left" if 5 <= seconds < 100 else ""
        if seconds < 5:
            run.beat(step=1)
        elif 100 <= seconds < 105:
            run.beat(0, 1, step=2)  # rank 2 hangs indeed

    seen = Seen(tmp_path, script, unusable=lambda _: full)
    assert (seen.watched.ending.kind, seen.watched.ending.rank) == ("hang", 2)
    assert 110 <= seen.detected <= 112
    assert seen.events == ["recovered", "warning", "warning", "hung", "killing"]
    assert [told.message for told in seen.told if told.event == "warning"] == [
        "no heartbeat can be written, so no hang is found: No space left",
        "heartbeats can be written again",
    ]


def test_nobody_hangs_where_the_folder_of_heartbeats_has_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def script(run: FakeRunning, seconds: float) -> None:
        if seconds < 5:
            run.beat(step=1)
        elif folder.exists():
            shutil.rmtree(folder)
        elif seconds >= 60:
            for rank in range(3):
                run.die(rank, 0)

    seen = Seen(folder, script)
    assert seen.watched.ending.outcome == "finished"
    assert any(str(folder) in told.message for told in seen.told if told.event == "warning")


def test_a_beat_that_cannot_be_read_once_is_no_silence_since_the_launch(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        train(run, seconds, until=60)
        if 50 <= seconds < 51:
            heartbeat.beat_file(tmp_path, 1).write_bytes(b"half of")

    assert Seen(tmp_path, script).watched.ending.outcome == "finished"


def test_told_to_stop(tmp_path: Path) -> None:
    asked = Asked()

    def script(run: FakeRunning, seconds: float) -> None:
        train(run, seconds)
        if seconds >= 3 and not asked.signals:
            asked.take(signal.SIGTERM)

    seen = Seen(tmp_path, script, asked)
    assert seen.watched.ending.outcome == "preempted"
    assert seen.watched.ending.kind is None
    assert seen.running.sent == [(signal.SIGTERM, (0, 1, 2))]
    assert seen.running.killed == []
    assert seen.running.seconds < 5


def test_a_rank_that_is_not_there_yet_is_told_to_stop_when_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = Asked([signal.SIGTERM]), {0: 1000}
    monkeypatch.setattr(FakeRunning, "processes", lambda _: dict(found))

    def script(run: FakeRunning, seconds: float) -> None:
        if seconds >= 0.5:
            found.update({1: 1001, 2: 1002})
        train(run, seconds)

    seen = Seen(tmp_path, script, asked)
    assert seen.running.sent == [(signal.SIGTERM, (0,)), (signal.SIGTERM, (1, 2))]
    assert seen.watched.ending.outcome == "preempted"
    assert seen.running.killed == []


def test_ranks_that_do_not_end_in_time_are_killed(tmp_path: Path) -> None:
    asked = Asked([signal.SIGTERM])
    seen = Seen(tmp_path, lambda run, seconds: train(run, seconds, until=100), asked, obeys=False)
    assert seen.running.sent == [(signal.SIGTERM, (0, 1, 2))]
    assert seen.running.killed == [(pytest.approx(20, abs=3 * LOOK), (0, 1, 2))]
    assert seen.watched.ending.outcome == "preempted"


@pytest.mark.parametrize("reason", ["failed", "preempted", "hang"])
def test_a_rank_that_the_kernel_holds_does_not_hold_up_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    asked = Asked()

    def script(run: FakeRunning, seconds: float) -> None:
        assert seconds < 120, "it waits for ever"
        if seconds < 5:
            run.beat(step=4)
        elif reason == "preempted" and not asked.signals:
            asked.take(signal.SIGTERM)
        elif reason == "failed":
            run.die(1, 1)

    die = FakeRunning.die
    monkeypatch.setattr(FakeRunning, "die", lambda run, rank, status: None if rank == 2 else die(run, rank, status))
    watched = Seen(tmp_path, script, asked, obeys=False, grace=10).watched
    expected = {"failed": ("failed", "hang", 2), "preempted": ("preempted", None, None), "hang": ("failed", "hang", 0)}
    assert (watched.ending.outcome, watched.ending.kind, watched.ending.rank) == expected[reason]


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    asked = Asked([signal.SIGTERM])

    def script(run: FakeRunning, seconds: float) -> None:
        run.beat(step=1)
        if seconds >= 2 and len(asked.signals) == 1:
            asked.take(signal.SIGTERM)

    seen = Seen(tmp_path, script, asked, obeys=False)
    assert seen.running.killed == [(pytest.approx(2, abs=3 * LOOK), (0, 1, 2))]
    assert len(seen.running.sent) == 1


def test_signals_that_come_together_ask_once() -> None:
    asked = Asked()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        asked.take(number)
    assert asked.signals == [signal.SIGTERM]


def test_a_hang_while_saving_for_a_preemption_is_the_grace_s_to_end(tmp_path: Path) -> None:
    asked = Asked([signal.SIGTERM])
    seen = Seen(tmp_path, lambda *_: None, asked, obeys=False, grace=60.0)
    assert seen.stacks == []
    assert seen.running.killed[0][0] == pytest.approx(60, abs=3 * LOOK)


def test_ranks_that_were_told_to_stop_by_somebody_else_have_their_grace(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        train(run, seconds)
        if seconds >= 3:
            run.die(1, 143)
        if seconds >= 8:
            run.die(0, 143)
            run.die(2, 143)

    seen = Seen(tmp_path, script)
    assert seen.running.killed == []


def test_it_grows_once_training_has_caught_up(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:
        run.beat(step=int(seconds) + 1)

    seen = Seen(tmp_path, script, target=8, grows_at=1003.0)
    assert seen.watched.ending.outcome == "resized"
    assert seen.running.sent == [(signal.SIGTERM, (0, 1, 2))]
    assert 7 <= seen.running.told_at < 8
    assert seen.recovered == [pytest.approx(1007, abs=2 * LOOK)]


def slow_rank(run: FakeRunning, seconds: float) -> None:
    step = int(seconds / 0.5) + 1
    for rank in range(3):
        phase: Phase = "final" if run.sent else "train"
        run.beat(rank, phase=phase, step=step, step_seconds=0.4 if rank == 2 else 0.2)
    if seconds > 120:
        for rank in range(3):
            run.die(rank, 0)


def test_a_slow_rank_is_told_of(tmp_path: Path) -> None:
    seen = Seen(tmp_path, slow_rank, can_drain=True)
    slow = [told for told in seen.told if told.event == "slow"]
    assert [(told.rank, told.slot) for told in slow] == [(2, 5)]
    assert seen.watched.ending.outcome == "finished"


def test_a_slow_rank_is_drained(tmp_path: Path) -> None:
    seen = Seen(tmp_path, slow_rank, can_drain=True, drain=True)
    ending = seen.watched.ending
    assert (ending.outcome, ending.kind, ending.rank, ending.phase) == ("failed", "straggler", 2, "train")
    assert seen.running.sent == [(signal.SIGTERM, (0, 1, 2))]


def slow_saver(run: FakeRunning, seconds: float) -> None:
    """A save every 5 s, which stops rank 0 for 4 s and the others for 1 s."""
    saves, part = divmod(seconds, 5.0)
    for rank in range(3):
        stopped = 4.0 if rank == 0 else 1.0
        saving = part < stopped
        run.beat(rank, phase="save" if saving else "train", step=int(saves), blocked=stopped * (saves + (not saving)))
    if seconds > 120:
        for rank in range(3):
            run.die(rank, 0)


def test_a_rank_that_saves_take_long_is_told_of_and_kept(tmp_path: Path) -> None:
    seen = Seen(tmp_path, slow_saver, can_drain=True, drain=True)
    assert {told.rank for told in seen.told if told.event == "slow"} == {0}
    assert seen.watched.ending.outcome == "finished"
    assert seen.running.sent == []


def test_a_slow_rank_is_kept_if_the_job_cannot_do_without_its_slot(tmp_path: Path) -> None:
    seen = Seen(tmp_path, slow_rank, can_drain=False, drain=True)
    assert seen.watched.ending.outcome == "finished"
    assert seen.running.sent == []


def test_an_engine_that_cannot_start_ranks(tmp_path: Path) -> None:
    def script(run: FakeRunning, seconds: float) -> None:  # noqa: ARG001
        run.error, run.alive = "RendezvousError: no port", set()

    seen = Seen(tmp_path, script)
    assert seen.watched.ending.outcome == "failed"
    assert seen.watched.ending.rank is None
    assert "no port" in seen.watched.ending.message


@pytest.mark.parametrize(
    ("status", "text"), [(0, "status 0"), (3, "status 3"), (-9, "SIGKILL"), (-70, "signal 70"), (None, "unknown")]
)
def test_statuses(status: int | None, text: str) -> None:
    assert text in shown_status(status)
