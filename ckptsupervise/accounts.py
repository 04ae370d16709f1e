"""What a supervisor reads of the run, and writes: its attempts, what is committed, who has the run. It waits for a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckptcore import ledger
from ckptcore.attempts import Attempt, AttemptIncident, AttemptNode, AttemptPlan, Attempts, Cause, Supervisor
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, DamageError, NotFound, StoreError, StoreFull, StoreUnavailable
from ckptcore.events import log
from ckptcore.history import History, read_run
from ckptcore.incarnations import newest_claimed
from ckptcore.names import GenerationId
from ckptcore.operate.recovery import recover
from ckptcore.store import Store
from ckptcore.workers import Workers
from ckptsupervise.timeline import Instant, Timeline
from ckptsupervise.watching import LOOK, Watched

PATIENCE = 900.0
"""Seconds to wait for a store that does not answer, refuses, or has no room."""
SOON = 5.0
"""Seconds after which it is told that the store does not answer."""
HURRY = 10.0
"""Seconds that the store has for an answer when the job is told to stop."""
NOTE = 30.0
"""Seconds at the end of an attempt for what is recorded on the side."""
PAUSE = 15.0
"""Seconds between two tries to record something on the side, at most."""

T = TypeVar("T")


@dataclass
class Accounts:
    """The run's store, as supervisor `own` uses it on `node`.

    `waiting` is called, with the reason, when the store fails, and again when that changes. It is waited for whatever it is,
    since it may be mended, unless `hurried` says otherwise, or the store refuses the very first call: then its URL may be wrong.
    """

    store: Store
    own: Supervisor
    node: str
    waiting: Callable[[str], None] = lambda _: None
    hurried: Callable[[], bool] = lambda: False
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.store, clock=self.clock)
        self._calls, self._aside = Workers(1, "accounts"), Workers(1, "notes")
        self._noted: list[Future[Any]] = []
        self._closing = threading.Event()
        self._elsewhere = self._told = ""
        self._answered = False

    def load(self) -> list[Attempt]:
        """All attempts so far."""
        return self._patiently(self._attempts.load)

    def look(self) -> tuple[list[Attempt], int]:
        """All attempts so far, and the number of the one that is to be planned next."""
        return self._patiently(self._attempts.look)

    def plan(self, slots: Sequence[int], cause: Cause, committed: GenerationId | None) -> AttemptPlan:
        """Plan the next attempt; the plan that is there may be another supervisor's, who was quicker."""
        facts: dict[str, Any] = {"slots": slots, "nodes": [self.node] * len(slots), "cause": cause, "committed": committed}
        return self.plan_for(self._patiently(self._attempts.next), **facts)

    def plan_for(self, number: int, **facts: Any) -> AttemptPlan:
        """Plan that attempt, with what `Attempts.plan` takes; as `plan`."""
        return self._patiently(lambda: self._attempts.plan(number, supervisor=self.own, **facts))

    def announce(self, number: int, **facts: Any) -> AttemptNode:
        """Tell the others that this node is there for an attempt, with what `Attempts.announce` takes."""
        return self._patiently(lambda: self._attempts.announce(number, supervisor=self.own, node=self.node, **facts))

    def announced(self, number: int) -> list[AttemptNode]:
        """Which nodes have told so."""
        return self._patiently(lambda: self._attempts.announced(number))

    def recovered(self, attempt: int, timeline: Timeline, instant: Instant) -> None:
        """Record that training has caught up, on the side: whoever watches ranks must not wait for a store."""
        first, recovered, step = timeline.first_step, timeline.recovered, timeline.last_step
        if first is None or recovered is None or step is None:
            return
        self._note(
            "recorded that training had caught up",
            self._caught_up,
            attempt,
            launched=instant.date(timeline.launched),
            restoring=_date(instant, timeline.restoring),
            restored=_date(instant, timeline.restored),
            first_step=instant.date(first),
            recovered=instant.date(recovered),
            restored_step=timeline.restored_step or 0,
            recovered_step=max(timeline.target, timeline.restored_step or 0),
        )

    def _caught_up(self, attempt: int, **facts: Any) -> None:
        """Put `resumed.json`, as often as it takes: without it all that the attempt trains counts as made again."""
        pause = 0.5
        while True:
            try:
                self._attempts.resumed(attempt, **facts)
            except StoreError:
                if self._closing.wait(pause):
                    raise
                pause = min(2 * pause, PAUSE)
            else:
                return

    def opened(self, run: str, incarnation: int, tell: Callable[[str], None]) -> None:
        """Ranks have claimed that `incarnation` of that `run`: look on the side whether it is this one, and tell if it is not."""
        self._note("known whether ranks save to this run", self._compare, run, incarnation, tell)

    @property
    def elsewhere(self) -> str:
        """That ranks save to another run than this one; empty if not."""
        return self._elsewhere

    def end(self, plan: AttemptPlan, watched: Watched, instant: Instant, committed: GenerationId | None) -> None:
        """Record how an attempt ended."""
        self._settle_notes()
        timeline, ending = watched.timeline, watched.ending
        slot = None if ending.rank is None else plan.slots[ending.rank]
        incident = AttemptIncident(
            kind=ending.kind or "",
            rank=ending.rank,
            slot=slot,
            node=ending.node if ending.rank is None else plan.nodes[ending.rank],
            status=ending.status,
            phase=ending.phase,
            step=ending.step,
            message=ending.message,
        )
        self._patiently(
            lambda: self._attempts.end(
                plan.attempt,
                outcome=ending.outcome,
                incident=incident if ending.kind is not None else None,
                launched=instant.date(timeline.launched),
                **_dates(timeline, instant),
                last_sign=instant.date(timeline.last_sign(ending.rank)),
                detected=instant.date(watched.detected),
                stopped=instant.date(watched.stopped),
                restored_step=timeline.restored_step,
                last_step=timeline.last_step,
                blocked=timeline.blocked,
                trained=timeline.trained,
                stack=watched.stack,
                committed=committed,
            )
        )

    def lost(self, plan: AttemptPlan, timeline: Timeline | None, instant: Instant, committed: GenerationId | None) -> None:
        """Record that an attempt's supervisor has died. `timeline`: what its ranks had told, if that is known."""
        now = instant.date(instant.monotonic)
        told: dict[str, Any] = {}
        if timeline is not None and timeline.beats:
            told = {
                **_dates(timeline, instant),
                "last_sign": instant.date(timeline.last_sign()),
                "restored_step": timeline.restored_step,
                "last_step": timeline.last_step,
                "blocked": timeline.blocked,
                "trained": timeline.trained,
            }
        put = self._attempts.end
        self._patiently(lambda: put(plan.attempt, outcome="lost", detected=now, stopped=now, committed=committed, **told))

    def settle(self) -> None:
        """Commit what a dead job has left complete; what is not is for the next start."""
        try:
            self._patiently(lambda: recover(self.store, apply=True, clock=self.clock))
        except NotFound:  # no job has opened the run yet
            return

    def committed(self) -> GenerationId | None:
        """The run's resume point; None if there is none, or the records do not tell: the next start will say why."""

        def head() -> ledger.Decided | None:
            return History.load(self.store).head()

        try:
            found = self._patiently(head)
        except NotFound:
            return None
        except DamageError as error:
            log.warning("it is not known what the next start will resume from: %s", error)
            return None
        return found.generation if found else None

    def superseded(self, attempt: int, incarnation: int | None) -> str | None:
        """Who has taken the run from this supervisor's `attempt`, whose job has claimed `incarnation`; None: nobody."""
        newer = [each.plan for each in self.load() if each.number > attempt and each.plan.supervisor.nonce != self.own.nonce]
        if newer:
            return taken_by(newer[-1])
        claimed = self._patiently(lambda: newest_claimed(self.store))
        self._settle_notes()
        if incarnation is not None and claimed > incarnation and not self._elsewhere:
            return f"another job has the run: it has claimed incarnation {claimed}, and this one had {incarnation}"
        return None

    def close(self) -> None:
        """Wait for what is being recorded on the side."""
        self._closing.set()
        self._settle_notes()
        for workers in (self._calls, self._aside):
            workers.close(wait=False)  # a store that does not answer must not hold up the end

    def _note(self, what: str, work: Callable[..., object], *arguments: Any, **facts: Any) -> None:
        def noted() -> None:
            try:
                work(*arguments, **facts)
            except CheckpointError as error:
                log.warning("it is not %s: %s", what, error)

        self._noted.append(self._aside.submit(noted))

    def _compare(self, run: str, incarnation: int, tell: Callable[[str], None]) -> None:
        try:
            is_here = read_run(self.store).run_id == run and newest_claimed(self.store) >= incarnation  # a copy has no claims
        except NotFound:
            is_here = False
        self._elsewhere = (
            "" if is_here else f"ranks save to another run than --run {self.store.url}: their Checkpointer has another URL"
        )
        if self._elsewhere:
            tell(f"{self._elsewhere}; what they commit does not count here")

    def _settle_notes(self) -> None:
        """Wait for what is done on the side."""
        noted, self._noted = self._noted, []
        if wait(noted, HURRY if self.hurried() else NOTE).not_done:
            log.warning("the store does not answer: it may not be recorded that training had caught up")

    def _patiently(self, work: Callable[[], T]) -> T:
        for left in self.clock.polls(PATIENCE, first=0.5, most=15.0):
            try:
                found = self._answer(work, left)
            except StoreError as error:
                may_pass = self._answered or isinstance(error, StoreUnavailable | StoreFull)
                if left <= 0 or self.hurried() or not may_pass:
                    raise
                self._say(f"waiting for the store: {error}")
            else:
                self._answered, self._told = True, ""
                return found
        raise StoreUnavailable(f"{self.store.url} does not answer")

    def _answer(self, work: Callable[[], T], patience: float) -> T:
        """What `work` returns, in a thread of its own: a store may be slow to answer, or to say that it does not, or silent."""
        answer, began = self._calls.submit(work), time.monotonic()
        while not wait([answer], LOOK).done:
            waited = time.monotonic() - began
            if waited > HURRY and (waited > patience or self.hurried()):
                raise StoreUnavailable(f"{self.store.url}: no answer within {waited:.0f} s")
            if waited > SOON and not self._told:
                self._say("the store does not answer yet")
        return answer.result()

    def _say(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            self.waiting(reason)


def taken_by(plan: AttemptPlan) -> str:
    """That another supervisor has the run."""
    other = plan.supervisor
    return f"another supervisor has the run: process {other.pid} on {other.host}, attempt {plan.attempt}"


def _date(instant: Instant, at: float | None) -> Any:
    return None if at is None else instant.date(at)


def _dates(timeline: Timeline, instant: Instant) -> dict[str, Any]:
    names = ("restoring", "restored", "first_step")
    return {name: _date(instant, getattr(timeline, name)) for name in names}
