"""Processes of jobs, by the toy adapter: cold and from a server, with every way to end, and nobody left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.jobs.processes import (
    Cold,
    Launcher,
    ProcessError,
    answer_of,
    is_stopped,
    read_text,
    rendezvous,
    start,
    until,
)
from ckpt_conformance.jobs.serving import Server, Serving

TOY = [sys.executable, str(Path(__file__).parent / "toy_adapter.py")]
LIMIT = 60.0


@pytest.fixture(params=["cold", "served"])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    made = {"cold": Cold, "served": Serving}[request.param](TOY, {})
    yield made
    made.close()


def ask(tmp_path: Path, **rest: Any) -> dict[str, Any]:
    saves = [{"step": rest.pop("step", 1)}]
    return {"verb": "save", "store": tmp_path.as_uri(), "rank": 0, "processes": 1, "saves": saves, **rest}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in (["Z"], [])


def test_every_rank_answers(launcher: Launcher, tmp_path: Path) -> None:
    requests = [ask(tmp_path, rank=rank, processes=2) for rank in (0, 1)]
    ended = start("save", launcher, requests, tmp_path / "logs", limit=LIMIT).wait()
    assert [process.status for process in ended] == [0, 0]
    assert all(process.answer and process.answer["saves"][0]["outcome"] == "committed" for process in ended)
    assert [process.log for process in ended] == [f"a greeting\nrank {rank} of 2\n" for rank in (0, 1)]


@pytest.mark.parametrize(
    ("rest", "status", "answer"),
    [
        ({"step": 101}, 10, {"error": "call", "message": "too large"}),
        ({"run_id": "cannot"}, 11, {"message": "toys cannot"}),
        ({"run_id": "crash"}, 1, None),
        ({"run_id": "garble"}, 0, None),
        ({"failpoint": {"rank": 0, "action": "kill"}}, -signal.SIGKILL, None),
    ],
)
def test_ways_to_end(launcher: Launcher, tmp_path: Path, rest: dict[str, Any], status: int, answer: Any) -> None:
    (ended,) = start("save", launcher, [ask(tmp_path, **rest)], tmp_path / "logs", limit=LIMIT).wait()
    assert (ended.status, ended.answer, ended.late) == (status, answer, "")
    assert "rank 0 of 1" in ended.log


def test_whom_a_process_leaves_behind_is_killed(launcher: Launcher, tmp_path: Path) -> None:
    (ended,) = start("save", launcher, [ask(tmp_path, run_id="leave")], tmp_path / "logs", limit=LIMIT).wait()
    launcher.close()
    assert ended.status == 0
    assert ended.answer is not None
    left = ended.answer["left"]
    try:
        assert until(lambda: is_gone(left), 10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def test_who_does_not_end_is_named_and_killed(launcher: Launcher, tmp_path: Path) -> None:
    requests = [ask(tmp_path, rank=0, processes=2), ask(tmp_path, rank=1, processes=2, run_id="hang")]
    job = start("save step 1", launcher, requests, tmp_path / "logs", limit=1)
    ended = job.wait()
    pid = job.processes[1].pid
    assert ended[1].late == f"process {pid} (save step 1) did not end within 1 s and was killed"
    assert is_gone(pid)


def test_a_process_that_stops_itself_goes_on_when_it_is_let(launcher: Launcher, tmp_path: Path) -> None:
    point = {"rank": 1, "action": "stop"}
    requests = [ask(tmp_path, rank=rank, processes=2, failpoint=point) for rank in (0, 1)]
    job = start("save", launcher, requests, tmp_path / "logs", limit=LIMIT)
    assert job.wait_stopped(1) == []
    assert is_stopped(job.processes[1].pid)
    job.resume()
    assert [process.status for process in job.wait()] == [0, 0]


def test_a_stopped_process_can_be_killed(launcher: Launcher, tmp_path: Path) -> None:
    job = start("save", launcher, [ask(tmp_path, failpoint={"rank": 0, "action": "stop"})], tmp_path / "logs", limit=LIMIT)
    assert job.wait_stopped(0) == []
    job.kill()
    assert is_gone(job.processes[0].pid)
    assert job.wait()[0].status == -signal.SIGKILL


def test_who_ends_in_place_of_stopping_is_named(launcher: Launcher, tmp_path: Path) -> None:
    job = start("save", launcher, [ask(tmp_path)], tmp_path / "logs", limit=LIMIT)
    (problem,) = job.wait_stopped(0)
    assert "ended before it stopped" in problem


def test_who_runs_on_in_place_of_stopping_is_named_and_killed(launcher: Launcher, tmp_path: Path) -> None:
    job = start("save", launcher, [ask(tmp_path, run_id="hang")], tmp_path / "logs", limit=1)
    (problem,) = job.wait_stopped(0)
    assert problem == f"rank 0 (process {job.processes[0].pid}) did not stop within 1 s"
    assert is_gone(job.processes[0].pid)


@pytest.mark.parametrize("kind", [Cold, Serving])
def test_an_adapter_that_is_not_there(kind: Any, tmp_path: Path) -> None:
    launcher = kind([str(tmp_path / "nobody")], {})
    with pytest.raises(ProcessError, match="cannot be started"):
        start("save", launcher, [ask(tmp_path)], tmp_path / "logs", limit=LIMIT)


def test_the_first_processes_end_when_a_later_one_cannot_be_started(tmp_path: Path) -> None:
    class Once(Cold):
        pids: list[int] = []  # noqa: RUF012 - one test

        def start(self, files: Any) -> Any:
            if self.pids:
                raise ProcessError("no more")
            process = super().start(files)
            self.pids.append(process.pid)
            return process

    with pytest.raises(ProcessError, match="no more"):
        start("save", Once(TOY, {}), [ask(tmp_path, run_id="hang")] * 2, tmp_path / "logs", limit=LIMIT)
    assert is_gone(Once.pids[0])


def test_a_server_that_dies_says_why_and_is_started_once_more(tmp_path: Path) -> None:
    launcher = Serving(TOY, {})
    for attempt in (1, 2):
        with pytest.raises(ProcessError, match=r"exit status 3: dying as ordered"):
            start("save", launcher, [ask(tmp_path, run_id="die")], tmp_path / f"death-{attempt}", limit=LIMIT)
        if attempt == 1:
            assert start("save", launcher, [ask(tmp_path)], tmp_path / "logs", limit=LIMIT).wait()[0].status == 0
    with pytest.raises(ProcessError, match="has ended"):
        start("save", launcher, [ask(tmp_path)], tmp_path / "logs", limit=LIMIT)
    launcher.close()


def test_a_server_that_is_closed_leaves_nobody(tmp_path: Path) -> None:
    server = Server(TOY, {})
    job = start("save", server, [ask(tmp_path, run_id="hang")], tmp_path / "logs", limit=LIMIT)
    server.close()
    assert until(lambda: is_gone(job.processes[0].pid), LIMIT)
    assert not server.alive


def test_processes_of_a_server_that_was_killed_are_killed_too(tmp_path: Path) -> None:
    server = Server(TOY, {})
    job = start("save", server, [ask(tmp_path, run_id="hang")], tmp_path / "logs", limit=LIMIT)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ProcessError, match="exit status -9"):
        job.wait()
    assert until(lambda: is_gone(job.processes[0].pid), LIMIT)
    server.close()


@pytest.mark.parametrize(
    ("output", "answer"),
    [('hello\n{"a": 1}\n', {"a": 1}), ('{"a": 1}\nbye\n', None), ("[1]", None), ("", None), ('{"a": 1', None)],
)
def test_the_answer_is_the_last_line(output: str, answer: Any) -> None:
    assert answer_of(output) == answer


def test_a_rendezvous_is_free() -> None:
    host, _, port = rendezvous().partition(":")
    assert host == "127.0.0.1"
    assert 20_000 <= int(port) < 32_000


def test_a_running_process_has_not_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        assert until(lambda: is_stopped(process.pid), LIMIT)
        process.kill()
