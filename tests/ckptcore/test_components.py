"""Kinds, wrappers and objects that carry state."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ckptcore.components import KINDS, PerRank, RankZero, get_state, is_stateful, kind_of, missing_method, set_state, unwrap
from ckptcore.errors import CallError


class Iterator:
    """As Grain's iterators."""

    def __init__(self) -> None:
        self.position = 3

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Scheduler:
    """As torch's schedulers; loading returns something that nobody wants."""

    def __init__(self) -> None:
        self.epoch = 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> str:
        self.epoch = state["epoch"]
        return "<All keys matched>"


class Both(Iterator, Scheduler):
    """Has both pairs."""


class HalfAPair:
    """Can be read, and not written."""

    def state_dict(self) -> dict[str, int]:
        return {}


class AnyAttribute:
    """Answers to every name, as mocks and attribute dictionaries do."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: name


class Fields:
    """Carries such names as data."""

    get_state = 1
    set_state = 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("params", "parameters"),
        ("model", "parameters"),
        ("optimizer", "optimizer"),
        ("opt_state", "optimizer"),
        ("schedule", "schedule"),
        ("loss_scale", "loss_scale"),
        ("rng", "rng"),
        ("data", "data"),
        ("extra", "extra"),
        ("grad_accum", "gradients"),
        ("curriculum", "curriculum"),
        ("ema", "custom"),
        ("Params", "custom"),
    ],
)
def test_kinds_follow_from_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_kinds_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        KINDS["ema"] = "parameters"  # type: ignore[index]


def test_unwrap_tells_scope_and_rank_zero() -> None:
    tree = {"w": 1}
    assert unwrap(tree) == (tree, "global", False)
    assert unwrap(PerRank(tree)) == (tree, "rank", False)
    assert unwrap(RankZero(tree)) == (tree, "global", True)


@pytest.mark.parametrize("wrapped", [PerRank(RankZero(1)), RankZero(PerRank(1)), PerRank(PerRank(1))])
def test_wrappers_do_not_nest(wrapped: PerRank | RankZero) -> None:
    with pytest.raises(CallError, match="a component cannot be"):
        unwrap(wrapped)


@pytest.mark.parametrize("wrapper", [PerRank, RankZero])
def test_wrappers_are_frozen(wrapper: type[PerRank | RankZero]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        wrapper(1).value = 2  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Iterator, Scheduler, Both])
def test_state_goes_out_and_in(kind: type[Iterator | Scheduler]) -> None:
    source, target = kind(), kind()
    vars(source).update(dict.fromkeys(vars(source), 99))
    assert is_stateful(source)
    set_state(target, get_state(source), where="data")
    assert get_state(target) == get_state(source)
    assert 99 in vars(target).values()


class Refusing(Scheduler):
    def load_state_dict(self, state: Any) -> str:
        raise KeyError(len(state))


def test_an_object_that_refuses_its_state_is_named() -> None:
    with pytest.raises(
        CallError, match=r"^data\['a'\]: Refusing.load_state_dict does not take the restored state: KeyError"
    ) as caught:
        set_state(Refusing(), {}, where="data['a']")
    assert isinstance(caught.value.__cause__, KeyError)


def test_half_a_pair_is_told() -> None:
    assert missing_method(HalfAPair()) == "load_state_dict"
    assert [missing_method(obj) for obj in (Iterator(), Scheduler(), AnyAttribute(), HalfAPair, {}, None)] == [None] * 6


def test_get_state_is_preferred() -> None:
    assert get_state(Both()) == {"position": 3}


@pytest.mark.parametrize(
    "obj", [Iterator, Scheduler, HalfAPair(), AnyAttribute(), Fields(), {}, {"get_state": 1}, None, 3, [Iterator()]]
)
def test_other_things_carry_no_state(obj: Any) -> None:
    assert not is_stateful(obj)
    with pytest.raises(CallError, match="has neither"):
        get_state(obj)
    with pytest.raises(CallError, match="has neither"):
        set_state(obj, {}, where="data")
