"""The loop on each node of a job of several: attempt after attempt, which the nodes agree on through the run's store.

One node leads an attempt: it watches all ranks, and records its end. Any node may be lost, the one that leads included: those
that are left agree on the next attempt, which another one leads then.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ckptcore.attempts import Attempt, AttemptNode, AttemptPlan, Attempts, Supervisor
from ckptcore.clock import Clock
from ckptcore.errors import CheckpointError, StoreError
from ckptcore.names import GenerationId
from ckptcore.store import Storage, Store
from ckptsupervise.accounts import Accounts
from ckptsupervise.attempt_parts import Parts
from ckptsupervise.ended import told_end
from ckptsupervise.ending import Ending, LostNode
from ckptsupervise.endpoint import Endpoint
from ckptsupervise.engine import Engine, Running, free_port
from ckptsupervise.explanation import explain
from ckptsupervise.following import Following
from ckptsupervise.guard import Guard
from ckptsupervise.home import Home
from ckptsupervise.leading import AskedOnNodes, RunningOnNodes, assemble, await_finished
from ckptsupervise.links import Links
from ckptsupervise.nodes_policy import NodesPolicy
from ckptsupervise.orders import Group, Order
from ckptsupervise.rendezvous import Over, Rendezvous, Waits
from ckptsupervise.room import Room
from ckptsupervise.supervisor import Result
from ckptsupervise.telling import Event, Listener, Told, begins, counted
from ckptsupervise.timeline import Instant, Timeline
from ckptsupervise.watching import LAST, Asked, Limits, Watch, Watched
from ckptsupervise.wire import Finish, Go, joined, split


@dataclass
class SuperviseNodes:
    """Supervises the part of a job that runs on this `node`, which the others reach at `host`.

    As `Supervise`; `policy` has to be the same on all nodes.
    """

    store: Store
    storage: Storage
    command: Sequence[str]
    policy: NodesPolicy
    limits: Limits
    engine: Engine
    node: str
    host: str
    waits: Waits = field(default_factory=Waits)
    listener: Listener = lambda _: None
    asked: Asked = field(default_factory=Asked)
    clock: Clock = field(default_factory=Clock)
    top: Path | None = None

    def run(self) -> Result:
        """Supervise to the end. Raises `CallError` if `host` is no address of this node, `StoreError` if the store fails for too
        long.
        """
        own = Supervisor(nonce=self.clock.nonce(), host=socket.gethostname(), pid=os.getpid())
        endpoint = Endpoint(self.host, silence=self.waits.silence)
        try:
            home = Home.make(self.store.url, own.nonce, top=self.top)
            try:
                with Guard(home.path):
                    return _Part(self, own, home, endpoint).run()
            finally:
                home.close()
        finally:
            endpoint.close()


class _Part:
    """One run of the loop, on one node."""

    def __init__(self, job: SuperviseNodes, own: Supervisor, home: Home, endpoint: Endpoint) -> None:
        self._job, self._own, self._home, self._endpoint, self._clock = job, own, home, endpoint, job.clock
        self._accounts = Accounts(
            job.store,
            own,
            job.node,
            waiting=lambda reason: self._tell("waiting", reason),
            hurried=lambda: bool(job.asked.signals),
            clock=job.clock,
        )
        self._places = job.policy.each.nproc
        self._known: tuple[int, Watched] | None = None
        self._lost = 0
        self._rendezvous = Rendezvous(
            accounts=self._accounts,
            own=own,
            node=job.node,
            address=endpoint.address,
            token=endpoint.token,
            slots=self._places,
            policy=job.policy,
            waits=job.waits,
            asked=job.asked,
            clock=job.clock,
            tell=lambda text: self._tell("waiting", text),
            close_open=self._close_open,
            settle=self._settled,
        )

    def run(self) -> Result:
        """Attempts, until the job is over for this node."""
        for lost in self._home.lost:
            if lost.found:
                self._tell("left-over", f"ended {counted(lost.found, 'process')} of a supervisor that has died")
        try:
            result = self._attempts()
        except CheckpointError as error:
            if not (isinstance(error, StoreError) and self._job.asked.signals):
                self._tell("given-up", f"supervision ends: {error}")
                raise
            result = self._result(Over(reason="preempted", message="told to stop"))
        finally:
            self._accounts.close()
        event: Event = "given-up" if result.reason == "no-progress" else result.reason
        self._tell(event, result.message, details=[*result.details, *filter(None, [self._accounts.elsewhere])])
        return result

    def _attempts(self) -> Result:
        while True:
            plan = self._rendezvous.meet()
            if isinstance(plan, Over):
                return self._result(plan)
            taken = self._take_part(Parts(plan))
            self._rendezvous.done(plan.attempt, lost=self._lost == plan.attempt)
            if taken is not None:
                return Result(reason="superseded", message=taken)

    def _take_part(self, parts: Parts) -> str | None:
        """This node's part of an attempt; who has the run now, if that is no longer this job."""
        if parts.leader.nonce == self._own.nonce:
            return self._lead(parts)
        self._follow(parts)
        return None

    # As the node that leads

    def _lead(self, parts: Parts) -> str | None:
        plan, links = parts.plan, Links(self._job.node, silence=self._job.waits.silence, clock=self._clock)
        asked = AskedOnNodes(self._job.asked, self._job.node, links)
        try:
            lost = assemble(parts, self._endpoint, links, asked, timeout=self._job.waits.assemble, clock=self._clock)
            # Before ranks run, since the store may take long: who has come hears signs of life meanwhile.
            attempts, there = self._accounts.load(), self._accounts.announced(plan.attempt)
            lost = lost or links.lost()
            if lost or asked.signals:
                watched = self._unlaunched(plan, lost)
                links.tell(Finish(timeout=LAST))
                await_finished(links, LAST, clock=self._clock)
            else:
                watched = self._watched(parts, attempts, there, links, asked)
            return self._recorded(plan, watched, asked.nodes())
        finally:
            links.close()

    def _watched(
        self, parts: Parts, attempts: Sequence[Attempt], there: Sequence[AttemptNode], links: Links, asked: AskedOnNodes
    ) -> Watched:
        job, plan = self._job, parts.plan
        history = self._rendezvous.history([each for each in attempts if each.number < plan.attempt], there)  # as was planned by
        grows_at = self._grows_at(plan, history, there)
        running, waiting = self._launched(parts, links), Attempts(job.store)
        with Room(lambda: self._room(waiting, plan, history), pause=job.waits.look) as room:
            return Watch(
                running,
                Order(command=[], attempt=plan.attempt, slots=plan.slots, places=0, folder=self._home.attempt(plan.attempt)),
                job.limits,
                asked,
                target=max((each.end.last_step or 0 for each in attempts if each.end is not None), default=0),
                grows_at=grows_at,
                can_drain=job.policy.can_drop(plan),
                listener=job.listener,
                on_opened=lambda run, claimed: self._accounts.opened(run, claimed, lambda text: self._tell("warning", text)),
                on_recovered=lambda timeline: self._accounts.recovered(plan.attempt, timeline, self._now()),
                clock=self._clock,
                take_stacks=running.stacks,
                read=running.beats,
                unusable=running.unusable,
                room=room.why,
                lost=running.lost,
            ).run()

    def _launched(self, parts: Parts, links: Links) -> RunningOnNodes:
        plan, host = parts.plan, split(self._endpoint.address)[0]
        go = Go(master=joined(host, free_port(host)), coordinator=joined(host, free_port(host)))
        links.tell(go)
        running = RunningOnNodes(self._start(parts, go), links, clock=self._clock)
        message = f"attempt {plan.attempt}: {counted(plan.processes, 'rank')} on {', '.join(each.node for each in plan.members)}"
        self._tell("launched", f"{message}, {begins(plan.committed)}", attempt=plan.attempt, slots=plan.slots)
        return running

    def _unlaunched(self, plan: AttemptPlan, lost: LostNode | None) -> Watched:
        """An attempt for which not all were there, or that was told to stop before."""
        now = self._clock.monotonic()
        ending = Ending(outcome="preempted") if lost is None else _failed(lost)
        return Watched(ending=ending, timeline=Timeline(launched=now, size=plan.processes), detected=now, stopped=now)

    def _recorded(self, plan: AttemptPlan, watched: Watched, leaving: Sequence[str]) -> str | None:
        taken = self._taken(plan, watched)
        if taken is not None:
            watched = replace(watched, ending=replace(watched.ending, outcome="superseded"))
        elif watched.ending.outcome == "preempted" and len(plan.members) - len(leaving) >= self._job.policy.min_nnodes:
            outcome = "resized" if watched.ending.kind is None else "failed"  # the others go on
            watched = replace(watched, ending=replace(watched.ending, outcome=outcome))
        committed = self._accounts.committed() if taken is not None else self._settled()
        self._accounts.end(plan, watched, self._now(), committed)
        self._job.listener(told_end(plan, watched, committed, self._clock.utc()))
        return taken

    def _taken(self, plan: AttemptPlan, watched: Watched) -> str | None:
        """Who has the run now. The others of this job, if they went on without this node, have not taken it."""
        newer = [each for each in self._accounts.load() if each.number > plan.attempt]
        if watched.ending.outcome == "finished" or any(each.plan.members for each in newer):
            return None
        claimed = [beat.incarnation for beat in watched.timeline.beats.values() if beat.incarnation is not None]
        taken = self._accounts.superseded(plan.attempt, max(claimed, default=None))
        return taken or (watched.ending.message if watched.ending.outcome == "superseded" else None)

    def _room(self, records: Attempts, plan: AttemptPlan, history: Sequence[Attempt]) -> str:
        """Why to go on with other nodes; asked in a thread of its own, and so with records of its own."""
        waiting = records.announced(plan.attempt + 1)
        return self._job.policy.room(history, plan, self._rendezvous.reached(waiting), self._now().utc) if waiting else ""

    def _grows_at(self, plan: AttemptPlan, history: Sequence[Attempt], there: Sequence[AttemptNode]) -> float | None:
        instant = self._now()
        at = self._job.policy.grows_at(history, plan, {each.node: each.slots for each in there})
        return None if at is None else at - instant.utc + instant.monotonic

    # As another node

    def _follow(self, parts: Parts) -> None:
        plan, own = parts.plan, parts.ranks(self._job.node)
        ranks = f"rank {own[0]}" if len(own) == 1 else f"ranks {own[0]} to {own[-1]}"
        message = f"attempt {plan.attempt}: {ranks} of {plan.processes}, led by {parts.leader.node}"
        self._tell("launched", message, attempt=plan.attempt, slots=list(parts.slots(self._job.node)))
        following = Following(
            attempt=plan.attempt,
            leader=parts.leader,
            nonce=self._own.nonce,
            start=lambda go: self._start(parts, go),
            folder=self._home.attempt(plan.attempt),
            size=len(own),
            asked=self._job.asked,
            timeout=self._job.waits.assemble,
            silence=self._job.waits.silence,
            clock=self._clock,
        )
        self._known = plan.attempt, following.run()
        self._lost = plan.attempt if following.lost else 0
        if following.left:
            self._tell("warning", f"{counted(len(following.left), 'process')} of attempt {plan.attempt} cannot be ended here")
        if following.lost:
            self._tell("died", f"node {parts.leader.node}, which led the attempt, is lost: {following.lost}")

    # For both

    def _start(self, parts: Parts, go: Go) -> Running:
        plan, job = parts.plan, self._job
        names = [member.node for member in plan.members]
        group = Group(
            first=parts.ranks(job.node).start,
            size=plan.processes,
            index=names.index(job.node),
            nodes=len(names),
            master=go.master,
            coordinator=go.coordinator,
        )
        order = Order(
            command=job.command,
            attempt=plan.attempt,
            slots=parts.slots(job.node),
            places=self._places,
            folder=self._home.attempt(plan.attempt),
            group=group,
        )
        return job.engine.start(order)

    def _close_open(self, attempt: Attempt) -> None:
        """Record the end of an attempt whose leader cannot be reached: as it was here, or else that it is lost."""
        if self._known is not None and self._known[0] == attempt.number:
            self._accounts.end(attempt.plan, self._known[1], self._now(), self._settled())
            return
        self._accounts.lost(attempt.plan, None, self._now(), None)
        self._tell("lost", f"attempt {attempt.number} has lost its supervisor", attempt=attempt.number)

    def _settled(self) -> GenerationId | None:
        self._accounts.settle()
        return self._accounts.committed()

    def _result(self, over: Over) -> Result:
        asked = self._job.asked.signals
        if over.reason == "preempted" and asked:
            return Result(reason="preempted", message=f"told to stop by {signal.Signals(asked[0]).name}", signal=asked[0])
        if over.reason != "no-progress":
            return Result(reason=over.reason, message=over.message)
        try:
            details = explain(self._job.store, self._job.storage, over.history)
        except CheckpointError as error:
            details = [f"no explanation: {error}"]
        return Result(reason="no-progress", message=over.message, details=tuple(details))

    def _now(self) -> Instant:
        return Instant.of(self._clock)

    def _tell(self, event: Event, message: str, **facts: Any) -> None:
        self._job.listener(Told(at=self._clock.utc(), event=event, message=message, **facts))


def _failed(lost: LostNode) -> Ending:
    return Ending(outcome="failed", kind="node", node=lost.node, message=lost.message)
