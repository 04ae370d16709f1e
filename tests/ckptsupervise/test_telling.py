"""What is told reads well for one and for many, for ranks and for nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ckptcore.attempts import AttemptPlan
from ckptsupervise.ended import told_end
from ckptsupervise.ending import Ending
from ckptsupervise.telling import counted
from ckptsupervise.timeline import Timeline
from ckptsupervise.watching import Watched
from tests.ckptcore.supervised import PLAN

AT = "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("count", "noun", "shown"),
    [
        (1, "rank", "1 rank"),
        (0, "rank", "0 ranks"),
        (2, "attempt", "2 attempts"),
        (1, "process", "1 process"),
        (3, "process", "3 processes"),
    ],
)
def test_numbers_of_things(count: int, noun: str, shown: str) -> None:
    assert counted(count, noun) == shown


def ended(plan: AttemptPlan, left: tuple[int, ...] = (), **facts: Any) -> str:
    watched = Watched(ending=Ending(**facts), timeline=Timeline(launched=0.0, size=2), detected=1.0, stopped=1.0, left=left)
    return told_end(plan, watched, None, AT).message


def test_how_an_attempt_has_ended() -> None:
    lost = ended(PLAN, outcome="failed", kind="node", node="two", message="it has not answered for 6.0 s")
    assert lost == "attempt 2 failed: node two, it has not answered for 6.0 s; nothing is committed"
    failed = ended(PLAN, (4711,), outcome="failed", kind="exit", rank=1, status=1, message="no device")
    assert failed == "attempt 2 failed: exit, rank 1, no device; nothing is committed; 1 process cannot be ended"
    assert ended(PLAN, outcome="failed", kind="exit", message="no port") == "attempt 2 failed: no port; nothing is committed"
    assert ended(PLAN, outcome="finished") == "attempt 2 finished; nothing is committed"
