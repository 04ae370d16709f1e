"""How the supervisors of several nodes agree on the next attempt: through the run's store, where each key has one winner.

Each announces itself for it. The first by name of those that can be reached plans, once all are there, or enough are and the
others had their time: the plan that is stored is what everybody goes by. An attempt is not planned while the one before is led by
somebody who can be reached, be it from another node. Who is not in a plan waits for the next; if it has been there and reaches
nobody who is, it takes itself for cut off, so that two parts of a job do not take the run from each other in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ckptcore.attempts import Attempt, AttemptNode, AttemptPlan, Member, Supervisor
from ckptcore.clock import Clock
from ckptcore.names import GenerationId
from ckptsupervise.accounts import Accounts, taken_by
from ckptsupervise.attempt_parts import Parts
from ckptsupervise.endpoint import answers
from ckptsupervise.nodes_policy import Choice, NodesPolicy, since
from ckptsupervise.policy import Stop
from ckptsupervise.watching import LOOK, Asking


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long nodes wait for each other, in seconds.

    `join`: for more of them, once enough are there. `enough`: until enough are, or are reached again. `assemble`: for those that
    a plan names to come. `silence`: until one that says nothing is lost. `look`: between two looks into the store, at most.
    `alone`: for a second node, where the job had finished before the first came. Long enough for the nodes of a job that is to
    make more steps to be started, one after the other.
    """

    join: float = 30.0
    enough: float = 1800.0
    assemble: float = 30.0
    silence: float = 6.0
    look: float = 3.0
    alone: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Over:
    """No attempt follows for this supervisor."""

    reason: Literal["finished", "preempted", "superseded", "no-progress"]
    message: str
    history: Sequence[Attempt] = ()


@dataclass
class Rendezvous:
    """This node's part in agreeing. `address`, `token`: what others need to reach it. `slots`: how many it has.

    `close_open`: records the end of an attempt that nobody leads. `settle`: commits what can be, and returns the resume point.
    """

    accounts: Accounts
    own: Supervisor
    node: str
    address: str
    token: str
    slots: int
    policy: NodesPolicy
    waits: Waits
    asked: Asking
    clock: Clock
    tell: Callable[[str], None]
    close_open: Callable[[Attempt], None]
    settle: Callable[[], GenerationId | None]
    _done: tuple[int, float] = (0, 0.0)
    _started: str = ""
    _since: int = 0
    _arrived: int = 0
    _reached: int = 0
    _opened: tuple[int, float] = (0, 0.0)
    _silent: tuple[int, float] | None = None
    _announced: int = 0
    _told: str = ""
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(32, "answers"))

    def meet(self) -> AttemptPlan | Over:
        """Wait for the next attempt that this node has a part in, and plan it if that is up to this one."""
        pause, self._told = 0.1, ""
        while not self.asked.signals:
            found = self._turn()
            if found is not None:
                return found
            self._sleep(self.clock.varied(pause))
            pause = min(pause * 1.25, self.waits.look)
        return Over(reason="preempted", message="told to stop")

    def done(self, attempt: int) -> None:
        """This supervisor has had its part in that attempt."""
        self._done = (attempt, self.clock.monotonic())

    def close(self) -> None:
        """No more of it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def history(self, attempts: Sequence[Attempt], present: Sequence[AttemptNode] = ()) -> list[Attempt]:
        """The attempts of this job, as far back as anybody who is present has seen."""
        return since(attempts, min([self._since, *(each.since for each in present)]))

    def reached(self, nodes: Sequence[AttemptNode]) -> list[AttemptNode]:
        """Those whose supervisors can be reached, this one among them; nobody once it is closed."""
        try:
            lives = [self._pool.submit(self._lives, node) for node in nodes]
        except RuntimeError:  # closed, which a thread that looks aside may not know yet
            return []
        wait(lives)
        return [node for node, found in zip(nodes, lives, strict=True) if not found.cancelled() and found.result()]

    def _turn(self) -> AttemptPlan | Over | None:
        attempts, number = self.accounts.look()
        newest = attempts[-1] if attempts else None
        if self._since == 0:
            self._arrive(newest, number)
        if newest is not None and newest.number > max(self._arrived, self._done[0]):
            found = self._replaced(newest) or self._own_part(newest)
            if found is not None:
                return found
        if newest is not None and newest.is_open and self._is_led(newest):
            self._opened = (number, self.clock.monotonic())
            return self._overdue(newest) if newest.number == self._done[0] else self._look_on(newest, number)
        if newest is not None and not newest.is_open:
            stop = self.policy.stop(self.history(attempts), self._utc())
            if stop is not None:
                return _over(stop, self.history(attempts))
        return self._gather(attempts, number)

    def _own_part(self, newest: Attempt) -> AttemptPlan | None:
        return newest.plan if newest.is_open and Parts(newest.plan).member(self.own.nonce) else None

    def _look_on(self, newest: Attempt, number: int) -> Over | None:
        """An attempt runs without this node. It announces itself for the next one: that is seen, and this one ended for it."""
        self._announce(number)
        away = "" if self._silent is None else f", and {Parts(newest.plan).leader.node} cannot be reached from here"
        self._say(f"attempt {newest.number} runs on {', '.join(each.node for each in newest.plan.members)}{away}")
        return self._namesake(self.accounts.announced(number))

    def _overdue(self, newest: Attempt) -> Over | None:
        """An attempt has ended here, and whoever leads it lives, but does not record its end."""
        waited = self.clock.monotonic() - self._done[1]
        if waited < self.waits.enough:
            return None
        leader = Parts(newest.plan).leader.node
        message = f"attempt {newest.number} ended here {waited:.0f} s ago, and node {leader}, which led it, does not say how"
        return Over(reason="no-progress", message=message)

    def _gather(self, attempts: Sequence[Attempt], number: int) -> AttemptPlan | Over | None:
        """With the attempt before over, or lost: wait for the others, and plan if this node is the first that is there."""
        self._announce(number)
        waited, others = self._waited(number), self.accounts.announced(number)
        over = self._namesake(others)
        if over is not None:
            return over
        first = next((each for each in others if each.node < self.node and self._lives(each)), None)
        if first is None:
            present = self.reached(others)
            if self._is_ready(attempts, present, waited):
                return self._plan(attempts, number, present)
            finished = self._finished(attempts)
            if finished and len(present) == 1 and waited >= self.waits.alone:
                return Over(reason="finished", message=f"{finished}, and no other node has come for {waited:.0f} s")
            self._say_missing(others, present, number, finished)
        elif waited > LOOK:
            self._say(f"node {first.node} is to plan attempt {number}")
        if waited < self.waits.enough:
            return None
        return Over(reason="no-progress", message=f"after {waited:.0f} s: {self._told}", history=self.history(attempts))

    def _finished(self, attempts: Sequence[Attempt]) -> str:
        """That the job had finished before this node came, which is late, or one of several that are to go on; empty if not."""
        newest = attempts[-1] if attempts else None
        if newest is None or newest.end is None or newest.end.outcome != "finished" or newest.number > self._arrived:
            return ""
        return f"attempt {newest.number} finished at {newest.end.stopped[:19]}Z"

    def _waited(self, number: int) -> float:
        """Seconds since nobody leads an attempt any more, and this one is to be planned."""
        now = self.clock.monotonic()
        if self._opened[0] != number:
            self._opened = (number, now)
        return now - self._opened[1]

    def _is_ready(self, attempts: Sequence[Attempt], present: Sequence[AttemptNode], waited: float) -> bool:
        """Whether enough are there, and the others had their time."""
        if len(present) < self.policy.min_nnodes:
            return False
        return waited >= min(self.waits.join, self.waits.enough) or self._is_complete(attempts, present)

    def _plan(self, attempts: Sequence[Attempt], number: int, present: Sequence[AttemptNode]) -> AttemptPlan | Over | None:
        newest = attempts[-1] if attempts else None
        if newest is not None and newest.is_open:
            self.close_open(newest)
            return None  # and look again
        history = self.history(attempts, present)
        committed = self.settle()
        found = self.policy.decide(history, present, self._utc(), self.clock.varied(1.0) - 0.5)
        if isinstance(found, Stop):
            return _over(found, history)
        if found.delay > 0:
            self.tell(f"the next attempt begins in {found.delay:.1f} s")
            self._sleep(found.delay)
            if self.asked.signals:
                return None
        self.accounts.plan_for(
            number,
            slots=found.slots,
            nodes=found.nodes,
            cause=found.cause,
            committed=committed,
            members=_members(found),
        )
        return None  # the next look shows whose plan is there, and who has a part in it

    def _arrive(self, newest: Attempt | None, number: int) -> None:
        """What there was before this supervisor: an attempt that was open then is the first of its job that it has seen."""
        self._arrived, self._started = number - 1, self.clock.utc()
        self._since = newest.number if newest is not None and newest.is_open else number

    def _replaced(self, newest: Attempt) -> Over | None:
        """Whether another supervisor has the run, or this one's node."""
        if not newest.plan.members:
            return Over(reason="superseded", message=taken_by(newest.plan))
        if any(each.node == self.node and each.nonce != self.own.nonce for each in newest.plan.members):
            return Over(reason="superseded", message=f"another supervisor has node {self.node}, in attempt {newest.number}")
        return None

    def _namesake(self, others: Sequence[AttemptNode]) -> Over | None:
        if any(each.node == self.node and each.supervisor.nonce != self.own.nonce for each in others):
            return Over(reason="superseded", message=f"a newer supervisor calls its node {self.node}, too: give --node names")
        return None

    def _is_led(self, newest: Attempt) -> bool:
        """Whether somebody leads an attempt without an end: who leads it answers, or did a moment ago."""
        if not newest.plan.members:
            return False
        leader = Parts(newest.plan).leader
        if leader.nonce != self.own.nonce and answers(leader.address, leader.token, timeout=self._patience):
            self._silent, self._reached = None, newest.number
            return True
        if newest.number == self._done[0]:
            return False  # it is over here, for that very reason
        now = self.clock.monotonic()
        if self._silent is None or self._silent[0] != newest.number:
            self._silent = (newest.number, now)
        return now - self._silent[1] < (self.waits.enough if self._is_cut_off(newest) else self.waits.silence)

    def _is_cut_off(self, newest: Attempt) -> bool:
        """Whether it is rather this node that cannot be reached: it was there, was left out, and has never reached the leader."""
        return newest.number > max(self._arrived, self._reached)

    def _is_complete(self, attempts: Sequence[Attempt], present: Sequence[AttemptNode]) -> bool:
        """Whether there is nobody to wait for: all nodes are there, or those that an attempt was to go on without have left."""
        if len(present) >= self.policy.nnodes:
            return True
        newest = attempts[-1] if attempts else None
        if newest is None or newest.end is None or newest.end.outcome != "resized":
            return False
        here = {each.supervisor.nonce for each in present}
        away = [each for each in newest.plan.members if each.nonce not in here]
        return not any(answers(each.address, each.token, timeout=self._patience) for each in away)

    def _say_missing(self, others: Sequence[AttemptNode], present: Sequence[AttemptNode], number: int, finished: str) -> None:
        here = {each.node for each in present}
        unreached = [f"{each.node} ({each.address})" for each in others if each.node not in here]
        wanted = f"{len(present)} of {self.policy.nnodes} nodes ({self.policy.min_nnodes} at least)"
        text = f"{wanted} are there for attempt {number}: {', '.join(sorted(here))}"
        if finished:
            text = f"{finished}, and the job goes on if more nodes come; {text}"
        self._say(text + (f"; cannot be reached: {', '.join(unreached)}" if unreached else ""))

    def _announce(self, number: int) -> None:
        if self._announced < number:
            facts = {
                "address": self.address,
                "token": self.token,
                "slots": self.slots,
                "started": self._started,
                "since": self._since,
            }
            self.accounts.announce(number, **facts)
            self._announced = number

    def _lives(self, node: AttemptNode) -> bool:
        own = node.supervisor.nonce == self.own.nonce
        return own or answers(node.address, node.token, timeout=self._patience)

    @property
    def _patience(self) -> float:
        return min(2.0, self.waits.silence)

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.tell(text)

    def _sleep(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while not self.asked.signals and (left := until - self.clock.monotonic()) > 0:
            self.clock.sleep(min(left, LOOK))

    def _utc(self) -> float:
        return datetime.fromisoformat(self.clock.utc()).timestamp()


def _members(choice: Choice) -> list[Member]:
    return [
        Member(node=each.node, nonce=each.supervisor.nonce, address=each.address, token=each.token) for each, _ in choice.places
    ]


def _over(stop: Stop, history: Sequence[Attempt]) -> Over:
    return Over(reason=stop.reason, message=stop.message, history=history)
