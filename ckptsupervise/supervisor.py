"""The loop: attempt after attempt, until the job has finished, is told to stop, or makes no progress.

Before each attempt nothing of the one before is left: its processes have ended, a last save that lacked nothing but its decision
is committed, and its end is recorded. So a supervisor may be killed at any moment: the next one finds what was recorded, ends
what was left, and goes on. Of two supervisors of one run only one can plan an attempt; the other one stops, as does one whose
job has been superseded.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ckptcore.attempts import Attempt, AttemptPlan, Supervisor
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, StoreError
from ckptcore.names import GenerationId
from ckptcore.store import Storage, Store
from ckptsupervise.accounts import Accounts, taken_by
from ckptsupervise.ended import told_end
from ckptsupervise.engine import Engine
from ckptsupervise.explanation import explain
from ckptsupervise.guard import Guard
from ckptsupervise.home import Home
from ckptsupervise.orders import Order
from ckptsupervise.policy import Launch, Past, Policy, Stop
from ckptsupervise.telling import Event, Listener, Told, begins, counted
from ckptsupervise.timeline import Instant, Timeline
from ckptsupervise.watching import LOOK, Asked, Limits, Watch, Watched

Reason = Literal["finished", "preempted", "superseded", "no-progress"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """How supervision ended. `details`: for `no-progress`, what the run says about it. `signal`: that asked for the end."""

    reason: Reason
    message: str
    details: tuple[str, ...] = ()
    signal: int | None = None


@dataclass
class Supervise:
    """Supervises the job `command` of the run in `store` on this node.

    `top`: where node-local state lies; None: where `Home` says.
    """

    store: Store
    storage: Storage
    command: Sequence[str]
    policy: Policy
    limits: Limits
    engine: Engine
    listener: Listener = lambda _: None
    asked: Asked = field(default_factory=Asked)
    clock: Clock = field(default_factory=Clock)
    top: Path | None = None

    def run(self) -> Result:
        """Supervise the job to its end. Raises a `StoreError` if the store fails for too long."""
        own = Supervisor(nonce=self.clock.nonce(), host=socket.gethostname(), pid=os.getpid())
        home = Home.make(self.store.url, own.nonce, top=self.top)
        try:
            with Guard(home.path):
                return _Supervision(self, own, home).run()
        finally:
            home.close()


class _Supervision:
    """One run of the loop."""

    def __init__(self, job: Supervise, own: Supervisor, home: Home) -> None:
        self._job, self._own, self._home, self._clock = job, own, home, job.clock
        self._accounts = Accounts(
            job.store,
            own,
            own.host,
            waiting=lambda reason: self._tell("waiting", reason),
            hurried=lambda: bool(job.asked.signals),
            clock=job.clock,
        )
        self._history: list[Past] = []
        self._target = 0

    def run(self) -> Result:
        """Attempts, until the policy says stop, or somebody else has the run."""
        try:
            result = self._attempts()
        except CheckpointError as error:
            if not (isinstance(error, StoreError) and self._job.asked.signals):
                self._tell("given-up", f"supervision ends: {error}")
                raise
            result = self._preempted()
        finally:
            self._accounts.close()
        event: Event = "given-up" if result.reason == "no-progress" else result.reason
        self._tell(event, result.message, details=[*result.details, *filter(None, [self._accounts.elsewhere])])
        return result

    def _attempts(self) -> Result:
        self._take_over()
        committed = self._settled()
        while True:
            decision = self._job.policy.decide(self._history, self._clock.monotonic(), self._clock.varied(1.0) - 0.5)
            if isinstance(decision, Stop):
                return self._stopped(decision)
            if not self._wait(decision):
                return self._preempted()
            plan = self._accounts.plan(decision.slots, decision.cause, committed)
            if plan.supervisor.nonce != self._own.nonce:
                return Result(reason="superseded", message=taken_by(plan))
            watched, taken = self._attempt(plan)
            if taken is not None:
                return self._superseded(plan, watched, committed, taken)
            before, committed = committed, self._settled()
            self._ended(plan, watched, before, committed)
            if self._job.asked.signals and watched.ending.outcome != "finished":
                return self._preempted()

    def _take_over(self) -> None:
        """Account for what a dead supervisor has left."""
        instant = self._now()
        beats = {}
        for lost in self._home.lost:
            beats.update(lost.beats)
            if lost.found:
                self._tell("left-over", f"ended {counted(lost.found, 'process')} of a supervisor that has died")
        attempts = self._accounts.load()
        open_ones = [each for each in attempts if each.is_open and each.plan.supervisor.nonce not in self._home.living]
        for each in open_ones:
            timeline = Timeline(launched=instant.monotonic, size=each.plan.processes).seen(beats.get(each.number, []))
            self._accounts.lost(each.plan, timeline, instant, None)
            self._target = max(self._target, timeline.last_step or 0)
            self._tell("lost", f"attempt {each.number} has lost its supervisor", attempt=each.number)
        self._target = max([self._target, *(each.end.last_step or 0 for each in attempts if each.end is not None)])
        if open_ones and open_ones[-1] is attempts[-1]:
            slots = tuple(attempts[-1].plan.slots)
            self._history.append(Past(slots=slots, outcome="lost", ended=instant.monotonic, progressed=False))

    def _attempt(self, plan: AttemptPlan) -> tuple[Watched, str | None]:
        """One attempt, to its end; and who has the run now, if that is no longer us."""
        job = self._job
        order = Order(
            command=job.command,
            attempt=plan.attempt,
            slots=plan.slots,
            places=job.policy.nproc,
            folder=self._home.attempt(plan.attempt),
        )
        message = f"attempt {plan.attempt}: {counted(plan.processes, 'rank')}, {begins(plan.committed)}"
        self._tell("launched", message, attempt=plan.attempt, slots=list(plan.slots))
        watched = Watch(
            job.engine.start(order),
            order,
            job.limits,
            job.asked,
            target=self._target,
            grows_at=job.policy.grows_at(self._history, plan.slots),
            can_drain=job.policy.can_drop(plan.slots),
            listener=job.listener,
            on_opened=lambda run, claimed: self._accounts.opened(run, claimed, lambda text: self._tell("warning", text)),
            on_recovered=lambda timeline: self._accounts.recovered(plan.attempt, timeline, self._now()),
            clock=self._clock,
        ).run()
        return watched, self._taken(plan, watched)

    def _taken(self, plan: AttemptPlan, watched: Watched) -> str | None:
        if watched.ending.outcome == "finished":
            return None
        claimed = [beat.incarnation for beat in watched.timeline.beats.values() if beat.incarnation is not None]
        taken = self._accounts.superseded(plan.attempt, max(claimed, default=None))
        return taken or (watched.ending.message if watched.ending.outcome == "superseded" else None)

    def _superseded(self, plan: AttemptPlan, watched: Watched, before: GenerationId | None, taken: str) -> Result:
        """What is left to settle is for whoever has the run now."""
        ended = replace(watched, ending=replace(watched.ending, outcome="superseded"))
        self._ended(plan, ended, before, self._accounts.committed())
        return Result(reason="superseded", message=taken)

    def _settled(self) -> GenerationId | None:
        """Settle what is undecided; what is the resume point then."""
        self._accounts.settle()
        return self._accounts.committed()

    def _ended(self, plan: AttemptPlan, watched: Watched, before: GenerationId | None, after: GenerationId | None) -> None:
        ending = watched.ending
        self._accounts.end(plan, watched, self._now(), after)
        self._target = max(self._target, watched.timeline.last_step or 0)
        blamed = None if ending.rank is None else plan.slots[ending.rank]
        self._history.append(
            Past(
                slots=tuple(plan.slots),
                outcome=ending.outcome,
                ended=self._clock.monotonic(),
                progressed=after is not None and (before is None or after.step > before.step),
                blamed=blamed,
                drained=ending.kind == "straggler",
            )
        )
        self._job.listener(told_end(plan, watched, after, self._clock.utc()))

    def _wait(self, decision: Launch) -> bool:
        """Wait as long as the policy says; False if the job is told to stop meanwhile."""
        if decision.delay > 0:
            self._tell("waiting", f"the next attempt begins in {decision.delay:.1f} s", seconds=decision.delay)
        until = self._clock.monotonic() + decision.delay
        while not self._job.asked.signals:
            left = until - self._clock.monotonic()
            if left <= 0:
                return True
            self._clock.sleep(min(left, LOOK))
        return False

    def _stopped(self, stop: Stop) -> Result:
        if stop.reason == "finished":
            return Result(reason="finished", message=f"{stop.message}, after {counted(len(self._history), 'attempt')}")
        if stop.reason != "no-progress":
            return Result(reason=stop.reason, message=stop.message)
        return Result(reason="no-progress", message=stop.message, details=tuple(self._explanation()))

    def _explanation(self) -> list[str]:
        job = self._job
        try:
            return explain(job.store, job.storage, [each for each in self._accounts.load() if self._is_own(each)])
        except CheckpointError as error:
            return [f"no explanation: {error}"]

    def _is_own(self, attempt: Attempt) -> bool:
        return attempt.plan.supervisor.nonce == self._own.nonce

    def _preempted(self) -> Result:
        number = self._job.asked.signals[0] if self._job.asked.signals else signal.SIGTERM
        return Result(reason="preempted", message=f"told to stop by {signal.Signals(number).name}", signal=number)

    def _now(self) -> Instant:
        return Instant.of(self._clock)

    def _tell(self, event: Event, message: str, **facts: Any) -> None:
        self._job.listener(Told(at=self._clock.utc(), event=event, message=message, **facts))
