"""The random generators of a process come back exactly, or nothing is touched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ckptcore import values
from ckptcore.components import PerRank
from ckptcore.errors import StructureMismatch
from torchckpt import rng
from torchckpt.rng import rng_state


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Known generators, and those from before afterwards."""
    before = rng_state().value.get_state()
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    yield
    rng_state().value.set_state(before)


def draws() -> list[Any]:
    host = [random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand()]  # noqa: NPY002
    return [*host, *torch.randn(3).tolist(), torch.nn.functional.dropout(torch.ones(40)).tolist()]


def test_every_draw_is_the_same_again() -> None:
    draws()  # gauss and normal keep a second number for the next draw
    state = rng_state().value.get_state()
    expected = [draws(), draws()]
    rng_state().value.set_state(values.decode(values.encode(state, where="rng"), where="rng"))
    assert [draws(), draws()] == expected


def test_it_is_per_rank_and_made_of_plain_values() -> None:
    component = rng_state()
    assert isinstance(component, PerRank)
    state = component.value.get_state()
    assert set(state) == {"python", "numpy", "torch", "device", "devices"}
    assert type(state["torch"]) is bytes


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda _: {},
        lambda state: {**state, "python": {**state["python"], "internal": [1]}},
        lambda state: {**state, "python": {**state["python"], "internal": [-1] * 625}},
        lambda state: {**state, "python": {**state["python"], "gauss": "none"}},
        lambda state: {**state, "numpy": {**state["numpy"], "keys": b"short"}},
        lambda state: {**state, "torch": state["torch"][:-1]},
        lambda state: {**state, "torch": b"\xff" * len(state["torch"])},
        lambda state: {**state, "torch": b""},
        lambda state: {**state, "torch": "text"},
        lambda state: {**state, "devices": None},
        lambda state: {name: state[name] for name in ("python", "numpy")},
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(change: Any) -> None:
    state = rng_state().value.get_state()
    draws()
    before = rng_state().value.get_state()
    with pytest.raises(StructureMismatch, match="no state of `rng_state`"):
        rng_state().value.set_state(change(state))
    assert rng_state().value.get_state() == before


def test_the_state_of_devices_that_are_not_here_is_refused_by_their_numbers() -> None:
    state = rng_state().value.get_state()
    here = rng._shown(state["device"], len(state["devices"]))
    draws()
    before = rng_state().value.get_state()
    with pytest.raises(StructureMismatch, match=f"saved: 9 cuda devices, here: {here}"):
        rng_state().value.set_state({**state, "device": "cuda", "devices": [bytes(16)] * 9})
    assert rng_state().value.get_state() == before


class Devices:
    """Stands for the module of an accelerator with two devices, whose generators are torch's for the CPU."""

    def __init__(self) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in (10, 11)]

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.generators]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


def test_every_device_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cpu"))  # noqa: ARG005
    monkeypatch.setattr(torch, "get_device_module", lambda kind: devices)  # noqa: ARG005
    state = rng_state().value.get_state()
    expected = [torch.rand(3, generator=generator).tolist() for generator in devices.generators]
    rng_state().value.set_state(state)
    assert [torch.rand(3, generator=generator).tolist() for generator in devices.generators] == expected
    assert expected[0] != expected[1]

    before = devices.get_rng_state_all()
    with pytest.raises(StructureMismatch, match="no state of `rng_state`"):
        rng_state().value.set_state({**state, "devices": [state["devices"][0], b"short"]})
    devices.generators.pop()
    with pytest.raises(StructureMismatch, match="saved: 2 cpu devices, here: 1 cpu device"):
        rng_state().value.set_state(state)
    assert torch.equal(devices.get_rng_state_all()[0], before[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_draw_on_a_gpu_is_the_same_again() -> None:
    torch.rand(3, device="cuda")
    state = rng_state().value.get_state()
    assert (state["device"], len(state["devices"])) == ("cuda", torch.cuda.device_count())
    expected = torch.rand(100, device="cuda").tolist()
    rng_state().value.set_state(state)
    assert torch.rand(100, device="cuda").tolist() == expected
    with pytest.raises(StructureMismatch, match=f"here: {torch.cuda.device_count()} cuda"):
        rng_state().value.set_state({**state, "devices": []})
    with pytest.raises(StructureMismatch, match="no state of `rng_state`"):
        rng_state().value.set_state({**state, "devices": [b"short"] * torch.cuda.device_count()})
    assert torch.rand(100, device="cuda").tolist() != expected
