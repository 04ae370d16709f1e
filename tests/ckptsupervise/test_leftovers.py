"""What belongs to an attempt is found, whatever it has done to get away, and ended; and where a supervisor keeps its state."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ckptcore.errors import CallError
from ckptcore.heartbeat import FOLDER
from ckptsupervise import home, leftovers, procfs
from ckptsupervise.guard import Guard
from ckptsupervise.home import Home
from tests.processes import ROOT, Rank

URL = "file:///runs/1"


def member(folder: Path, script: str = "echo runs; kill -STOP $$") -> Rank:
    """It has done all that it does when this returns: while a program takes another's place, its environment is not there."""
    environment = {"PATH": os.environ["PATH"], FOLDER: str(folder)}
    command = ["sh", "-c", script]
    rank = Rank(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True))
    rank.wait_for("runs")
    return rank


def test_members_and_their_end(tmp_path: Path) -> None:
    """Children with another session, without our mark but with our session, and those that ignore SIGTERM."""
    ranks = [
        member(tmp_path / "7", "setsid sh -c 'echo runs; kill -STOP $$' & wait"),
        member(tmp_path / "7", "env -i sleep 1000 & echo runs; wait"),
        member(tmp_path / "8", "trap '' TERM; sleep 1000 & echo runs; wait"),
    ]
    other = member(tmp_path.with_name("other"))
    try:
        found = leftovers.members(tmp_path)
        assert len(found) == 6
        assert len(leftovers.members(tmp_path / "7")) == 4
        assert other.process.pid not in found
        assert leftovers.end(tmp_path) == []
        assert [rank.wait() for rank in ranks] == [-signal.SIGKILL] * 3
        assert other.process.poll() is None
        states = [seen.state for pid in found if (seen := procfs.look(pid))]
        assert set(states) <= {"Z"}
    finally:
        for rank in [*ranks, other]:
            rank.end()


def test_a_folder_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    rank = member(tmp_path / "12")
    try:
        assert leftovers.members(tmp_path / "1") == []
    finally:
        rank.end()


def test_what_the_kernel_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = member(tmp_path)
    try:
        monkeypatch.setattr(procfs, "kill", lambda _: True)
        assert leftovers.end(tmp_path, timeout=0.2) == [rank.process.pid]
    finally:
        rank.end()


def test_this_process_and_its_session_are_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor may be a rank of another supervisor."""
    monkeypatch.setattr(procfs, "environment", lambda _: {FOLDER.encode(): os.fsencode(tmp_path)})
    assert os.getpid() not in leftovers.members(tmp_path)


def test_a_living_supervisor_s_folder_is_left_alone(tmp_path: Path) -> None:
    first = Home.make(URL, "aa", top=tmp_path)
    rank = member(first.attempt(1))
    try:
        second = Home.make(URL, "bb", top=tmp_path)
        assert (second.living, second.lost) == (("aa",), ())
        assert rank.process.poll() is None
        second.close()
        assert not second.path.exists()
    finally:
        first.close()
    assert rank.wait() == -signal.SIGKILL
    assert not first.path.exists()


def test_a_dead_supervisor_s_processes_are_ended(tmp_path: Path) -> None:
    first = Home.make(URL, "aa", top=tmp_path)
    rank = member(first.attempt(3))
    os.close(first._lock)  # as the kernel does when it dies
    second = Home.make(URL, "bb", top=tmp_path)
    (lost,) = second.lost
    assert (lost.nonce, lost.found, lost.orphans, lost.beats) == ("aa", 1, (), {3: []})
    assert rank.wait() == -signal.SIGKILL
    assert not first.path.exists()
    second.close()


def test_another_run_is_another_folder(tmp_path: Path) -> None:
    first, second = Home.make(URL, "aa", top=tmp_path), Home.make(f"{URL}2", "bb", top=tmp_path)
    assert first.path.parent != second.path.parent
    assert second.living == ()
    first.close()
    second.close()


def test_the_last_supervisor_of_a_run_leaves_nothing(tmp_path: Path) -> None:
    first, second = Home.make(URL, "aa", top=tmp_path), Home.make(URL, "bb", top=tmp_path)
    first.close()
    assert second.path.is_dir()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_supervisors_come_while_others_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a folder of its own for as long as it wants it, also if the one before has just removed that of the run."""
    monkeypatch.setattr(leftovers, "end", lambda _: [])
    monkeypatch.setattr(leftovers, "members", lambda _: [])
    failed: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for number in range(100):
                home = Home.make(URL, f"{name}{number}", top=tmp_path)
                assert home.attempt(1).is_dir()
                assert home.lost == ()
                home.close()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_somebody_else_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"ckpt-supervise-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(CallError, match="belongs to somebody else"):
        Home.make(URL, "aa")


def test_the_place_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Home.make(URL, "aa")
    assert {path.stat().st_mode & 0o777 for path in (made.path, made.path.parent, home._top())} == {0o700}
    made.close()


GUARDED = """
import sys, time
from pathlib import Path
from ckptsupervise.guard import Guard
with Guard(Path(sys.argv[1])):
    print("guarded", flush=True)
    time.sleep(1000 if len(sys.argv) < 3 else 0)
print("over", flush=True)
"""


def guarded(folder: Path, *arguments: str) -> Rank:
    command = [sys.executable, "-c", GUARDED, str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rank = Rank(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True))
    rank.wait_for("guarded")
    return rank


@pytest.mark.parametrize("how", ["killed", "left"])
def test_the_guard_ends_what_is_left(tmp_path: Path, how: str) -> None:
    rank = member(tmp_path / "1")
    watched = guarded(tmp_path, *(["at once"] if how == "left" else []))
    try:
        if how == "killed":
            watched.send(signal.SIGKILL)
        assert rank.wait(timeout=30) == -signal.SIGKILL
        assert watched.wait() == (0 if how == "left" else -signal.SIGKILL)
    finally:
        watched.end()
        rank.end()


def test_the_guard_survives_what_ends_the_supervisor_s_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Guard(tmp_path) as guard:
        assert os.getsid(guard._process.pid) != os.getsid(0)


def test_the_place_is_the_same_in_every_folder_that_a_rank_goes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "tmp")
    home = Home.make("file:///run", "aa" * 8)
    home.close()
    assert home.path.is_relative_to(tmp_path)


def test_one_that_leaves_while_it_is_looked_at_is_neither_dead_nor_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = Home.make(URL, "aa", top=tmp_path)
    locked = fcntl.flock

    def leave_first(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB and leaving.path.exists():
            shutil.rmtree(leaving.path)
            os.close(leaving._lock)
        locked(handle, operation)

    monkeypatch.setattr(fcntl, "flock", leave_first)
    home = Home.make(URL, "bb", top=tmp_path)
    assert not leaving.path.exists()
    assert (home.lost, home.living) == ((), ())
    home.close()
