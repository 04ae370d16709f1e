"""The steps of one case on one adapter or pair, taken one by one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ckpt_conformance import data
from ckpt_conformance.cases.needs import processes_of
from ckpt_conformance.cases.steps import Act, Expect, Job, Step
from ckpt_conformance.cases.titles import title_of
from ckpt_conformance.jobs import nodes, notes, restored, stored, trained
from ckpt_conformance.jobs.bench import Bench, Column
from ckpt_conformance.jobs.expect import DONE, Ended, cannot, judge
from ckpt_conformance.jobs.processes import RunningJob, rendezvous, start, until
from ckpt_conformance.jobs.request import requests
from ckpt_conformance.jobs.watched import WatchedRun
from ckpt_conformance.place import FilePlace, Place, copy_all, open_place
from ckpt_conformance.results import StepResult

LIMIT = 120.0
"""Seconds that a job may take."""
WAIT = 60.0
"""Seconds until a running job has made the object that a step waits for."""


class NotOffered(Exception):
    """A process said that its implementation cannot do what was asked. The message is its reason."""


@dataclass(kw_only=True)
class Seen:
    """What was seen of a step: the answers, and what is wrong with them."""

    found: Any = None
    problems: list[str] = field(default_factory=list)
    log: str = ""


@dataclass(frozen=True)
class _Left:
    """A job that a step has left running, or stopped."""

    job: Job
    running: RunningJob


class Cell:
    """A case under way. Leaving the context kills every process that is left."""

    def __init__(self, column: Column, bench: Bench, folder: Path) -> None:
        self._column = column
        self._bench = bench
        self.folder = folder
        self._runs: dict[str, WatchedRun] = {}
        self._jobs: dict[str, _Left] = {}
        self._nodes: dict[str, nodes.WatchedNode] = {}
        self._kept: dict[str, trained.Answers] = {}
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for left in self._jobs.values():
            left.running.kill()

    @property
    def places(self) -> dict[str, Place]:
        """The places of the runs so far, by name."""
        return {name: run.place for name, run in self._runs.items()}

    def take(self, step: Step) -> StepResult:
        """Take one step, and look at the store if it has ended. Raises `NotOffered`, `ProcessError`."""
        self._number += 1
        seen = self._job(step) if isinstance(step, Job) else self._act(step)
        surveys = {} if isinstance(step, Job) and step.background else self._look(step, seen)
        return StepResult(
            title=title_of(step),
            expected=_expected(step),
            found=seen.found,
            store=next(iter(surveys.values())) if len(surveys) == 1 else surveys or None,
            problems=seen.problems,
            log=seen.log,
        )

    def resume_from(self, results: Sequence[StepResult], steps: Sequence[Step]) -> None:
        """Go on after steps whose outcome was copied into the folder of this cell: what the store holds now must stay."""
        self._number = len(results)
        for name in {name for step in steps for name in self._touched(step)}:
            self._run(name).accept()

    # Steps with a verb

    def _job(self, job: Job) -> Seen:
        adapter = getattr(self._column, job.adapter)
        asked = requests(
            job,
            processes=processes_of(job, adapter.describe),
            rendezvous=rendezvous(),
            storage=self._bench.options.storage,
            url_of=lambda name: self._run(name).place.url,
            node_of=lambda name: str(self._node(name)),
            states=self._bench.states,
        )
        self._run(job.run).vouch(job.fields.get("vouched", ()))
        folder = self.folder / "steps" / str(self._number)
        running = start(title_of(job), self._bench.launcher(adapter), asked, folder, limit=LIMIT)
        if job.background is None:
            return self._ended(job, job.expect, running)
        self._jobs[job.background] = _Left(job, running)
        for point in job.failpoints:
            if point["action"] == "stop" and (problems := running.wait_stopped(point["rank"])):
                return _seen(running.wait(), problems)
        return Seen()

    def _ended(self, job: Job, expect: Expect | None, running: RunningJob) -> Seen:
        """Wait for the end of a job and judge it."""
        ended = running.wait()
        problems = judge(expect, ended) if expect else []
        if problems and (reason := cannot(ended)) is not None:
            raise NotOffered(reason)
        if expect and not problems:
            problems = self._judge_content(job, expect, [process.answer if process.status == DONE else None for process in ended])
        return _seen(ended, problems)

    def _judge_content(self, job: Job, expect: Expect, answers: Sequence[Mapping[str, Any] | None]) -> list[str]:
        """What takes more than a comparison with the scenario: arrays, and trainings."""
        problems = []
        if expect.step is not None and job.state is not None:
            problems += restored.check(job, self._bench.states[job.state], answers)
        done = [answer for answer in answers if answer is not None]
        if expect.like is not None:
            problems += trained.incomplete(done, job.fields["steps"], job.fields["batch"])
            problems += trained.compare(expect.like, self._kept[expect.like.name], done)
        if job.keep_as is not None:
            self._kept[job.keep_as] = done
        return problems

    # Steps of the suite

    def _act(self, act: Act) -> Seen:
        return {
            "release": self._release, "kill": self._kill, "damage": self._damage, "lose": self._lose, "note": self._note,
            "copy": self._copy, "golden": self._golden, "wait": self._wait, "store": self._store,
        }[act.do](act)  # fmt: skip

    def _release(self, act: Act) -> Seen:
        left = self._jobs.pop(act.fields["job"])
        left.running.resume()
        return self._ended(left.job, act.expect, left.running)

    def _kill(self, act: Act) -> Seen:
        running = self._jobs.pop(act.fields["job"]).running
        running.kill()
        return _seen(running.wait(), [])

    def _damage(self, act: Act) -> Seen:
        if "node" in act.fields:
            self._watched(act.fields["node"]).damage(self._run(act.fields.get("run", "main")).place, act.fields["ops"])
            return Seen()
        self._run(act.fields.get("run", "main")).damage(act.fields["ops"], act.fields.get("damaged", []))
        return Seen()

    def _lose(self, act: Act) -> Seen:
        shutil.rmtree(self._node(act.fields["node"]))
        del self._nodes[act.fields["node"]]
        return Seen()

    def _note(self, act: Act) -> Seen:
        fields = {key: value for key, value in act.fields.items() if key not in ("run", "generation", "kind")}
        place = self._run(act.fields.get("run", "main")).place
        notes.put_note(place, act.fields["generation"], act.fields["kind"], fields)
        return Seen()

    def _copy(self, act: Act) -> Seen:
        self._run(act.fields["from"]).copy_to(self._run(act.fields["to"]))
        return Seen()

    def _golden(self, act: Act) -> Seen:
        source = data.folder("golden") / act.fields["name"]
        copy_all(FilePlace(source), self._run(act.fields.get("run", "main")).place)
        return Seen()

    def _wait(self, act: Act) -> Seen:
        place, key = self._run(act.fields.get("run", "main")).place, act.fields["key"]
        if "node" in act.fields:
            node = self._watched(act.fields["node"])
            is_there = until(lambda: node.has(place, key), WAIT)
        else:
            is_there = until(lambda: place.size(key) is not None, WAIT)
        return Seen() if is_there else _seen(self._given_up(), [f"{key} is not there after {WAIT:.0f} s"])

    def _given_up(self) -> list[Ended]:
        """How the jobs that run ended, which are killed: their logs may say why nothing came."""
        for left in self._jobs.values():
            left.running.kill()
        return [process for left in self._jobs.values() for process in left.running.wait()]

    def _store(self, act: Act) -> Seen:
        run = self._run(act.fields.get("run", "main"))
        if "node" in act.fields:
            found = self._watched(act.fields["node"]).survey(run.place, act.fields.get("generations", {}))
            return Seen(problems=stored.check(act.fields, {"generations": found}))
        survey = run.survey()
        return Seen(problems=stored.check(act.fields, survey))

    # The store

    def _run(self, name: str) -> WatchedRun:
        if name not in self._runs:
            url = self._bench.url(self.folder, name)
            self._runs[name] = WatchedRun(open_place(url, self._bench.options.storage))
        return self._runs[name]

    def _node(self, name: str) -> Path:
        """The directory of a node, which there is from the first time on that it is named."""
        folder = self._watched(name).folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _watched(self, name: str) -> nodes.WatchedNode:
        if name not in self._nodes:
            self._nodes[name] = nodes.WatchedNode(self.folder / "nodes" / name)
        return self._nodes[name]

    def _touched(self, step: Step) -> list[str]:
        """Names of the runs that a step may have changed."""
        if isinstance(step, Job):
            return [step.run, step.fields["target"]] if step.verb == "fork" else [step.run]
        if step.do == "copy":
            return [step.fields["to"]]
        if step.do in ("release", "kill"):
            return list(self._runs)
        return [] if "node" in step.fields else [step.fields.get("run", "main")]

    def _look(self, step: Step, seen: Seen) -> dict[str, Any]:
        """Look at the runs that a step may have changed: what is wrong there is added to `seen`. Their surveys by name."""
        surveys = {}
        for name in self._touched(step):
            problems, surveys[name] = self._run(name).look()
            seen.problems += problems
        seen.problems += nodes.problems(self._nodes, list(self.places.values()))
        return surveys


def _expected(step: Step) -> Any:
    """What the scenario asks for, in its own words."""
    if isinstance(step, Act) and step.do == "store":
        return {key: value for key, value in step.fields.items() if key != "run"}
    if step.expect is None:
        return None
    return {key: value for key, value in asdict(step.expect).items() if value not in (None, (), {})}


def _seen(ended: Sequence[Ended], problems: list[str]) -> Seen:
    found = [{"rank": rank, "exit": process.words, "answer": process.answer} for rank, process in enumerate(ended)]
    return Seen(found=found, problems=problems, log=_logs(ended))


def _logs(ended: Sequence[Ended]) -> str:
    return "".join(
        f"--- rank {rank}, process {process.pid}\n{process.log}\n" for rank, process in enumerate(ended) if process.log.strip()
    )
