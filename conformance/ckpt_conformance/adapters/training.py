"""The training task (TRAINING.md), but for the numerics, which are the framework's (`train_jax`, `train_torch`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ckpt_conformance import fixture
from ckpt_conformance.adapters.state import Leaf, State
from ckptcore.components import PerRank, unwrap
from ckptcore.sampler import Sampler

SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({"w1": (4, 8), "b1": (8,), "w2": (8, 1), "b2": (1,)})
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
_SIZE, _SEED = 50, 7
_INPUTS = 4


@dataclass(frozen=True)
class Rate:
    """What depends on the number of the update alone: the rate, and the two bias corrections."""

    rate: float
    first: float
    second: float

    @classmethod
    def of(cls, update: int) -> Rate:
        """Those of update `update`, from 1."""
        return cls(0.02 * 0.99 ** (update - 1), 1 - BETA1**update, 1 - BETA2**update)


class Model(Protocol):
    """Parameters and moments on devices. `arrays`: `params.<p>`, `optimizer.mu.<p>`, `optimizer.nu.<p>`, `optimizer.count`."""

    arrays: dict[str, Any]

    def update(self, inputs: np.ndarray, targets: np.ndarray, rate: Rate) -> float:
        """One update with this process's rows; the loss over all rows."""
        ...


def state(axis: str) -> State:
    """The leaves of the task, `params` and the moments cut over a mesh axis."""
    cuts = {"w1": ((), (axis,)), "w2": ((axis,), ())}
    leaves = [_leaf("params", p, cuts.get(p)) for p in SHAPES]
    leaves += [_leaf(f"optimizer.{moment}", p, cuts.get(p)) for moment in ("mu", "nu") for p in SHAPES]
    leaves.append(_made("optimizer.count", dtype="int64", sharding=()))
    leaves.append(_made("schedule.updates", value="int"))
    leaves.append(_made("rng.counter", dtype="uint64", shape=(1,)))
    leaves += [_made(f"data.{name}", value="int") for name in ("algorithm", "batch", "position", "seed", "shuffle", "size")]
    scopes = {name: "rank" if name == "rng" else "global" for name in ("params", "optimizer", "schedule", "rng", "data")}
    return State(scopes, tuple(leaves))


def beginning(leaf: Leaf) -> np.ndarray:
    """An array of the state before the first update."""
    if leaf.component != "params":
        return np.zeros(leaf.shape, leaf.dtype)
    count = int(np.prod(leaf.shape))
    return (fixture.unit(fixture.z(leaf.name, 0, np.arange(count))) - 0.5).reshape(leaf.shape)


class Training:
    """The task on one process: rows `rank` of `ranks` of every batch."""

    def __init__(self, model: Model, sampler: Sampler, *, rank: int, ranks: int) -> None:
        self._model, self._sampler, self._rank, self._ranks = model, sampler, rank, ranks
        self._counter = np.zeros(1, np.uint64)
        self._updates = 0

    @property
    def components(self) -> dict[str, Any]:
        """The state, as it is saved and restored."""
        arrays = self._model.arrays
        moments = {moment: {p: arrays[f"optimizer.{moment}.{p}"] for p in SHAPES} for moment in ("mu", "nu")}
        return {
            "params": {p: arrays[f"params.{p}"] for p in SHAPES},
            "optimizer": {**moments, "count": arrays["optimizer.count"]},
            "schedule": {"updates": self._updates},
            "rng": PerRank({"counter": self._counter}),
            "data": self._sampler,
        }

    @property
    def shown(self) -> dict[str, Any]:
        """The components with the sampler's state in its place: what is stored of it."""
        return {**self.components, "data": self._sampler.get_state()}

    def restored(self, components: Mapping[str, Any]) -> None:
        """Go on from restored components. The sampler was filled in place."""
        params, optimizer = components["params"], components["optimizer"]
        for p in SHAPES:
            self._model.arrays[f"params.{p}"] = params[p]
            self._model.arrays |= {f"optimizer.{moment}.{p}": optimizer[moment][p] for moment in ("mu", "nu")}
        self._model.arrays["optimizer.count"] = optimizer["count"]
        self._updates = components["schedule"]["updates"]
        self._counter = unwrap(components["rng"])[0]["counter"]

    def step(self) -> tuple[float, list[int], list[float]]:
        """One update: its loss over the whole batch, and the sample IDs and draws of this process."""
        ids = self._sampler.next(self._rank, self._ranks)
        inputs, targets = _rows(ids)
        draws = self._draw(len(ids))
        self._updates += 1
        loss = self._model.update(inputs + 0.01 * (draws[:, np.newaxis] - 0.5), targets, Rate.of(self._updates))
        return loss, ids.tolist(), draws.tolist()

    def _draw(self, count: int) -> np.ndarray:
        start = 2**63 + 2**32 * self._rank + int(self._counter[0])
        self._counter = self._counter + np.uint64(count)
        return fixture.unit(fixture.mix(np.array([start + number for number in range(count)], np.uint64)))


def _rows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of samples."""
    numbers = [fixture.z("sample", int(sample), np.arange(_INPUTS)) for sample in ids]
    inputs = 2 * fixture.unit(np.array(numbers, np.uint64).reshape(-1, _INPUTS)) - 1
    return inputs, np.sin(inputs[:, 0] + 2 * inputs[:, 1]) + inputs[:, 2] * inputs[:, 3]


def sampler(make: Callable[..., Any], batch: int) -> Any:
    """The cursor of the task, of the product's class for a framework."""
    return make(_SIZE, batch, seed=_SEED, shuffle=True)


def _leaf(component: str, parameter: str, cut: tuple[tuple[str, ...], ...] | None) -> Leaf:
    shape = SHAPES[parameter]
    return _made(f"{component}.{parameter}", dtype="float64", shape=shape, sharding=cut or ((),) * len(shape))


def _made(name: str, **facts: Any) -> Leaf:
    component, *rest = name.split(".")
    return Leaf(component=component, path=tuple(("key", element) for element in rest), name=name, content=name, **facts)
