"""How a job of several nodes goes on, by what the run has recorded of its attempts: where, or not at all. Pure.

The nodes decide by the same records, so it does not matter which of them does. A slot that keeps failing is left out as on one
node; where its node would have too few left, the node is charged instead, as it is when it was lost. A node is left out, and
comes back, by the same rules as a slot. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ckptcore.attempts import Attempt, AttemptEnd, AttemptNode, AttemptPlan, Cause
from ckptcore.errors import CallError
from ckptcore.names import GenerationId
from ckptsupervise.attempt_parts import Parts
from ckptsupervise.policy import Past, Policy, Stop


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Launch on these nodes, with their slots, in the order of ranks, after `delay` seconds."""

    places: Sequence[tuple[AttemptNode, tuple[int, ...]]]
    delay: float
    cause: Cause

    @property
    def slots(self) -> list[int]:
        """The slot of each rank."""
        return [slot for _, slots in self.places for slot in slots]

    @property
    def nodes(self) -> list[str]:
        """The node of each rank."""
        return [node.node for node, slots in self.places for _ in slots]


@dataclass(frozen=True, kw_only=True)
class NodesPolicy:
    """The policy of a job of `nnodes` nodes if all is well, `min_nnodes` at least, and on each as `policy` says.

    Raises `CallError` for what cannot be.
    """

    each: Policy
    nnodes: int
    min_nnodes: int

    def __post_init__(self) -> None:
        if not 1 <= self.min_nnodes <= self.nnodes:
            raise CallError(f"nnodes={self.nnodes}, min_nnodes={self.min_nnodes}: expected 1 ≤ min_nnodes ≤ nnodes")

    def stop(self, history: Sequence[Attempt], now: float) -> Stop | None:
        """Whether the job is over after `history`, its attempts, which have ended; whoever is there."""
        found = self._of_nodes(["any"]).decide(self._pasts(history, ["any"]), now, 0.0)
        return found if isinstance(found, Stop) else None

    def decide(self, history: Sequence[Attempt], present: Sequence[AttemptNode], now: float, chance: float) -> Choice | Stop:
        """What to do with the nodes that are `present`, at least `min_nnodes`. `chance` is as in `Policy.decide`."""
        names = sorted(each.node for each in present)
        pasts = self._pasts(history, names)
        found = self._of_nodes(names).decide(pasts, now, chance)
        if isinstance(found, Stop):
            return found
        before = history[-1].plan.nodes if history else []
        allowed = sorted((names[index] for index in found.slots), key=lambda name: (name not in before, name))
        chosen = {each.node: each for each in present if each.node in allowed[: self.nnodes]}
        places = [(chosen[name], self._slots(history, chosen[name], now + found.delay)) for name in sorted(chosen)]
        ranks = sum(len(slots) for _, slots in places)
        return Choice(places=places, delay=found.delay, cause=_cause(history, ranks))

    def room(self, history: Sequence[Attempt], plan: AttemptPlan, waiting: Sequence[AttemptNode], now: float) -> str:
        """Why the attempt that runs by `plan` is to be planned anew, with nodes that are `waiting`; empty: it need not."""
        members = {member.node: member.nonce for member in plan.members}
        names = sorted({*members, *(each.node for each in waiting)})
        allowed = {names[index] for index in self._of_nodes(names).available(self._pasts(history, names), now)}
        for each in waiting:
            if each.node not in allowed or members.get(each.node) == each.supervisor.nonce:
                continue
            if each.node in members:
                return f"node {each.node} has a new supervisor"
            if len(members) < self.nnodes:
                return f"node {each.node} is there"
        return ""

    def grows_at(self, history: Sequence[Attempt], plan: AttemptPlan, places: Mapping[str, int]) -> float | None:
        """When a slot comes back to one of the nodes, of which `places` tells how many slots they have. None: never."""
        parts = Parts(plan)
        found = [
            self._of_slots(places[name]).grows_at(self._pasts_on(history, name), parts.slots(name))
            for name in set(plan.nodes)
            if name in places
        ]
        return min((at for at in found if at is not None), default=None)

    def can_drop(self, plan: AttemptPlan) -> bool:
        """Whether the job would go on without any one of its slots."""
        parts = Parts(plan)
        spare = all(len(parts.slots(name)) > self.each.min_nproc for name in set(plan.nodes))
        return spare or len(plan.members) > self.min_nnodes

    def _of_nodes(self, names: Sequence[str]) -> Policy:
        """The policy for nodes, which are numbered by name."""
        return replace(self.each, nproc=len(names), min_nproc=min(self.min_nnodes, len(names)))

    def _of_slots(self, places: int) -> Policy:
        return replace(self.each, nproc=places, min_nproc=min(self.each.min_nproc, places))

    def _slots(self, history: Sequence[Attempt], node: AttemptNode, now: float) -> tuple[int, ...]:
        return self._of_slots(node.slots).available(self._pasts_on(history, node.node), now)

    def _pasts(self, history: Sequence[Attempt], names: Sequence[str]) -> list[Past]:
        """The attempts by node."""
        return [
            _past(attempt, attempt.end, _indices(attempt.plan.nodes, names), self._charged(attempt, attempt.end, names))
            for attempt in history
            if attempt.end is not None
        ]

    def _charged(self, attempt: Attempt, end: AttemptEnd, names: Sequence[str]) -> int | None:
        """The node that an attempt's failure is put down to, unless one of its slots can be left out instead."""
        told = end.incident
        if told is None or told.node is None or told.node not in names:
            return None
        spare = told.slot is not None and attempt.plan.nodes.count(told.node) > self.each.min_nproc
        return None if spare else names.index(told.node)

    def _pasts_on(self, history: Sequence[Attempt], name: str) -> list[Past]:
        """The attempts by slot of one node."""
        return [
            _past(attempt, attempt.end, Parts(attempt.plan).slots(name), _slot(attempt.end, name))
            for attempt in history
            if attempt.end is not None and name in attempt.plan.nodes
        ]


def since(attempts: Sequence[Attempt], first: int) -> list[Attempt]:
    """The attempts of a job that has begun with number `first`."""
    return [attempt for attempt in attempts if attempt.number >= first]


def _past(attempt: Attempt, end: AttemptEnd, slots: tuple[int, ...], blamed: int | None) -> Past:
    return Past(
        slots=slots,
        outcome=end.outcome,
        ended=_seconds(end.stopped),
        progressed=_step(end.committed) > _step(attempt.plan.committed),
        blamed=blamed,
        drained=end.incident is not None and end.incident.kind == "straggler",
    )


def _seconds(text: str) -> float:
    """Of a date since 1970; 0 for one that no calendar has, which no reader refuses."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _step(generation: str | None) -> int:
    return -1 if generation is None else GenerationId.parse(generation).step


def _slot(end: AttemptEnd, name: str) -> int | None:
    return end.incident.slot if end.incident is not None and end.incident.node == name else None


def _indices(nodes: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(index for index, name in enumerate(names) if name in nodes)


def _cause(history: Sequence[Attempt], ranks: int) -> Cause:
    if not history:
        return "start"
    last = history[-1]
    if last.end is not None and last.end.outcome == "lost":
        return "resumed-supervisor"
    before = last.plan.processes
    return "shrunk" if ranks < before else "grown" if ranks > before else "restart"
