"""Jobs of an adapter for tests, through its server: what each process answered, how it ended, and its log."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt_conformance import fixture
from ckpt_conformance.jobs.processes import QUIET, Files, Process, is_stopped, until
from ckpt_conformance.jobs.serving import Server
from tests.processes import ROOT, free_port

LIMIT = 100.0  # seconds
DONE, REFUSED, CANNOT = 0, 10, 11


@dataclass(frozen=True)
class Ended:
    """How one process ended. `answer` is empty where it gave none."""

    status: int
    answer: dict[str, Any]
    log: str


class Job:
    """Processes that were given one request."""

    def __init__(self, started: Sequence[tuple[Process, Files]]) -> None:
        self._started = started

    def wait_until_stopped(self, rank: int) -> None:
        """Wait until a process has stopped itself."""
        pid = self._started[rank][0].pid
        assert until(lambda: is_stopped(pid), LIMIT), self._logs()

    def let_go(self, rank: int) -> None:
        """Let a stopped process go on."""
        os.kill(self._started[rank][0].pid, signal.SIGCONT)

    def wait(self) -> list[Ended]:
        """Wait for the end of all of them."""
        assert until(lambda: all(process.poll() is not None for process, _ in self._started), LIMIT), self._logs()
        return [_ended(process, files) for process, files in self._started]

    def _logs(self) -> str:
        return "\n".join(files.log.read_text() for _, files in self._started)


class Adapter:
    """One adapter, served. `name` is a module below `ckpt_conformance.adapters`, or the path of a script."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, name] if name.endswith(".py") else [sys.executable, "-m", f"ckpt_conformance.adapters.{name}"]
        path = f"{ROOT / 'conformance'}:{ROOT}"
        self._folder = tempfile.TemporaryDirectory(prefix="adapter-")
        self._numbers = itertools.count()
        self._server = Server(command, {**QUIET, "PYTHONPATH": path})

    def start(self, verb: str, processes: int = 1, nodes: Sequence[Path] = (), **fields: Any) -> Job:
        """Give a request to all processes of a job; `nodes`: the node of each."""
        request = {
            "contract": 1,
            "verb": verb,
            "processes": processes,
            "rendezvous": f"127.0.0.1:{free_port()}",
            "mesh": {"axes": ["x"], "shape": [processes]},
            "storage": {},
            "deadline": 30,
            **fields,
        }
        local = [{"local": str(node)} for node in nodes] or [{}] * processes
        return Job([self._start({**request, "rank": rank, **local[rank]}) for rank in range(processes)])

    def run(self, verb: str, processes: int = 1, **fields: Any) -> list[Ended]:
        """Run a job to its end."""
        return self.start(verb, processes, **fields).wait()

    def done(self, verb: str, processes: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """The answers of a job, every process of which has to be done."""
        ended = self.run(verb, processes, **fields)
        assert [process.status for process in ended] == [DONE] * processes, "\n".join(process.log for process in ended)
        return [process.answer for process in ended]

    def close(self) -> None:
        """End the server, and whatever it has started."""
        self._server.close()
        self._folder.cleanup()

    def _start(self, request: Mapping[str, Any]) -> tuple[Process, Files]:
        path = Path(self._folder.name, f"{next(self._numbers)}")
        files = Files(path.with_suffix(".request"), path.with_suffix(".output"), path.with_suffix(".log"))
        files.request.write_text(json.dumps(request))
        return self._server.start(files), files


def _ended(process: Process, files: Files) -> Ended:
    lines = files.output.read_text().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    status = process.poll()
    assert status is not None
    return Ended(status, answer, files.log.read_text())


def array(name: str, dtype: str, shape: Sequence[int], sharding: Sequence[Any] | None = None, **more: Any) -> dict[str, Any]:
    """An array leaf; its path is its name, in keys."""
    return {**leaf(name), "dtype": dtype, "shape": list(shape), "sharding": sharding, **more}


def value(name: str, sort: str) -> dict[str, Any]:
    """A value leaf."""
    return {**leaf(name), "value": sort}


def leaf(name: str) -> dict[str, Any]:
    """What every leaf has."""
    component, *path = name.split(".")
    return {"component": component, "path": [["key", element] for element in path], "name": name}


def state(*leaves: Mapping[str, Any], ranked: Sequence[str] = ()) -> dict[str, Any]:
    """A state of these leaves; `ranked` names the components of scope `rank`."""
    names = dict.fromkeys(leaf["component"] for leaf in leaves)
    return {"components": {name: {"scope": "rank" if name in ranked else "global"} for name in names}, "leaves": list(leaves)}


def exact() -> dict[str, Any]:
    """A state that a run resumes from exactly, on a mesh with the axis `x`."""
    return state(
        array("params.w", "float32", [4, 6], ["x", None]),
        array("params.b", "float64", [3]),
        array("optimizer.mu.w", "float32", [4, 6], ["x", None]),
        value("schedule.updates", "int"),
        array("rng.key", "uint32", [2]),
        value("data.position", "int"),
        ranked=["rng"],
    )


def check_restored(told: Mapping[str, Any], step: int, answers: Sequence[Mapping[str, Any]]) -> None:
    """Compare what the ranks restored with the fixture, bit for bit; every global array has to be covered."""
    leaves = {leaf["name"]: leaf for leaf in told["leaves"]}
    scopes = {name: facts["scope"] for name, facts in told["components"].items()}
    covered: dict[str, set[tuple[int, ...]]] = {}
    for rank, answer in enumerate(answers):
        for name, found in answer["leaves"].items():
            facts = leaves[name]
            content = facts.get("alias") or name
            stored = f"rank_state.{rank}.{content}" if scopes[facts["component"]] == "rank" else content
            if "value" in facts:
                assert found["value"] == fixture.encode(fixture.value(facts["value"], stored, step)), name
                continue
            shape = (facts.get("shapes") or {}).get(str(rank), facts["shape"])
            for box in found["boxes"]:
                assert box["digest"] == fixture.box_digest(stored, facts["dtype"], shape, step, box["start"], box["stop"]), name
                covered.setdefault(name, set()).update(_places(box))
    for name, places in covered.items():
        if scopes[leaves[name]["component"]] == "global":
            assert places == set(itertools.product(*map(range, leaves[name]["shape"]))), f"{name} is not covered"


def _places(box: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(*bounds) for bounds in zip(box["start"], box["stop"], strict=True)))


def files_of(run: Path, generation: str) -> list[str]:
    """The files of a generation, without what is hidden."""
    folder = run / "generations" / generation
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("[!.]*") if path.is_file())


@functools.cache
def served(name: str) -> Adapter:
    """The adapter `name`, by one server for all tests of this process."""
    adapter = Adapter(name)
    atexit.register(adapter.close)
    return adapter
