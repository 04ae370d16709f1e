"""The training task of the adapters: as written down, the same after a resume, and the same in both frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt_conformance import fixture
from ckpt_conformance.adapters import training
from ckpt_conformance.adapters.training import SHAPES, Rate, Training
from ckptcore.sampler import Sampler
from tests.conformance.jobs import REFUSED, served

BATCH = 8


class NumpyModel:
    """The numerics of TRAINING.md by hand: the gradient written out."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {
            leaf.name: training.beginning(leaf) for leaf in training.state("x").leaves if leaf.sharding is not None
        }

    def update(self, inputs: np.ndarray, targets: np.ndarray, rate: Rate) -> float:
        w1, b1, w2, b2 = (self.arrays[f"params.{p}"] for p in SHAPES)
        hidden = np.tanh(inputs @ w1 + b1)
        error = (hidden @ w2 + b2)[:, 0] - targets
        slope = 2 * error[:, np.newaxis] / len(targets)
        below = slope @ w2.T * (1 - hidden**2)
        gradients = {"w1": inputs.T @ below, "b1": below.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}
        for p, gradient in gradients.items():
            mu = self.arrays[f"optimizer.mu.{p}"] = 0.9 * self.arrays[f"optimizer.mu.{p}"] + 0.1 * gradient
            nu = self.arrays[f"optimizer.nu.{p}"] = 0.999 * self.arrays[f"optimizer.nu.{p}"] + 0.001 * gradient**2
            self.arrays[f"params.{p}"] = self.arrays[f"params.{p}"] - rate.rate * (mu / rate.first) / (
                np.sqrt(nu / rate.second) + 1e-8
            )
        self.arrays["optimizer.count"] = self.arrays["optimizer.count"] + 1
        return float(np.mean(error**2))


def train(name: str, processes: int, run: Path, steps: int, **fields: Any) -> list[dict[str, Any]]:
    request = {"steps": steps, "save_at": [], "resume": False, "batch": BATCH, **fields}
    return served(name).done("train", processes, store=run.as_uri(), **request)


def losses(answer: dict[str, Any]) -> dict[str, float]:
    return {step: float.fromhex(loss) for step, loss in answer["losses"].items()}


def test_the_draws_are_those_of_the_document() -> None:
    one = Training(NumpyModel(), training.sampler(Sampler, BATCH), rank=1, ranks=2)
    _, ids, draws = one.step()
    assert ids == training.sampler(Sampler, BATCH).ids(4, 4).tolist()
    numbers = np.array([2**63 + 2**32 + counter for counter in range(4)], np.uint64)
    assert draws == fixture.unit(fixture.mix(numbers)).tolist()
    assert one.components["rng"].value["counter"].tolist() == [4]
    _, _, later = one.step()
    assert set(later).isdisjoint(draws)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_framework_computes_what_the_document_says(name: str, tmp_path: Path) -> None:
    (answer,) = train(name, 1, tmp_path / "run", 6)
    by_hand = Training(NumpyModel(), training.sampler(Sampler, BATCH), rank=0, ranks=1)
    steps = [by_hand.step() for _ in range(6)]
    assert list(losses(answer).values()) == pytest.approx([loss for loss, _, _ in steps], rel=0, abs=1e-12)
    assert answer["samples"] == {f"{step}": ids for step, (_, ids, _) in enumerate(steps, 1)}
    assert answer["draws"] == {f"{step}": [draw.hex() for draw in draws] for step, (_, _, draws) in enumerate(steps, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_resumed_run_is_the_same_bit_for_bit(name: str, processes: int, tmp_path: Path) -> None:
    straight = train(name, processes, tmp_path / "straight", 6)
    train(name, processes, tmp_path / "run", 3, save_at=[3])
    resumed = train(name, processes, tmp_path / "run", 6, resume=True)
    for one, other in zip(straight, resumed, strict=True):
        assert other["first"] == 3
        assert one["leaves"] == other["leaves"]
        for what in ("losses", "samples", "draws"):
            assert other[what] == {step: one[what][step] for step in ("4", "5", "6")}


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("jax", "torch"), ("torch", "jax")])
def test_a_run_goes_on_in_the_other_framework(one: str, other: str, tmp_path: Path) -> None:
    straight = train(one, 2, tmp_path / "straight", 6)
    train(one, 2, tmp_path / "run", 3, save_at=[3])
    refused = served(other).run("train", 2, store=(tmp_path / "run").as_uri(), steps=6, batch=BATCH, resume=True, save_at=[])
    assert [(ended.status, ended.answer["error"]) for ended in refused] == [(REFUSED, "guarantee")] * 2
    resumed = train(other, 2, tmp_path / "run", 6, resume=True, accept="coverage")
    for rank in range(2):
        expected = losses(straight[rank])
        assert losses(resumed[rank]) == pytest.approx({step: expected[step] for step in ("4", "5", "6")}, rel=0, abs=1e-9)
        assert resumed[rank]["samples"] == {step: straight[rank]["samples"][step] for step in ("4", "5", "6")}
        assert resumed[rank]["draws"] == {step: straight[rank]["draws"][step] for step in ("4", "5", "6")}
