"""Time and chance: what waits must not touch the chance of the training run."""

from __future__ import annotations

import random

import pytest

from ckptcore.clock import Clock


def test_a_wait_draws_nothing_from_pythons_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is part of a run that resumes `exact`."""
    clock = Clock()
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    before = random.getstate()
    assert len([*zip(range(20), clock.polls(3600.0), strict=False)]) == 20
    clock.nonce()
    clock.varied(1.0)
    assert random.getstate() == before


def test_pauses_are_varied() -> None:
    assert len({Clock().varied(1.0) for _ in range(20)}) > 10
    assert all(0.5 <= Clock().varied(1.0) <= 1.5 for _ in range(100))
