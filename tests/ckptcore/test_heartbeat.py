"""Heartbeats: what each call tells, that nothing else does, and that telling never gets in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore import heartbeat
from ckptcore.errors import NotFound
from ckptcore.heartbeat import Beat, Phase, Pulse, beat_file, begin, read, read_one, stack_file, unusable, write
from tests.ckptcore.beats import listen_to, told

ROOT = Path(__file__).parents[2]


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    listen_to(tmp_path, monkeypatch)
    return tmp_path


# One rank, by a clock in hand


def test_the_life_of_a_rank(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 3, now=hand)
    assert told(tmp_path, 3) == Beat(rank=3, pid=os.getpid(), phase="init", at=100.0, since=100.0, marks={"init": 100.0})
    hand.later(5)
    with pulse.during("restore"):
        beat = told(tmp_path, 3)
        assert (beat.phase, beat.at, beat.since, beat.step) == ("restore", 105.0, 105.0, None)
        hand.later(20)
        pulse.restored(40)
    beat = told(tmp_path, 3)
    assert (beat.phase, beat.since, beat.step, beat.restored_step, beat.steps) == ("init", 125.0, 40, 40, 0)
    hand.later(60)
    pulse.stepped(41)
    beat = told(tmp_path, 3)
    assert (beat.phase, beat.since, beat.step, beat.steps, beat.step_seconds) == ("train", 185.0, 41, 1, None)
    assert beat.marks == {"init": 100.0, "restore": 105.0, "restored": 125.0, "first-step": 185.0}
    hand.later(2)
    pulse.stepped(42)
    beat = told(tmp_path, 3)
    assert (beat.at, beat.since, beat.step, beat.steps, beat.step_seconds, beat.blocked) == (187.0, 185.0, 42, 2, 2.0, 0.0)
    pulse.enter("final")
    assert told(tmp_path, 3).phase == "final"


def test_a_save_is_a_phase_and_its_time_is_not_that_of_a_step(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.stepped(1)
    with pulse.during("save"):
        assert (told(tmp_path).phase, told(tmp_path).since) == ("save", 100.0)
        hand.later(7)
        with pulse.during("save"):  # a wait inside of a save
            hand.later(1)
    beat = told(tmp_path)
    assert (beat.phase, beat.since, beat.blocked) == ("train", 108.0, 8.0)
    hand.later(3)
    pulse.stepped(2)
    beat = told(tmp_path)
    assert (beat.step_seconds, beat.blocked) == (3.0, 8.0)


def test_a_save_before_the_first_step_does_not_end_the_start(tmp_path: Path, hand: Hand) -> None:
    """The compilation is still to come, and takes longer than a step may."""
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.restored(0)
    pulse.stepped(0)
    with pulse.during("save"):
        pass
    beat = told(tmp_path)
    assert (beat.phase, beat.steps, "first-step" in beat.marks) == ("init", 0, False)


def test_a_sign_of_life_counts_no_step(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    hand.later(50)
    pulse.stepped()
    beat = told(tmp_path)
    assert (beat.phase, beat.at, beat.since, beat.step, beat.steps) == ("init", 150.0, 100.0, None, 0)


def test_a_step_that_is_told_twice_is_one(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    for step in (1, 1, 2, 2):
        hand.later(1)
        pulse.stepped(step)
    assert (told(tmp_path).steps, told(tmp_path).step_seconds) == (2, 2.0)


def test_a_loop_that_tells_of_some_steps_only(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.restored(100)
    for step in (110, 120):
        hand.later(5)
        pulse.stepped(step)
    assert (told(tmp_path).steps, told(tmp_path).step_seconds) == (20, 0.5)


def test_what_a_rank_says_of_its_own_time_counts_from_then_on(tmp_path: Path, hand: Hand) -> None:
    """Of ranks in step the time between two steps is the same; only they know how long they have waited for each other."""
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.stepped(1)
    for step in (2, 3):
        hand.later(10)
        pulse.stepped(step, 0.25)
        pulse.stepped(step)
        assert told(tmp_path).step_seconds == 0.25
    hand.later(10)
    pulse.stepped(4)
    assert told(tmp_path).step_seconds == 0.25


def test_after_a_restore_steps_count_anew(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.restored(0)
    pulse.stepped(5)
    hand.later(9)
    with pulse.during("restore"):
        pulse.restored(3)
    beat = told(tmp_path)
    assert (beat.phase, beat.step, beat.restored_step, beat.steps, beat.step_seconds) == ("init", 3, 3, 0, None)
    assert beat.marks["restored"] == 100.0, "the first"
    pulse.stepped(4)
    assert (told(tmp_path).phase, told(tmp_path).steps) == ("train", 1)


def test_a_restore_that_fails_leaves_the_rank_where_it_was(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    with pytest.raises(NotFound), pulse.during("restore"):
        raise NotFound("nothing there")
    assert told(tmp_path).phase == "init"


def test_nothing_but_the_end_follows_the_end(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    pulse.enter("final")
    with pulse.during("save"):
        assert told(tmp_path).phase == "final"
    assert told(tmp_path).blocked == 0


def test_whoever_starts_the_program_has_told_of_the_rank_already(tmp_path: Path, hand: Hand) -> None:
    write(tmp_path, Beat(rank=1, pid=7, phase="init", at=90.0, since=90.0, marks={"init": 90.0}))
    Pulse(str(tmp_path), 1, before=told(tmp_path, 1), now=hand)
    beat = told(tmp_path, 1)
    assert (beat.pid, beat.at, beat.since, beat.marks) == (os.getpid(), 100.0, 90.0, {"init": 90.0})


def test_a_second_run_of_one_process_begins_anew_and_goes_on_counting_what_saves_took(tmp_path: Path, hand: Hand) -> None:
    first = Pulse(str(tmp_path), 0, now=hand)
    first.stepped(5)
    with first.during("save"):
        hand.later(2)
    first.enter("final")
    hand.later(1)
    Pulse(str(tmp_path), 0, before=told(tmp_path), now=hand)
    beat = told(tmp_path)
    assert (beat.phase, beat.since, beat.step, beat.steps, beat.blocked) == ("init", 103.0, None, 0, 2.0)
    assert beat.marks == {"init": 100.0, "first-step": 100.0}


class Other:
    """A pulse of this thread, and a call of it from another one."""

    def __init__(self, folder: Path, hand: Hand) -> None:
        self.pulse = Pulse(str(folder), 0, now=hand)

    def __call__(self, what: str, *arguments: Any) -> None:
        thread = threading.Thread(target=self._call, args=(what, *arguments))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    def _call(self, what: str, *arguments: Any) -> None:
        if what == "during":
            with self.pulse.during(*arguments):
                pass
        else:
            getattr(self.pulse, what)(*arguments)


@pytest.mark.parametrize("call", [("stepped", 1), ("enter", "final"), ("during", "save"), ("restored", 4)])
def test_other_threads_tell_nothing(tmp_path: Path, hand: Hand, call: tuple[Any, ...]) -> None:
    """A thread that waits for a save says nothing of the one that trains."""
    other = Other(tmp_path, hand)
    before = told(tmp_path)
    hand.later(1)
    other(*call)
    assert told(tmp_path) == before
    other.pulse.stepped()
    assert (told(tmp_path).phase, told(tmp_path).step, told(tmp_path).at) == ("init", None, 101.0)


def test_a_process_that_is_forked_off_tells_nothing(tmp_path: Path, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    before = told(tmp_path)
    monkeypatch.setattr("os.getpid", lambda: -1)
    pulse.stepped(1)
    with pulse.during("save"):
        pass
    assert told(tmp_path) == before


# What lies on the node


@given(
    st.builds(
        Beat,
        rank=st.integers(0, 99_999),
        pid=st.integers(1, 4_000_000),
        phase=st.sampled_from(list(Phase.__args__)),
        at=st.floats(0, 1e9),
        since=st.floats(0, 1e9),
        step=st.none() | st.integers(0, 10**12 - 1),
        steps=st.integers(0, 10**12),
        step_seconds=st.none() | st.floats(0, 1e6),
        blocked=st.floats(0, 1e6),
        restored_step=st.none() | st.integers(0, 10**12 - 1),
        incarnation=st.none() | st.integers(1, 999_999),
        run=st.none() | st.uuids().map(str),
        marks=st.dictionaries(st.sampled_from(["init", "restore", "restored", "first-step"]), st.floats(0, 1e9)),
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, beat: Beat) -> None:
    folder = tmp_path_factory.mktemp("beats")
    write(folder, beat)
    assert read(folder) == [beat]


def test_all_ranks_in_order_and_nothing_else(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        begin(tmp_path, rank)
    beat_file(tmp_path, 3).write_bytes(beat_file(tmp_path, 2).read_bytes().replace(b'"rank":2', b'"rank":3'))
    text = b'{"rank":4,"pid":1,"phase":"dreams","at":1.0,"since":1.0}'
    beat_file(tmp_path, 4).write_bytes(b"%s\n%08x\n" % (text, crc32(text)))
    beat_file(tmp_path, 5).write_bytes(beat_file(tmp_path, 2).read_bytes())
    beat_file(tmp_path, 6).write_bytes(b"")
    beat_file(tmp_path, 8).mkdir()
    (tmp_path / "rank-9.beat.77").write_text("{}")
    (tmp_path / "stack-0.txt").write_text("")
    assert [(beat.rank, beat.phase, beat.pid) for beat in read(tmp_path)] == [(rank, "init", os.getpid()) for rank in (0, 2, 10)]
    assert read(tmp_path / "absent") == []
    assert read(beat_file(tmp_path, 0)) == []
    assert read_one(tmp_path, 7) is None


def test_a_beat_leaves_one_file_that_others_cannot_read(tmp_path: Path, hand: Hand) -> None:
    pulse = Pulse(str(tmp_path), 0, now=hand)
    for step in range(5):
        pulse.stepped(step)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.beat"]
    assert beat_file(tmp_path, 0).stat().st_mode & 0o077 == 0


def test_a_beat_needs_no_room_but_that_of_the_first(tmp_path: Path) -> None:
    begin(tmp_path, 0)
    path, long = beat_file(tmp_path, 0), dict.fromkeys(["init", "restore", "restored", "first-step"], 123456789.123456789)
    before = path.stat()
    write(
        tmp_path, Beat(rank=0, pid=2**22, phase="restore", at=1e9 / 3, since=1e9 / 3, step=10**12 - 1, steps=10**15, marks=long)
    )
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
    assert len(heartbeat._encode(told(tmp_path))) < heartbeat.SIZE / 2


def test_beats_are_whole_while_they_are_written(tmp_path: Path) -> None:
    def rank() -> None:
        for number in range(1, 3001):
            marks = {"restore": 1.0} if number % 2 else {}  # so that lengths differ
            write(tmp_path, Beat(rank=0, pid=1, phase="train", at=float(number), since=0.0, step=10 ** (number % 9), marks=marks))

    begin(tmp_path, 0)
    thread = threading.Thread(target=rank)
    thread.start()
    seen: list[float] = []
    while thread.is_alive():
        beat = told(tmp_path)
        assert beat.pid != 1 or beat.step == 10 ** (beat.at % 9)
        seen += [beat.at] if beat.pid == 1 else []
    thread.join()
    assert seen == sorted(seen)
    assert told(tmp_path).at == 3000


def test_why_a_folder_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unusable(tmp_path) == ""
    before = (tmp_path / "probe").stat()
    assert unusable(tmp_path) == ""
    after = (tmp_path / "probe").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, heartbeat.SIZE), "it needs no more room than a rank does"
    assert "No such file" in unusable(tmp_path / "gone")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _handle, data: len(data) - 1)
        assert unusable(tmp_path) == f"[Errno 28] No space left on device: '{tmp_path}/probe'"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _handle, data: len(data))
        assert "not what was just written" in unusable(tmp_path)
    assert read(tmp_path) == []


def test_what_cannot_be_told_is_logged_once(tmp_path: Path, hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    pulse = Pulse(str(tmp_path / "absent"), 2, now=hand)
    for step in range(5):
        pulse.stepped(step)
    assert len(caplog.records) == 1
    assert "rank 2 cannot tell that it lives" in caplog.text
    (tmp_path / "absent").mkdir()
    pulse.stepped(5)
    assert told(tmp_path / "absent", 2).step == 5


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(heartbeat, "write", None)
    monkeypatch.setattr(heartbeat, "_listen", None)
    for environ in ({}, {heartbeat.FOLDER: ""}, {heartbeat.RANK: "3"}):
        pulse = Pulse.of(environ, 0)
        pulse.stepped(1)
        with pulse.during("save"):
            pulse.stepped(2)
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_knows_the_process_by_its_own_number(folder: Path) -> None:
    """Processes that are no job together all take themselves for rank 0."""
    Pulse.of({heartbeat.FOLDER: str(folder), heartbeat.RANK: "3"}, 0)
    Pulse.of({heartbeat.FOLDER: str(folder)}, 1)
    assert [beat.rank for beat in read(folder)] == [1, 3]


# A process of its own

STACKS = """
import os, signal, sys
from ckptcore.heartbeat import STACK_SIGNAL, Pulse
if "own" in sys.argv:
    signal.signal(STACK_SIGNAL, lambda *_: print("own", flush=True))

def hangs_here():
    Pulse.of(os.environ, 0)
    pulse = Pulse.of(os.environ, 0)
    os.kill(os.getpid(), STACK_SIGNAL)
    pulse.stepped(1)

hangs_here()
print("lives", flush=True)
"""


def stacks(folder: Path, *arguments: str) -> list[str]:
    environ = {**os.environ, heartbeat.FOLDER: str(folder), heartbeat.RANK: "5", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", STACKS, *arguments]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_rank_writes_its_stacks_when_it_is_asked_and_goes_on(tmp_path: Path) -> None:
    assert stacks(tmp_path) == ["lives"]
    assert stack_file(tmp_path, 5).read_text().count("in hangs_here") == 1
    assert told(tmp_path, 5).step == 1


def test_a_program_with_a_use_for_that_signal_keeps_it(tmp_path: Path) -> None:
    assert stacks(tmp_path, "own") == ["own", "lives"]
    assert not stack_file(tmp_path, 5).exists()


def test_the_first_beat_and_the_program_are_of_one_process(tmp_path: Path) -> None:
    """As `begin` is used: it beats, then becomes the program, which takes the signal itself."""
    start = "import os, sys; from ckptcore.heartbeat import begin; begin(sys.argv[1], 5); os.execv(sys.argv[2], sys.argv[2:])"
    environ = {**os.environ, heartbeat.FOLDER: str(tmp_path), heartbeat.RANK: "5", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", STACKS]
    subprocess.run([sys.executable, "-c", start, str(tmp_path), *program], env=environ, cwd=ROOT, check=True, timeout=60)
    beat = told(tmp_path, 5)
    assert beat.marks["init"] < beat.marks["first-step"]
    assert "in hangs_here" in stack_file(tmp_path, 5).read_text()
