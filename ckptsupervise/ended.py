"""What is told of an attempt that has ended. Pure."""

from __future__ import annotations

from ckptcore.attempts import AttemptPlan
from ckptcore.events import shorten
from ckptcore.names import GenerationId
from ckptsupervise.telling import Told, counted
from ckptsupervise.watching import Watched


def told_end(plan: AttemptPlan, watched: Watched, committed: GenerationId | None, at: str) -> Told:
    """How an attempt ended. `committed`: the resume point then."""
    ending = watched.ending
    message = shorten(ending.message)
    who = f"{ending.kind}, rank {ending.rank}" if ending.rank is not None else f"node {ending.node}" if ending.node else ""
    why = f": {who}, {message}" if ending.kind and who else ""
    left = f"; {counted(len(watched.left), 'process')} cannot be ended" if watched.left else ""
    resume = "nothing is committed" if committed is None else f"step {committed.step} is committed"
    return Told(
        at=at,
        event="ended",
        message=f"attempt {plan.attempt} {ending.outcome}{why or (f': {message}' if message else '')}; {resume}{left}",
        attempt=plan.attempt,
        rank=ending.rank,
        slot=None if ending.rank is None else plan.slots[ending.rank],
        step=ending.step,
        status=ending.status,
    )
