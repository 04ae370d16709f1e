"""What a component can be: trees, objects with state, one for each rank, rank 0's alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptcore.errors import CallError, GuaranteeError, StructureMismatch, UnsupportedLeaf
from jaxckpt import PerRank, RankZero, Sampler, host_rng_state, open_run
from tests.jaxckpt.plain import describe, restored_without_jax
from tests.jaxckpt.runs import assert_same, checkpointer, resume, save
from tests.spec.checker import check_run

PLAIN_STATE: dict[Any, Any] = {
    "epoch": 3,
    "rate": 0.1,
    "big": 2**100,
    "tuple": (1, ("a", None)),
    "nested": {"list": [True, {}, []], 7: "int key"},
    "blob": b"\x00\x01",
    "long": bytes(range(256)) * 300,
    "array": np.arange(5, dtype=np.int16),
    "deep": [{"rng": np.array([1, 2], np.uint64)}, "beside"],
    "scalar": np.float64(0.25),
}


class Stateful:
    """An object with a pair of methods, named at its making."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class TorchLike:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize("kind", [Stateful, TorchLike])
@pytest.mark.parametrize("wrap", [lambda value: value, PerRank, RankZero], ids=["plain", "per-rank", "rank-zero"])
def test_objects_with_state(kind: Any, wrap: Any, tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": jnp.ones(2)}, "loader": wrap(kind(PLAIN_STATE))})
    fresh = kind(None)
    restored = resume(tmp_path / "run", {"params": {"x": jnp.zeros(2)}, "loader": wrap(fresh)}).components["loader"]
    assert (restored is fresh) if wrap(1) == 1 else (type(restored) is type(wrap(1)) and restored.value is fresh)
    assert describe(fresh.state) == describe({**PLAIN_STATE, "scalar": np.array(0.25)})
    assert check_run(tmp_path / "run") == []


def test_objects_with_state_without_jax(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": np.ones(2)}, "loader": Stateful(PLAIN_STATE), "own": PerRank(Stateful([1, (2,)]))})
    expected = {"params": {"x": np.ones(2)}, "loader": {**PLAIN_STATE, "scalar": np.array(0.25)}, "own": [1, (2,)]}
    assert restored_without_jax(tmp_path / "run") == describe(expected)


@pytest.mark.parametrize("state", [None, 5, "text", [], {}, (1, 2), np.arange(3), {"a": {"b": []}}])
def test_states_of_any_plain_form(state: Any, tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "loader": Stateful(state)})
    fresh = Stateful("other")
    resume(tmp_path / "run", {"params": {"x": 0}, "loader": fresh})
    assert describe(fresh.state) == describe(state)


def test_an_object_with_state_inside_a_tree(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "loops": {"train": Stateful({"at": 5}), "eval": [Stateful([1])], "n": 2}})
    train, evaluation = Stateful(None), Stateful(None)
    restored = resume(tmp_path / "run", {"params": {"x": 0}, "loops": {"train": train, "eval": [evaluation], "n": 0}}).components
    assert (train.state, evaluation.state, restored["loops"]["n"]) == ({"at": 5}, [1], 2)


def test_a_refused_restore_leaves_objects_alone(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "loader": Stateful({"at": 5})})
    loader = Stateful("untouched")
    with pytest.raises(StructureMismatch):
        resume(tmp_path / "run", {"params": {"y": 0}, "loader": loader})
    assert loader.state == "untouched"


def test_a_state_that_is_not_plain_is_refused_by_name(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver:
        with pytest.raises(UnsupportedLeaf, match=r"loader.*object"):
            saver.save(1, {"params": {"x": 1}, "loader": Stateful({"a": object()})})
        with pytest.raises(UnsupportedLeaf, match=r"loader.*set"):
            saver.save(1, {"params": {"x": 1}, "loader": Stateful({"a": {1, 2}})})


def test_wrappers_around_trees(tmp_path: Path) -> None:
    state = {"w": jnp.arange(3), "n": np.ones(2), "none": None, "count": 1}
    components = {"params": state, "own": PerRank(state), "zero": RankZero(state)}
    manifest = save(tmp_path / "run", components)
    assert {name: entry.scope for name, entry in manifest.components.items()} == {
        "params": "global",
        "own": "rank",
        "zero": "global",
    }
    restored = resume(tmp_path / "run", components).components
    assert isinstance(restored["own"], PerRank)
    assert isinstance(restored["zero"], RankZero)
    assert_same(restored["own"].value, state)
    assert_same(restored["zero"].value, state)


def test_a_wrapper_inside_a_wrapper_is_refused(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver, pytest.raises(CallError, match="cannot be PerRank of RankZero"):
        saver.save(1, {"params": PerRank(RankZero({"x": 1}))})


def test_the_host_s_random_state(tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 -- the global generator is what is tested
    try:
        random.gauss(0, 1)  # leaves a second number behind
        np.random.standard_normal()  # noqa: NPY002
        save(tmp_path / "run", {"params": {"x": 1}, "rng": host_rng_state()})
        expected = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)]  # noqa: NPY002
        resume(tmp_path / "run", {"params": {"x": 0}, "rng": host_rng_state()})
        assert [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)] == expected  # noqa: NPY002
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def test_a_sampler_goes_on_in_another_world(tmp_path: Path) -> None:
    reference = Sampler(100, 10, seed=3)
    expected = [reference.next() for _ in range(30)]
    before = batches([Sampler(100, 10, seed=3) for _ in range(2)], 3)
    sampler = Sampler(100, 10, seed=3)
    sampler.seek(30)
    save(tmp_path / "run", {"params": {"x": 1}, "data": sampler})
    world = [Sampler(100, 10, seed=3) for _ in range(3)]
    for own in world:
        resume(tmp_path / "run", {"params": {"x": 0}, "data": own})
    np.testing.assert_array_equal([*before, *batches(world, 27)], expected)


def batches(world: list[Sampler], count: int) -> list[np.ndarray]:
    """The global batches that the ranks of a world take together."""
    return [np.concatenate([own.next(rank, len(world)) for rank, own in enumerate(world)]) for _ in range(count)]


def test_a_sampler_of_another_data_set_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "data": Sampler(100, 10, seed=3)})
    with pytest.raises(CallError, match="size is 99, saved was 100"):
        resume(tmp_path / "run", {"params": {"x": 0}, "data": Sampler(99, 10, seed=3)})


def test_unchanged_components_are_not_written_again(tmp_path: Path) -> None:
    frozen, state = {"base": jnp.arange(1000.0)}, {"w": jnp.ones(3)}
    with checkpointer(tmp_path / "run") as saver:
        first = saver.save(1, {"params": state, "frozen": frozen}).result(30)
        second = saver.save(2, {"params": state}, unchanged=["frozen"]).result(30)
        third = saver.save(3, {"params": state}, unchanged=["frozen"]).result(30)
        with pytest.raises(CallError, match="both given and declared unchanged"):
            saver.save(4, {"params": state, "frozen": frozen}, unchanged=["frozen"])
        with pytest.raises(CallError, match="the checkpoint before lacks it"):
            saver.save(4, {"params": state}, unchanged=["other"])
    assert [m.components["frozen"].source for m in (first, second, third)] == [None, first.generation, first.generation]
    restored = resume(tmp_path / "run", {"params": state, "frozen": frozen})
    assert restored.step == 3
    assert_same(dict(restored.components), {"params": state, "frozen": frozen})
    assert check_run(tmp_path / "run") == []


def test_a_component_left_out_of_a_resume_is_a_weaker_promise(tmp_path: Path) -> None:
    save(
        tmp_path / "run",
        {"params": {"x": 1}, "rng": jax.random.key(0), "data": Sampler(10, 2)},
        derived={"optimizer": "step", "schedule": "step"},
    )
    with pytest.raises(
        GuaranteeError, match=r"promises 'exact', this restore can keep 'coverage'(.|\n)*'rng' \(rng\) is left out"
    ):
        resume(tmp_path / "run", {"params": {"x": 0}, "data": Sampler(10, 2)})
    restored = open_run(tmp_path / "run").restore(like={"params": {"x": 0}})
    assert restored == {"params": {"x": 1}}
