"""The course of the demo for one framework: the run to which everything happens, beside one to which nothing does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.failures import history, plan
from demo.failures.history import RankLog
from demo.failures.plan import Framework, Mark, Plan
from demo.failures.supervision import Event, Supervision

POLL_SECONDS = 0.1
SECONDS = 400.0
"""Until both runs are complete, whatever happens to them."""
PREEMPTED = 143


@dataclass(frozen=True, kw_only=True)
class Course:
    """What came of both runs. `left`: processes of ranks that have outlived their supervisors."""

    plan: Plan
    reference: Plan
    events: list[Event]
    statuses: list[int]
    reference_statuses: list[int]
    marks: dict[str, Mark]
    logs: dict[int, list[RankLog]]
    reference_logs: dict[int, list[RankLog]]
    left: list[int]


def run(
    folder: Path, frameworks: Sequence[Framework], say: Callable[[str], None], watch: Callable[[Callable[[], str]], None]
) -> dict[Framework, Course]:
    """Supervise both runs of each framework to their end, all at the same time: they wait a lot.

    `say` prints a line; `watch` gets what tells the progress, again and again.
    """
    with ExitStack() as stack:
        pairs = [stack.enter_context(_Pair(folder, each, say)) for each in frameworks]
        began = time.monotonic()
        while not all(pair.over for pair in pairs):
            seconds = time.monotonic() - began
            for pair in pairs:
                pair.look(seconds)
            watch(lambda seconds=seconds: f"{seconds:.0f} s: " + ", ".join(pair.progress() for pair in pairs))
            time.sleep(POLL_SECONDS)
        return dict(zip(frameworks, [pair.course() for pair in pairs], strict=True))


class _Pair:
    """Both runs of one framework."""

    def __init__(self, folder: Path, framework: Framework, say: Callable[[str], None]) -> None:
        self._plans = [
            _plan(folder / framework / name, folder, framework, faults=name == "troubled") for name in ("troubled", "calm")
        ]
        self._supervised, self._reference = (Supervision(plan) for plan in self._plans)
        self._director = _Director(self._supervised, lambda line: say(f"  {framework:6}{line}"))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._supervised)
            stack.enter_context(self._reference)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def over(self) -> bool:
        """Whether both are."""
        return self._director.over and bool(self._reference.statuses)

    def look(self, seconds: float) -> None:
        """Take a look at both, `seconds` after the start."""
        if not self._director.over:
            self._director.look()
        if self._reference.ended() not in (None, 0):
            raise self._reference.failed("the undisturbed run has failed")
        if seconds > SECONDS:
            raise self._supervised.failed(f"the runs are not complete after {SECONDS:g} s")

    def progress(self) -> str:
        """How far the one is to which everything happens, for people."""
        return self._director.progress()

    def course(self) -> Course:
        """What came of both."""
        troubled, calm = self._plans
        return Course(
            plan=troubled,
            reference=calm,
            events=list(self._supervised.events),
            statuses=list(self._supervised.statuses),
            reference_statuses=list(self._reference.statuses),
            marks=plan.marks(troubled.marks),
            logs=history.read(Path(troubled.folder)),
            reference_logs=history.read(Path(calm.folder)),
            left=[*self._supervised.left(), *self._reference.left()],
        )


class _Director:
    """Does what no rank can do to itself: wants the machine back, and starts the supervisor again."""

    def __init__(self, supervised: Supervision, say: Callable[[str], None]) -> None:
        self.over = False
        self._supervised, self._plan, self._say = supervised, supervised.plan, say
        self._told, self._attempt = 0, 0

    def look(self) -> None:
        """Take a look at the run, and do what is due."""
        status = self._supervised.ended()  # before events are shown: then they are complete
        for event in self._supervised.events[self._told :]:
            self._told += 1
            self._see(event)
        if status == PREEMPTED and self._supervised.statuses == [PREEMPTED]:
            self._say("the machine is back: the same command is started again")
            self._supervised.start()
        elif status is not None:
            self.over = True
        elif self._attempt:
            self._preempt()

    def progress(self) -> str:
        """How far the newest attempt is, for people."""
        log = self._log()
        at = "starts" if log.start is None else f"step {max(log.steps, default=log.start)} of {plan.TOTAL}"
        return f"{self._plan.framework} {at}"

    def _see(self, event: Event) -> None:
        self._say(f"{event['at'][11:19]}  {event['message']}")
        if event["event"] == "launched":
            self._attempt = event["attempt"]
        fault = plan.due(plan.marks(self._plan.marks), self._attempt)
        if event["event"] == "slow" and fault is not None and (fault.do, fault.slot) == ("slow", event["slot"]):
            plan.note(self._plan.marks, fault.name, attempt=self._attempt, step=max(self._log().steps, default=0))

    def _preempt(self) -> None:
        fault = plan.due(plan.marks(self._plan.marks), self._attempt)
        if fault is None or fault.do != "SIGTERM":
            return
        log = self._log()
        step = max(log.steps, default=0)
        if log.start is not None and plan.is_moment(fault, step, step - log.start):
            plan.note(self._plan.marks, fault.name, attempt=self._attempt, step=step)
            self._say("the machine is wanted back: SIGTERM to the supervisor")
            self._supervised.send(signal.SIGTERM)

    def _log(self) -> RankLog:
        path = self._plan.log(self._attempt, 0)
        return history.read_rank(path) if path.exists() else RankLog()


def _plan(folder: Path, shared: Path, framework: Framework, *, faults: bool) -> Plan:
    return Plan(
        framework=framework, url=str(folder / "run"), folder=str(folder), cache=str(shared / "compilation-cache"), faults=faults
    )
