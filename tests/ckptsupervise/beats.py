"""Heartbeats made up for tests."""

from __future__ import annotations

from typing import Any

from ckptcore.heartbeat import Beat, Phase

TRAINING = {"init": 1.0, "restore": 2.0, "restored": 3.0, "first-step": 4.0}


def beat(rank: int, phase: Phase = "train", at: float = 100.0, **other: Any) -> Beat:
    """One heartbeat. What is not said fits a rank that trains: its marks, the first moment of its phase."""
    marks = {"init": 1.0} if phase == "restore" or (phase == "init" and "step" not in other) else TRAINING
    return Beat(rank=rank, pid=1000 + rank, phase=phase, at=at, **{"since": 4.0, "marks": marks, **other})
