"""One attempt on torch.distributed.elastic, with real processes that need neither torch nor JAX."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckptcore import heartbeat
from ckptcore.errors import CallError
from ckptcore.launch import launch
from ckptsupervise import engine, leftovers, outputs, procfs
from ckptsupervise.engine import Elastic, ElasticEngine, Running, ended
from ckptsupervise.orders import Group, Order, environment, visible
from tests.processes import ROOT
from tests.threads import new_threads

# The launcher leaves the files that ranks write to to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO name=.*/stderr-:pytest.PytestUnraisableExceptionWarning"
)
slow = pytest.mark.slow
PATIENT = 60.0
BEATING = """
import os, signal, sys, time
from ckptcore.heartbeat import Pulse
rank = int(os.environ["RANK"])
pulse = Pulse.of(os.environ, rank)
"""
FOREVER = "while True: pulse.stepped(1); time.sleep(0.02)"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def order(folder: Path, program: str, *arguments: str, slots: tuple[int, ...] = (0, 1)) -> Order:
    command = [sys.executable, "-c", BEATING + program, *arguments]
    return Order(command=command, attempt=3, slots=slots, places=max(slots) + 1, folder=folder)


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENT} s for {what}"
        time.sleep(0.01)


def finish(running: Running, folder: Path) -> dict[int, int | None]:
    wait(lambda: running.over, "the engine's end")
    assert running.finish(PATIENT) == []
    assert leftovers.members(folder) == []
    return {each.rank: each.status for each in running.gone()}


def training(running: Running, folder: Path, size: int = 2) -> None:
    wait(lambda: len([beat for beat in heartbeat.read(folder) if beat.phase == "train"]) == size, "all ranks to train")
    wait(lambda: len(running.processes()) == size, "all processes to be found")


@slow
def test_what_ranks_are_given(tmp_path: Path) -> None:
    program = "import json; print(json.dumps([sys.argv[1:], dict(os.environ)]), file=open(sys.argv[-1] + str(rank), 'w'))"
    arguments = ("$HOME $$", "${local_rank}", "--", str(tmp_path / "told-"))
    running = ElasticEngine().start(order(tmp_path, program, *arguments, slots=(1, 3)))
    assert finish(running, tmp_path) == {0: 0, 1: 0}
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(2)]
    assert [each[0] for each in told] == [list(arguments)] * 2
    places = [launch(each[1]) for each in told]
    assert [(place.rank, place.size, place.slot, place.slots) for place in places] == [(0, 2, 1, 4), (1, 2, 3, 4)]
    assert [place.device for place in places] == [0, 1]
    assert {each[1]["CUDA_VISIBLE_DEVICES"] for each in told} == {"1,3"}
    assert {place.source for place in places} == {"supervise"}
    assert places[0].coordinator == places[1].coordinator
    assert {each[1]["CKPT_ATTEMPT"] for each in told} == {"3"}


@slow
def test_the_status_of_each_rank_and_their_order(tmp_path: Path) -> None:
    program = f"""
pulse.stepped(1)
if rank == 1:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    print("the last words", file=sys.stderr); os._exit(7)
{FOREVER}
"""
    running = ElasticEngine().start(order(tmp_path, program, str(tmp_path / "go")))
    training(running, tmp_path)
    assert running.gone() == []
    (tmp_path / "go").touch()
    wait(running.gone, "the first to end")
    first = running.gone()[0]
    assert (first.rank, first.status) == (1, 7)
    assert finish(running, tmp_path) == {1: 7, 0: -signal.SIGTERM}
    assert running.words(1) == "the last words\n"


@slow
def test_survivors_that_ignore_sigterm_can_be_killed_while_the_engine_waits_for_them(tmp_path: Path) -> None:
    program = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOREVER}"
    running = ElasticEngine().start(order(tmp_path, program))
    training(running, tmp_path)
    running.kill([0])
    wait(running.gone, "the first to end")
    assert not running.over
    running.kill()
    assert finish(running, tmp_path) == {0: -signal.SIGKILL, 1: -signal.SIGKILL}


@slow
def test_a_signal_goes_to_the_process_that_beats(tmp_path: Path) -> None:
    """Which is here the child of a shell."""
    program = f"signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\n{FOREVER}"
    command = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, BEATING + program]
    running = ElasticEngine().start(Order(command=command, attempt=1, slots=(0,), places=1, folder=tmp_path))
    training(running, tmp_path, 1)
    beat = heartbeat.read_one(tmp_path, 0)
    assert beat is not None
    assert beat.pid != running.processes()[0]
    running.send(signal.SIGTERM, [0])
    assert finish(running, tmp_path) == {0: 143}


OVERWRITTEN = """
import ctypes
begin, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(begin, 0, end - begin)  # as `setproctitle` does
"""


@slow
def test_a_rank_that_writes_over_its_environment_gets_signals_and_can_be_killed(tmp_path: Path) -> None:
    program = OVERWRITTEN + "signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], 'w').close())\n" + FOREVER
    running = ElasticEngine().start(order(tmp_path, program, str(tmp_path / "heard"), slots=(0,)))
    try:
        training(running, tmp_path, 1)
        (pid,) = running.processes().values()
        assert heartbeat.FOLDER.encode() not in procfs.environment(pid)
        running.send(signal.SIGTERM, [0])
        wait((tmp_path / "heard").exists, "the signal")
        running.kill([0])
        wait(running.gone, "its end")
        assert finish(running, tmp_path) == {0: -signal.SIGKILL}
    finally:
        for pid in running.processes().values():
            if procfs.look(pid) is not None and not running.over:
                procfs.kill(pid)


@slow
def test_what_ranks_leave_behind_is_ended(tmp_path: Path) -> None:
    program = """
import subprocess
print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, file=open(sys.argv[1] + str(rank), "w"))
"""
    running = ElasticEngine().start(order(tmp_path, program, str(tmp_path / "pid-")))
    assert finish(running, tmp_path) == {0: 0, 1: 0}
    seen = [procfs.look(int((tmp_path / f"pid-{rank}").read_text())) for rank in range(2)]
    assert all(each is None or each.state == "Z" for each in seen)


@slow
def test_a_stopped_rank_can_be_killed_alone(tmp_path: Path) -> None:
    running = ElasticEngine().start(
        order(tmp_path, f"pulse.stepped(1)\nif rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\n{FOREVER}")
    )
    training(running, tmp_path)
    running.kill([0])
    wait(running.gone, "its end")
    assert running.gone()[0].rank == 0
    assert finish(running, tmp_path)[0] == -signal.SIGKILL


@slow
def test_attempts_leave_no_threads_and_no_open_files(tmp_path: Path) -> None:
    def attempt(number: int) -> tuple[int, int]:
        folder = tmp_path / str(number)
        folder.mkdir()
        started = new_threads()
        assert finish(ElasticEngine().start(order(folder, "")), folder) == {0: 0, 1: 0}
        assert [thread.name for thread in started() if thread.name.startswith("attempt-")] == []
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    attempt(1)
    before = attempt(2)
    after = [attempt(number) for number in (3, 4)]
    assert all(threads <= before[0] and files <= before[1] for threads, files in after)


def test_an_engine_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("no rendezvous")

    monkeypatch.setattr(engine, "_launch", failing)
    running = Elastic(order(tmp_path, ""))
    assert finish(running, tmp_path) == {}
    assert running.error == "RuntimeError: no rendezvous"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.launcher.api", None)
    with pytest.raises(CallError, match=r"pip install 'jaxckpt\[supervise\]'"):
        ElasticEngine()


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CallError, match="Linux only"):
        ElasticEngine()


@pytest.mark.parametrize(
    ("slots", "outer", "devices"),
    [
        ([0, 1, 2], {}, None),
        ([0, 1], {"CUDA_VISIBLE_DEVICES": "4,5,6"}, None),
        ([0, 2], {}, "0,2"),
        ([2], {}, "2"),
        ([0, 2], {"CUDA_VISIBLE_DEVICES": "4, 5, 6"}, "4,6"),
        ([1, 2], {"CUDA_VISIBLE_DEVICES": "GPU-8f2e,GPU-77aa,GPU-0001"}, "GPU-77aa,GPU-0001"),
        ([0, 2], {"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_devices_of_slots(slots: list[int], outer: dict[str, str], devices: str | None) -> None:
    assert visible(slots, outer).get("CUDA_VISIBLE_DEVICES") == devices


def test_environments_differ_in_their_slots_alone(tmp_path: Path) -> None:
    first, second = environment(order(tmp_path, "", slots=(0, 2)), "127.0.0.1:7", {})
    assert first.pop("CKPT_SLOT") == "0"
    assert second.pop("CKPT_SLOT") == "2"
    assert first == second
    assert first["CKPT_COORDINATOR"] == "127.0.0.1:7"


def test_what_ranks_of_one_of_several_nodes_are_told(tmp_path: Path) -> None:
    group = Group(first=4, size=8, index=1, nodes=3, master="[fd00::7]:5", coordinator="[fd00::7]:6")
    found = environment(replace(order(tmp_path, "", slots=(0, 2)), group=group), group.coordinator, {})
    local = [{**each, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank, each in enumerate(found)]
    places = [launch(each) for each in local]
    assert [(place.rank, place.size, place.local_rank, place.slot) for place in places] == [(4, 8, 0, 0), (5, 8, 1, 2)]
    assert {place.coordinator for place in places} == {"[fd00::7]:6"}
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"], each["GROUP_RANK"]) for each in found} == {("fd00::7", "5", "1")}
    assert {each["TORCHELASTIC_USE_AGENT_STORE"] for each in found} == {"False"}, (
        "rank 0 listens, as no engine knows of the others"
    )


@slow
def test_ranks_are_numbered_through_all_nodes(tmp_path: Path) -> None:
    """In what the engine says of them, too."""
    group = Group(first=4, size=6, index=1, nodes=2, master="127.0.0.1:5", coordinator="127.0.0.1:6")
    go = tmp_path / "go"
    wait_to_be_told = "while not (rank == 5 and os.path.exists(sys.argv[1])): pulse.stepped(1); time.sleep(0.02)"
    program = f"print('last words', file=sys.stderr)\n{wait_to_be_told}\nos._exit(rank)"
    running = ElasticEngine().start(replace(order(tmp_path, program, str(go)), group=group))
    training(running, tmp_path)
    go.touch()
    assert finish(running, tmp_path) == {4: -signal.SIGTERM, 5: 5}
    assert sorted(running.processes()) == [4, 5]
    assert "last words" in running.words(5)
    assert [beat.rank for beat in heartbeat.read(tmp_path)] == [4, 5]


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_the_end_of_a_child_is_seen_and_left_for_others_to_take(script: str, status: int) -> None:
    child = subprocess.Popen(["sh", "-c", script])  # noqa: S607 - found on PATH
    assert ended(child.pid) == status
    assert child.wait() == status
    assert ended(child.pid) is None, "somebody was quicker"


def test_standard_error_is_passed_on_and_its_end_kept(tmp_path: Path) -> None:
    heard: list[bytes] = []
    errors = outputs.Errors(tmp_path, 2, heard.append)
    errors.start()
    with errors.path(1).open("wb") as stream:
        for number in range(5000):
            stream.write(b"line %d\n" % number)
    errors.close()
    whole = b"".join(heard)
    assert whole == b"".join(b"line %d\n" % number for number in range(5000))
    assert len(whole) > outputs.KEPT
    assert errors.words(1).encode() == whole[-outputs.KEPT :]
    assert errors.words(0) == ""


def test_a_reader_that_has_gone_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        errors = outputs.Errors(tmp_path, 1)
        errors.start()
        errors.path(0).write_text("Traceback")
        errors.close()
        monkeypatch.undo()
    assert errors.words(0) == "Traceback"


def test_a_reader_that_reads_no_more_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(outputs, "PATIENCE", 0.05, raising=False)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        errors = outputs.Errors(tmp_path, 1)
        errors.start()

        def rank() -> None:
            errors.path(0).write_bytes(b"x" * 300_000 + b"Traceback")
            errors.close()

        running = threading.Thread(target=rank, daemon=True)
        running.start()
        running.join(10)
        monkeypatch.undo()
        assert not running.is_alive()
    assert errors.words(0).endswith("Traceback")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "absent" / "1"
    running = ElasticEngine().start(order(folder, ""))
    wait(lambda: running.over, "the engine to give up")
    assert running.finish(1.0) == []
    assert running.error == f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}'"
