"""The fork server of the adapters: processes as if newly started, and none that outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_conformance.jobs.processes import read_text, until
from tests.processes import ROOT

LIMIT = 60.0  # seconds
SCRIPT = """
import os, signal, sys
from ckpt_conformance.adapters.serving import serve
if serve(["json"]):
    order = open(0, closefd=False).read()
    if order == "sleep":
        signal.pause()
    print(order, os.environ.get("WORD"), flush=True)
    print("a warning", file=sys.stderr, flush=True)
    if order == "die":
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(int(order))
print("the server ends", file=sys.stderr)
"""


class Served:
    """A server that runs the script above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'conformance'}:{ROOT}"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def order(self, number: int, text: str, **more: Any) -> None:
        files = {name: str(self.folder / f"{number}.{name}") for name in ("request", "output", "log")}
        Path(files["request"]).write_text(text)
        assert self.server.stdin is not None
        print(json.dumps({"id": number, **files, **more}), file=self.server.stdin, flush=True)

    def report(self) -> dict[str, int]:
        assert self.server.stdout is not None
        return json.loads(self.server.stdout.readline())

    def text(self, number: int, name: str) -> str:
        return (self.folder / f"{number}.{name}").read_text()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    with made.server:
        yield made
        made.server.kill()


def is_there(pid: int) -> bool:
    """Whether it runs. It may end between any two looks."""
    return read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])


@pytest.mark.parametrize(("text", "status"), [("0", 0), ("10", 10), ("die", -signal.SIGTERM)])
def test_a_process_has_its_own_files_and_status(served: Served, text: str, status: int) -> None:
    served.order(7, text, env={"WORD": "seven"})
    born = served.report()
    assert born == {"id": 7, "pid": born["pid"]}
    assert served.report() == {"id": 7, "status": status}
    assert (served.text(7, "output"), served.text(7, "log")) == (f"{text} seven\n", "a warning\n")


def test_processes_run_side_by_side(served: Served) -> None:
    for number in range(3):
        served.order(number, "sleep" if number == 0 else "0")
    reports = [served.report() for _ in range(5)]
    assert {report["id"] for report in reports if "status" in report} == {1, 2}


def test_the_server_ends_at_the_end_of_its_input(served: Served) -> None:
    served.order(1, "0")
    assert {*served.report(), *served.report()} == {"id", "pid", "status"}
    assert served.server.stdin is not None
    served.server.stdin.close()
    assert served.server.wait(LIMIT) == 0
    assert served.server.stderr is not None
    assert served.server.stderr.read() == "the server ends\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
@pytest.mark.parametrize("by", ["its end", "a signal"])
def test_no_process_outlives_the_server(served: Served, by: str) -> None:
    served.order(1, "sleep")
    pid = served.report()["pid"]
    assert is_there(pid)
    if by == "a signal":
        served.server.kill()
    elif served.server.stdin is not None:
        served.server.stdin.close()
    served.server.wait(LIMIT)
    assert until(lambda: not is_there(pid), LIMIT)
