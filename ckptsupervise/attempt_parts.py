"""Which ranks of an attempt's plan run on which node. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcore.attempts import AttemptPlan, Member


@dataclass(frozen=True)
class Parts:
    """A plan for several nodes, by node."""

    plan: AttemptPlan

    @property
    def leader(self) -> Member:
        """The node of rank 0, which watches all ranks."""
        return self.plan.members[0]

    def member(self, nonce: str) -> Member | None:
        """The member with that supervisor; None if it has no part."""
        return next((member for member in self.plan.members if member.nonce == nonce), None)

    def ranks(self, node: str) -> range:
        """The ranks on a node."""
        first = self.plan.nodes.index(node)
        return range(first, first + self.plan.nodes.count(node))

    def slots(self, node: str) -> tuple[int, ...]:
        """The slots of a node that are in use, in the order of its ranks."""
        return tuple(self.plan.slots[rank] for rank in self.ranks(node))
