"""A run whose job a supervisor has launched five times: killed, hung, not started, on fewer ranks, on all of them again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ckptcore.attempts import AttemptEnd, AttemptIncident, AttemptPlan, AttemptResumed, Attempts, Member, Supervisor
from tests.ckptcore.support import FakeClock, Job, file_store

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
END = NOON + timedelta(seconds=8000)
"""A moment after all of it, while the last attempt trains."""
OWNER = Supervisor(nonce="5f1d7a0c9b3e2468", host="trainer-7", pid=4711)

RUN_ID = "01234567-89ab-cdef-0123-456789abcdef"
PLAN = AttemptPlan(
    run_id=RUN_ID,
    attempt=2,
    created="2026-01-31T12:00:00.5Z",
    supervisor=OWNER,
    processes=2,
    slots=[0, 3],
    nodes=["trainer-7", "trainer-7"],
    cause="shrunk",
    committed="000002-000000000100-1",
)
ENDED = AttemptEnd(
    run_id=RUN_ID,
    attempt=2,
    outcome="failed",
    incident=AttemptIncident(kind="hang", rank=1, slot=3, node="trainer-7", status=-9, phase="save", step=31, message="silent"),
    first_step="2026-01-31T12:00:00.5Z",
    last_sign="2026-01-31T12:00:00.5Z",
    detected="2026-01-31T12:00:00.5Z",
    stopped="2026-01-31T12:00:00.5Z",
    restored_step=20,
    last_step=31,
    blocked=1,
    trained=2,
    stack="at line 1",
    committed="000002-000000000100-1",
)
CAUGHT_UP = AttemptResumed(
    run_id=None,
    attempt=2,
    launched="2026-01-31T12:00:00.5Z",
    restoring=None,
    restored="2026-01-31T12:00:00.5Z",
    first_step="2026-01-31T12:00:00.5Z",
    recovered="2026-01-31T12:00:00.5Z",
    restored_step=20,
    recovered_step=31,
)
"""One of each record."""


class At(FakeClock):
    """A clock that shows `seconds` after noon."""

    seconds = 0.0

    def utc(self) -> str:
        return moment(self.seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(seconds: float) -> datetime:
    """So many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def blamed(kind: str, **told: Any) -> AttemptIncident:
    """An incident of rank 2."""
    return AttemptIncident(kind=kind, rank=2, slot=2, node="trainer-7", **told)


class Supervised:
    """What a supervisor and its jobs put into the store, at moments that the caller names, in seconds after noon."""

    def __init__(self, place: Path) -> None:
        self.clock, self.store = At(), file_store(place)
        self.attempts, self.number = Attempts(self.store, clock=self.clock), 0

    def plan(self, at: float, cause: Any = "restart", slots: tuple[int, ...] = (0, 1, 2, 3), **told: Any) -> None:
        """The next attempt."""
        self.clock.seconds, self.number = at, self.number + 1
        where = {"slots": slots, "nodes": ["trainer-7"] * len(slots)} | told
        self.attempts.plan(self.number, supervisor=OWNER, cause=cause, **where)

    def train(self, at: float, size: int, saves: dict[int, float]) -> None:
        """A job that claims, and saves steps."""
        self.clock.seconds = at
        job = Job(self.store, size, clock=self.clock)
        job.open()
        for step, when in saves.items():
            self.clock.seconds = when
            job.save(step)

    def resumed(self, *marks: float, steps: tuple[int, int] = (0, 0)) -> None:
        """It has caught up: launched, restoring, restored, first step, recovered."""
        names = ("launched", "restoring", "restored", "first_step", "recovered")
        told: Any = dict(zip(names, map(moment, marks), strict=True))
        self.attempts.resumed(self.number, restored_step=steps[0], recovered_step=steps[1], **told)

    def end(self, last_sign: float, detected: float, outcome: Any = "failed", **told: Any) -> None:
        """It has ended."""
        times: Any = {"last_sign": moment(last_sign), "detected": moment(detected), "stopped": moment(detected + 0.5)}
        self.attempts.end(self.number, outcome=outcome, **times, **told)


def of_nodes(place: Path, *nodes: str) -> Supervised:
    """An attempt of a job of several nodes, two ranks on each of these; the supervisor of the last one has planned it."""
    run = Supervised(place)
    nonces = [*(f"{number:016x}" for number in range(1, len(nodes))), OWNER.nonce]
    members = [
        Member(node=node, nonce=nonce, address="10.0.0.1:29400", token="0" * 64)
        for node, nonce in zip(nodes, nonces, strict=True)
    ]
    run.plan(0, "start", (0, 1) * len(nodes), nodes=[node for node in nodes for _ in (0, 1)], members=members)
    return run


def never_begun(place: Path) -> Supervised:
    """Two attempts whose ranks end before they open the run."""
    run = Supervised(place)
    for at, cause in ((0, "start"), (6, "restart")):
        run.plan(at, cause, (0, 1, 2))
        broken = blamed("exit", status=1, phase="init", message="ModuleNotFoundError: No module named 'jax'")
        run.end(at + 3, at + 3.5, incident=broken, launched=moment(at + 1))
    return run


def supervised(place: Path) -> Supervised:
    """All five attempts, with the saves of their jobs."""
    run = Supervised(place)
    run.plan(0, "start")
    run.train(20, 4, {100: 600, 200: 1200, 300: 1800})
    run.resumed(1, 20, 22, 60, 60)
    killed = blamed("signal", status=-9, phase="train", step=350, message="rank 2 was killed by SIGKILL")
    run.end(2100, 2100.5, incident=killed, restored_step=0, last_step=350, blocked=6, trained=2034)
    run.plan(2102)
    run.train(2125, 4, {400: 2760})
    run.resumed(2103, 2125, 2130, 2170, 2470, steps=(300, 350))
    hung = blamed("hang", status=-9, phase="save", step=440, message="no sign of life for 600 s in save")
    stack = 'Thread 12 (idle): "MainThread"\n    wait (threading.py:320)\n    save (train.py:42)\n    <module> (train.py:50)\n'
    run.end(3000, 3600, incident=hung, restored_step=300, last_step=440, blocked=2, trained=828, stack=stack)
    run.plan(3601)
    broken = blamed("exit", status=1, phase="init", message="rank 2 exited with 1: <b>no device</b>")
    run.end(3630, 3640, incident=broken, launched=moment(3602))
    run.plan(3642, "shrunk", (0, 1, 3))
    run.train(3665, 3, {500: 4500, 600: 5100, 650: 5390})
    run.resumed(3643, 3665, 3670, 3710, 4080, steps=(400, 440))
    run.end(5400, 5401, "resized", restored_step=400, last_step=650, blocked=4, trained=1686)
    run.plan(5402, "grown")
    run.train(5425, 4, {700: 6000, 800: 6600, 900: 7200})
    run.resumed(5403, 5425, 5430, 5470, 5470, steps=(650, 650))
    return run
