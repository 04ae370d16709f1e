"""What a save refuses before anything is copied: declarations that would make a promise untrue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ckptcore.components import PerRank, RankZero
from ckptcore.errors import CallError
from tests.ckptcore.support import DERIVED, Job, file_store, state


def with_loader(step: int, rank: int, size: int) -> Mapping[str, Any]:
    """A state whose cursor and random state lie in a component of another name."""
    rest = {name: part for name, part in state(step, rank, size).items() if name not in ("data", "rng")}
    return rest | {"loader": RankZero({"position": step})}


@pytest.fixture
def job(place: Path) -> Job:
    job = Job(file_store(place / "run"), state_of=with_loader)
    job.open()
    return job


@pytest.mark.parametrize("need", ["data", "rng"])
def test_what_holds_a_cursor_or_random_state_is_not_rank_zero(job: Job, need: str) -> None:
    derived = DERIVED | {"data": "step", "rng": "step", need: "loader"}
    with pytest.raises(CallError, match=rf"component 'loader' cannot be RankZero: it holds {need}.*PerRank"):
        job.shard(job.next_generation(10), 0, derived=derived)
    with pytest.raises(CallError, match=rf"component '{need}' cannot be RankZero: it holds {need}"):
        job.shard(job.next_generation(10), 0, components=state(10) | {need: RankZero({"x": 1})})


def test_what_holds_neither_may_be_rank_zero(job: Job) -> None:
    assert job.save(10, derived=DERIVED | {"data": "step", "rng": "step"}).committed


@pytest.mark.parametrize("need", ["data", "rng"])
def test_a_component_that_was_rank_zero_does_not_become_a_cursor_by_reference(job: Job, need: str) -> None:
    by_step = DERIVED | {"data": "step", "rng": "step"}
    job.save(10, derived=by_step)
    components = {name: part for name, part in with_loader(20, 0, 2).items() if name != "loader"}
    options: dict[str, Any] = {"components": components, "unchanged": ("loader",)}
    with pytest.raises(CallError, match=f"does not declare that it holds {need}; save it again"):
        job.shard(job.next_generation(20), 0, derived=by_step | {need: "loader"}, **options)
    assert job.shard(job.next_generation(20), 0, derived=by_step, **options).guarantee.level == "exact"


def test_a_cursor_declared_before_can_be_referred_to(job: Job) -> None:
    derived = DERIVED | {"data": "loader", "rng": "step"}
    components = {name: part for name, part in with_loader(10, 0, 2).items() if name != "loader"}
    generation = job.next_generation(10)
    for rank in (0, 1):
        own = {**with_loader(10, rank, 2), "loader": PerRank({"position": rank})}
        job.write(generation, rank, components=own, derived=derived)
    job.latest = job.coordinator().commit(generation, 2, timeout=5.0)
    shard = job.shard(job.next_generation(20), 0, components=components, derived=derived, unchanged=("loader",))
    assert shard.guarantee.level == "exact"


def test_the_state_of_other_ranks_is_not_what_is_unchanged(place: Path) -> None:
    two = Job(file_store(place / "run"))
    two.open()
    latest = two.save(10)
    three = Job(two.store, 3)
    three.open()
    components = {name: part for name, part in state(20, 0, 3).items() if name != "rng"}
    options: dict[str, Any] = {"latest": latest, "components": components, "unchanged": ("rng",)}
    with pytest.raises(CallError, match=r"component 'rng' is declared unchanged.*of 2 ranks, not of 3; save it again"):
        three.shard(three.next_generation(20), 0, **options)
    assert two.shard(two.next_generation(20), 0, **options | {"components": components}).guarantee.level == "exact"
