"""Ranks with leaves of their own: pipeline stages, saved and restored on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.channel import Channel
from ckptcore.checkpointer import Checkpointer
from ckptcore.components import RankZero
from ckptcore.errors import CheckpointError, SaveAborted, StructureMismatch
from ckptcore.run import open_run
from tests.ckptcore.support import HostBackend, check_commits, file_store, run_ranks

LAYERS = 4
DERIVED = {"optimizer": "params", "schedule": "step", "rng": "step", "data": "step"}


def layer(index: int) -> dict[str, Any]:
    return {"w": np.full((3, index + 1), index, np.float32), "name": f"layer {index}"}


def stage(rank: int, size: int, **more: Any) -> dict[str, Any]:
    """This rank's share of the layers; the embedding is on the first and the last stage."""
    mine: dict[str, Any] = {f"layer{index}": layer(index) for index in range(LAYERS) if index * size // LAYERS == rank}
    if rank in (0, size - 1):
        mine["embedding"] = np.arange(6.0)
    return {"params": mine | more}


def open_job(url: Path, channel: Channel) -> Checkpointer:
    backend = HostBackend(channel, partial=channel.size > 1)
    return Checkpointer(url, backend=backend, derived=DERIVED, interval=1, coordinator_timeout=20.0)


def save(url: Path, size: int, state: Any = stage) -> list[Any]:
    def work(channel: Channel) -> None:
        with open_job(url, channel) as job:
            job.save(1, state(channel.rank, channel.size)).result()

    return run_ranks(size, work)


def restore(url: Path, size: int, state: Any = stage) -> list[Any]:
    """What each rank has after restoring into zeros."""

    def work(channel: Channel) -> Mapping[str, Any]:
        like = {"params": _zeros(state(channel.rank, channel.size)["params"])}
        with open_job(url, channel) as job:
            return job.restore(like=like, accept_guarantee="coverage").components["params"]

    return run_ranks(size, work)


def _zeros(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _zeros(child) for key, child in node.items()}
    return np.zeros_like(node) if isinstance(node, np.ndarray) else ""


def test_stages_are_one_checkpoint(tmp_path: Path) -> None:
    assert save(tmp_path / "run", 3) == [None] * 3
    store = file_store(tmp_path / "run")
    assert len(check_commits(store)) == 1
    whole = open_run(tmp_path / "run").restore(components="params")
    assert sorted(whole) == ["embedding", "layer0", "layer1", "layer2", "layer3"]
    for index in range(LAYERS):
        np.testing.assert_array_equal(whole[f"layer{index}"]["w"], layer(index)["w"])
        assert whole[f"layer{index}"]["name"] == f"layer {index}"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("saved", [1, 2, 4])
def test_stages_move_between_ranks(tmp_path: Path, saved: int, size: int) -> None:
    save(tmp_path / "run", saved)
    for rank, found in enumerate(restore(tmp_path / "run", size)):
        expected = stage(rank, size)["params"]
        assert not isinstance(found, BaseException), found
        assert sorted(found) == sorted(expected)
        np.testing.assert_equal(found, expected)


def test_a_leaf_that_no_rank_restores_is_told(tmp_path: Path) -> None:
    save(tmp_path / "run", 2)

    def without_last(rank: int, size: int) -> dict[str, Any]:
        state = stage(rank, size)
        state["params"].pop("layer3", None)
        return state

    for error in restore(tmp_path / "run", 2, without_last):
        assert isinstance(error, StructureMismatch)
        assert "params['layer3']['w']: in the checkpoint, not in the target" in str(error)


def test_leaves_come_and_go(tmp_path: Path) -> None:
    """Expert layers, optimizer moments: what a rank has may change from save to save."""

    def work(channel: Channel) -> None:
        with open_job(tmp_path / "run", channel) as job:
            for step in range(1, 5):
                grown = {f"expert{step}": np.full(4, step)} if step % 2 == channel.rank else {}
                job.save(step, stage(channel.rank, channel.size, **grown)).result()

    assert run_ranks(2, work) == [None, None]
    run = open_run(tmp_path / "run")
    for step in range(1, 5):
        found = run.restore(step=step, components="params")
        assert [name for name in found if name.startswith("expert")] == [f"expert{step}"]


def test_copies_of_one_leaf_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    def differing(rank: int, size: int) -> dict[str, Any]:
        return {"params": stage(rank, size)["params"] | {"embedding": np.full(6, float(rank))}}

    for error in save(tmp_path / "run", 2, differing):
        assert isinstance(error, SaveAborted)
        assert "'params.embedding' differs between rank 0 and rank 1" in str(error)


def test_the_lowest_rank_with_a_leaf_counts(tmp_path: Path) -> None:
    def log(rank: int, size: int) -> dict[str, Any]:
        mine = {"lines": rank, "loss": np.array([float(rank)])} if rank else {"first": np.zeros(1)}
        return {**stage(rank, size), "log": RankZero(mine)}

    assert save(tmp_path / "run", 3, log) == [None] * 3
    found = open_run(tmp_path / "run").restore(components="log")
    assert found["lines"] == 1
    np.testing.assert_array_equal(found["loss"], [1.0])


def test_a_rank_that_cannot_save_is_told_to_all_at_once(tmp_path: Path) -> None:
    def broken(rank: int, size: int) -> dict[str, Any]:
        return stage(rank, size, **({"what": object()} if rank == 1 else {}))

    for error in save(tmp_path / "run", 2, broken):
        assert isinstance(error, CheckpointError)
        assert "params['what']" in str(error)
    assert check_commits(file_store(tmp_path / "run")) == []


def test_a_node_is_a_container_on_all_ranks_or_on_none(tmp_path: Path) -> None:
    def ragged(rank: int, size: int) -> dict[str, Any]:
        return stage(rank, size, notes={"a": np.ones(1)} if rank else {})

    for error in save(tmp_path / "run", 2, ragged):
        assert isinstance(error, CheckpointError)
        assert "params.notes: a value or an empty container on rank 0" in str(error)


@pytest.mark.parametrize(("size", "level"), [(1, "exact"), (2, "coverage")])
def test_parameters_of_which_one_copy_counts_are_not_exact(tmp_path: Path, size: int, level: str) -> None:
    def differing(rank: int, _: int) -> dict[str, Any]:
        return {"params": RankZero({"w": np.full(2, float(rank))})}

    assert save(tmp_path / "run", size, differing) == [None] * size
    assert open_run(tmp_path / "run").checkpoint().manifest.guarantee.level == level
