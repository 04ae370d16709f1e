"""Objects with state: schedulers, scalers, generators, loaders and users' own come back exactly as they were."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR

from ckptcore.errors import CallError, StructureMismatch, UnsupportedLeaf
from ckptcore.names import Path
from tests.torchckpt.held import fill, hold, prepare
from tests.torchckpt.procs import forking
from torchckpt import objects

PATH: Path = (("key", "it"),)


class Stateful:
    """An object with a pair of methods; nobody may ask a target for its state."""

    def __init__(self, state: Any, *, asked: bool = True) -> None:
        self.state = state
        self.asked = asked

    def get_state(self) -> Any:
        assert self.asked, "a target was asked for its state"
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def save(obj: Any) -> dict[Any, Any]:
    return hold(objects.leaves(obj, PATH, "extra"), "extra")


def restore(obj: Any, held: Any) -> None:
    fill([objects.slot(obj, PATH, "extra")], held, "extra")


def described(value: Any) -> Any:
    """A value with the types, dtypes and contents of everything in it."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return (type(value), str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return (type(value), {key: described(value[key]) for key in sorted(value, key=str)})
    if isinstance(value, list | tuple):
        return (type(value), [described(item) for item in value])
    return (type(value), repr(value))


@pytest.mark.parametrize(
    "state",
    [
        *(None, 5, "text", b"short", [], {}, (1, (2, None)), {"a": {"b": []}, 7: {"c": (1, 2)}, "huge": 2**100}),
        *(
            torch.arange(3),
            torch.tensor(1.5, dtype=torch.bfloat16),
            torch.zeros(0, 2),
            np.arange(3, dtype=np.int8),
            bytes(70_000),
        ),
        {
            "deep": [{"x": torch.ones(2)}, "beside", None],
            "numpy": np.ones(2),
            "long": b"ab" * 40_000,
            "tuple": (1, 2),
            "empty": [],
        },
    ],
    ids=lambda state: type(state).__name__,
)
def test_states_of_any_plain_form(state: Any) -> None:
    target = Stateful("other", asked=False)
    restore(target, save(Stateful(state)))
    assert described(target.state) == described(state)


def test_what_comes_back_in_another_form() -> None:
    """A tuple with an array inside as a list, an ordered dict as a dict, a numpy scalar as an array: as documented."""
    target = Stateful(None)
    restore(
        target,
        save(Stateful({"tuple": (torch.ones(1), 2), "ordered": OrderedDict(b=1, a=torch.ones(1)), "scalar": np.float32(2)})),
    )
    expected = {"tuple": [torch.ones(1), 2], "ordered": {"a": torch.ones(1), "b": 1}, "scalar": np.array(2, np.float32)}
    assert described(target.state) == described(expected)


def test_where_it_lies() -> None:
    leaves = objects.leaves(Stateful({"a": torch.ones(1), "b": {"c": 1}}), PATH, "extra")
    assert [leaf.path for leaf in leaves] == [(*PATH, ("key", "a")), (*PATH, ("key", "b"))]
    assert objects.slot(Stateful(1), PATH, "extra").path == PATH


def test_preparing_changes_nothing() -> None:
    target = Stateful("untouched", asked=False)
    (put,) = prepare([objects.slot(target, PATH, "extra")], save(Stateful({"x": torch.ones(1)})), "extra")
    assert target.state == "untouched"
    put()
    assert described(target.state) == described({"x": torch.ones(1)})


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"a": [object()]}, r"extra\['it'\]\['a'\]\[0\]: object"),
        ({"x": torch.ones(1), "f": len}, r"extra\['it'\]\['f'\]: builtin_function"),
        ({"x": {1, 2}}, r"extra\['it'\]\['x'\]: set"),
        ({"x": deque([1])}, r"extra\['it'\]\['x'\]: collections.deque"),
        ({"x": Counter([1])}, r"extra\['it'\]\['x'\]: collections.Counter"),
        ({1.5: torch.ones(1)}, r"extra\['it'\]: the key 1.5"),
    ],
)
def test_what_has_no_place_is_refused_by_name(state: Any, named: str) -> None:
    with pytest.raises(UnsupportedLeaf, match=named):
        save(Stateful(state))


def test_a_state_within_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(UnsupportedLeaf, match="within itself"):
        save(Stateful(state))


def test_an_object_that_refuses_its_state_is_named() -> None:
    class Picky(Stateful):
        def set_state(self, state: Any) -> None:
            raise ValueError(f"not {state}")

    with pytest.raises(CallError, match=r"extra\['it'\]: Picky.set_state does not take the restored state: ValueError: not 5"):
        restore(Picky(None), save(Stateful(5)))


def test_generators() -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(7, generator=generator)
    held = save(generator)
    expected = torch.rand(3, generator=generator)
    fresh = torch.Generator()
    restore(fresh, held)
    assert torch.equal(torch.rand(3, generator=fresh), expected)


class Warmup:
    """A callable with a state of its own."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: float) -> float:
        return min(1.0, (step + 1) / self.steps)


class Hidden(Warmup):
    """A callable that holds a function."""

    def __init__(self) -> None:
        super().__init__(3)
        self.rule = len


Schedule = Callable[[optim.Optimizer, int], Any]
"""A scheduler of an optimizer over some horizon."""

SCHEDULERS: dict[str, Schedule] = {
    "LambdaLR object": lambda o, n: lrs.LambdaLR(o, Warmup(n)),
    "LambdaLR function": lambda o, n: lrs.LambdaLR(o, lambda step: 0.9**step),  # noqa: ARG005 - nothing of a function is stored
    "MultiplicativeLR object": lambda o, n: lrs.MultiplicativeLR(o, Warmup(n)),
    "StepLR": lambda o, n: lrs.StepLR(o, step_size=max(1, n // 3), gamma=0.5),
    "MultiStepLR": lambda o, n: lrs.MultiStepLR(o, milestones=[n // 3, n // 2, n // 2], gamma=0.5),
    "ConstantLR": lambda o, n: lrs.ConstantLR(o, factor=0.3, total_iters=n),
    "LinearLR": lambda o, n: lrs.LinearLR(o, start_factor=0.1, total_iters=n),
    "ExponentialLR": lambda o, n: lrs.ExponentialLR(o, gamma=1 - 1 / n),
    "PolynomialLR": lambda o, n: lrs.PolynomialLR(o, total_iters=n, power=2.0),
    "CosineAnnealingLR": lambda o, n: lrs.CosineAnnealingLR(o, T_max=n, eta_min=1e-3),
    "CosineAnnealingWarmRestarts": lambda o, n: lrs.CosineAnnealingWarmRestarts(o, T_0=max(2, n // 4), T_mult=2),
    "CyclicLR": lambda o, n: lrs.CyclicLR(o, base_lr=0.1, max_lr=[0.4, 0.8], step_size_up=n // 3, mode="exp_range", gamma=0.98),
    "CyclicLR object": lambda o, n: lrs.CyclicLR(o, 0.1, 0.4, step_size_up=n // 3, scale_fn=Warmup(n), scale_mode="cycle"),
    "OneCycleLR": lambda o, n: lrs.OneCycleLR(o, max_lr=[1.0, 0.5], total_steps=3 * n),
    "OneCycleLR three phases": lambda o, n: lrs.OneCycleLR(o, max_lr=1.0, epochs=3, steps_per_epoch=n, three_phase=True),
    "SWALR": lambda o, n: SWALR(o, swa_lr=0.05, anneal_epochs=n, anneal_strategy="linear" if n == 18 else "cos"),
    "ReduceLROnPlateau": lambda o, n: lrs.ReduceLROnPlateau(o, factor=0.5, patience=n // 8, cooldown=1, mode="max"),
    "SequentialLR": lambda o, n: lrs.SequentialLR(
        o,
        [lrs.LinearLR(o, total_iters=n // 3), lrs.MultiStepLR(o, [n // 2]), lrs.ExponentialLR(o, 0.9)],
        milestones=[n // 3, n // 2],
    ),
    "ChainedScheduler": lambda o, n: lrs.ChainedScheduler([lrs.ConstantLR(o, total_iters=n), lrs.MultiStepLR(o, [n // 2])], o),
}


def optimizer_of(rates: Any = (0.5, 0.25)) -> optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    return optim.SGD(groups, momentum=0.9)


def run(scheduler: Any, optimizer: optim.Optimizer, steps: range) -> list[Any]:
    """The learning rates and momentums after each step."""
    found = []
    for step in steps:
        optimizer.step()
        scheduler.step(*([1 / (step + 1)] if isinstance(scheduler, lrs.ReduceLROnPlateau) else []))
        found.append([(float(group["lr"]), group["momentum"]) for group in optimizer.param_groups])
    return found


def copied_groups(optimizer: optim.Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def attributes(scheduler: Any) -> Any:
    """All that a scheduler is, functions and the optimizer left out."""
    held = {key: value for key, value in vars(scheduler).items() if key != "optimizer" and not callable(value)}
    if "_schedulers" in held:
        held["_schedulers"] = [attributes(child) for child in held["_schedulers"]]
    return described({key: [vars(f) for f in value] if key == "lr_lambdas" else value for key, value in held.items()})


def test_every_scheduler_of_torch_is_here() -> None:
    known = {name for name in lrs.__all__ if isinstance(getattr(lrs, name), type)}
    assert known - {name.split()[0] for name in SCHEDULERS} == {"LRScheduler"}


@pytest.mark.parametrize("horizon", [18, 30], ids=["same horizon", "another horizon"])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_scheduler_is_what_was_saved(name: str, horizon: int) -> None:
    optimizer = optimizer_of()
    scheduler = SCHEDULERS[name](optimizer, 18)
    run(scheduler, optimizer, range(7))
    before = described(scheduler.state_dict())
    held = save(scheduler)
    assert described(scheduler.state_dict()) == before

    other = optimizer_of()
    target = SCHEDULERS[name](other, horizon)
    run(target, other, range(3))
    groups = described(copied_groups(other))
    restore(target, held)
    assert described(copied_groups(other)) == groups
    assert described(target.state_dict()) == before
    assert attributes(target) == attributes(scheduler)

    for mine, theirs in zip(other.param_groups, optimizer.param_groups, strict=True):
        mine.update({key: value for key, value in theirs.items() if key != "params"})
    assert run(target, other, range(7, 27)) == run(scheduler, optimizer, range(7, 27))


def test_schedulers_of_tensor_rates() -> None:
    optimizer, other = (optimizer_of([torch.tensor(0.5), torch.tensor(0.25)]) for _ in range(2))
    scheduler, target = lrs.StepLR(optimizer, 2), lrs.StepLR(other, 2)
    run(scheduler, optimizer, range(3))
    restore(target, save(scheduler))
    assert described(target.state_dict()) == described(scheduler.state_dict())
    assert isinstance(target.base_lrs[0], torch.Tensor)


def test_a_scheduler_is_not_asked_for_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = optimizer_of()
    scheduler = lrs.StepLR(optimizer, 2)
    held = save(scheduler)
    monkeypatch.setattr(lrs.LRScheduler, "state_dict", _never)
    restore(scheduler, held)


def _never(self: Any) -> Any:
    raise AssertionError(f"{self} was asked for its state")


_never.__module__ = lrs.__name__


def test_a_callable_that_holds_a_function_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedLeaf, match=r"extra\['it'\]\['lr_lambdas'\]\[0\]\['rule'\]: builtin_function"):
        save(lrs.LambdaLR(optimizer_of(), Hidden()))
    counting = Warmup(3)
    counting.calls = Counter([1])  # type: ignore[attr-defined] - a counter that is not the scheduler's own
    with pytest.raises(UnsupportedLeaf, match=r"extra\['it'\]\['lr_lambdas'\]\[0\]\['calls'\]: collections.Counter"):
        save(lrs.LambdaLR(optimizer_of(), counting))


@pytest.mark.parametrize(
    ("saved", "target", "difference"),
    [
        ("StepLR", "CosineAnnealingLR", "'step_size' is only in the checkpoint"),
        ("ExponentialLR", "StepLR", "'step_size' is only in the target"),
        ("LambdaLR object", "LambdaLR function", "lr_lambdas[0] was an object with state, the target has a function"),
        ("LambdaLR function", "LambdaLR object", "lr_lambdas[0] was a function, the target has an object with state"),
    ],
)
def test_the_state_of_another_kind_of_scheduler_is_refused(saved: str, target: str, difference: str) -> None:
    held = save(SCHEDULERS[saved](optimizer_of(), 18))
    scheduler = SCHEDULERS[target](optimizer_of(), 18)
    before = attributes(scheduler) if "function" not in target else None
    with pytest.raises(StructureMismatch, match=r"extra\['it'\]: the checkpoint's state does not fit") as error:
        restore(scheduler, held)
    assert any(difference in found for found in error.value.differences), error.value
    assert before is None or attributes(scheduler) == before


def test_nested_schedulers_have_to_be_the_same() -> None:
    def chained(*kinds: str) -> Any:
        optimizer = optimizer_of()
        return lrs.ChainedScheduler([SCHEDULERS[kind](optimizer, 18) for kind in kinds], optimizer)

    held = save(chained("StepLR", "ExponentialLR"))
    with pytest.raises(StructureMismatch, match="it holds 2 schedulers, the target's 1"):
        restore(chained("StepLR"), held)
    with pytest.raises(StructureMismatch, match=r"_schedulers\[1\]: 'power' is only in the target"):
        restore(chained("StepLR", "PolynomialLR"), held)


def test_a_scheduler_of_fewer_groups_is_refused() -> None:
    held = save(lrs.StepLR(optimizer_of([0.5]), 2))
    with pytest.raises(StructureMismatch, match="learning rates for 1 parameter groups, the target's optimizer has 2"):
        restore(lrs.StepLR(optimizer_of(), 2), held)


def test_attributes_that_another_torch_has_may_be_absent_if_they_are_off() -> None:
    older, newer = (lrs.StepLR(optimizer_of(), 2) for _ in range(2))
    vars(older)["verbose"] = False
    vars(newer)["_is_new"] = 5
    restore(newer, save(older))
    assert vars(newer)["verbose"] is False


def test_a_scheduler_with_a_state_of_its_own() -> None:
    class Own(lrs.StepLR):
        def state_dict(self) -> dict[str, Any]:
            return {"at": self.last_epoch}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.last_epoch = state_dict["at"]

    optimizer = optimizer_of()
    scheduler, target = Own(optimizer, 2), Own(optimizer_of(), 2)
    run(scheduler, optimizer, range(3))
    restore(target, save(scheduler))
    assert target.last_epoch == 3


def scaled(scaler: torch.amp.GradScaler, steps: int, *, overflow: bool = False) -> None:
    """Use a scaler as training does."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([parameter], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * (torch.inf if overflow else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


def scaler_of(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4, **options)


@pytest.mark.parametrize("used", [0, 3], ids=["fresh", "used"])
def test_a_scaler_is_what_was_saved(used: int) -> None:
    scaler = scaler_of(growth_factor=3.0)
    scaled(scaler, 6)
    scaled(scaler, 1, overflow=True)
    scaled(scaler, 2)
    state = scaler.state_dict()
    assert state == {"scale": 1536.0, "growth_factor": 3.0, "backoff_factor": 0.5, "growth_interval": 4, "_growth_tracker": 2}
    held = save(scaler)
    assert described(scaler.state_dict()) == described(state)

    target = scaler_of()
    scaled(target, used)
    restore(target, held)
    assert described(target.state_dict()) == described(state)
    assert described(scaler.state_dict()) == described(state)
    for one in (scaler, target):
        scaled(one, 3)
    assert described(target.state_dict()) == described(scaler.state_dict())
    assert target.get_scale() == 4608.0


@pytest.mark.parametrize(("saved", "target"), [(True, False), (False, True)])
def test_a_scaler_that_is_enabled_on_one_side_only_is_refused(*, saved: bool, target: bool) -> None:
    with pytest.raises(
        StructureMismatch, match=rf"saved {'en' if saved else 'dis'}abled, the target is {'en' if target else 'dis'}"
    ):
        restore(scaler_of(enabled=target), save(scaler_of(enabled=saved)))
    restore(scaler_of(enabled=saved), save(scaler_of(enabled=saved)))


class Numbers(torch.utils.data.Dataset[int]):
    """The numbers below 40."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def loader(workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(3)
    return StatefulDataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
@forking
def test_a_loader_goes_on_at_the_next_batch(workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    source = loader(workers)
    batches = iter(source)
    seen = [next(batches).tolist() for _ in range(3)]
    held = save(source)
    expected = [batch.tolist() for batch in batches]
    assert sorted(number for batch in seen + expected for number in batch) == list(range(40))

    fresh = loader(workers)
    with mock.patch.object(StatefulDataLoader, "state_dict", _never):
        restore(fresh, held)
    assert fresh._iterator is None  # no worker was started
    torch.manual_seed(99)
    assert [batch.tolist() for batch in fresh] == expected
