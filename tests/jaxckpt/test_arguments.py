"""What a newcomer passes by mistake, and what the library says to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from ckptcore.errors import CallError, UnsupportedLeaf
from jaxckpt import errors, open_run
from tests.jaxckpt.runs import checkpointer, resume, save

STATE = {"params": {"x": jnp.zeros(100_000)}}


def test_errors_are_at_hand() -> None:
    assert errors.CallError is CallError
    assert {"errors", "Checkpointer", "open_run"} <= set(jaxckpt.__all__)


class Loader:
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class HalfLoader(Loader):
    def get_state(self) -> int:
        return 0


class OtherHalf:
    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Loader(), r"^data: .*Loader has no place.*get_state\(\) and set_state\(state\)"),
        (iter([1]), r"^data: list_iterator has no place.*get_state\(\) and set_state\(state\)"),
        ((number for number in range(3)), r"^data: generator has no place.*a class around it"),
        (HalfLoader(), r"^data: .*It lacks set_state\(\)"),
        (OtherHalf(), r"^data: .*It lacks state_dict\(\)"),
        ({1, 2}, r"^data: set has no place in a checkpoint[^']*load_state_dict\.$"),
        (lambda: 0, r"^data: function has no place.*Functions are code"),
    ],
)
def test_a_loader_without_state_is_told_what_it_lacks(data: Any, message: str, tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver:
        with pytest.raises(UnsupportedLeaf, match=message):
            saver.save(1, {"params": {"x": 1}, "data": data})
        with pytest.raises(UnsupportedLeaf, match=message):
            saver.restore_or_init(dict, like={"data": data})


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.save(STATE, 1),
        lambda saver: saver.save(1, [STATE]),
        lambda saver: saver.restore_or_init(STATE, like=STATE),
        lambda saver: saver.restore_or_init(lambda: STATE, like=jax.jit(lambda: STATE)),
    ],
)
def test_messages_never_show_the_state(call: Callable[[Any], Any], tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run") as saver, pytest.raises(CallError) as caught:
        call(saver)
    assert len(str(caught.value)) < 200


class Picky:
    def get_state(self) -> int:
        return 5

    def set_state(self, state: int) -> None:
        raise RuntimeError(f"no file {state}")


def test_an_object_that_refuses_its_state_is_named(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "loops": {"train": Picky()}})
    like = {"params": {"x": 0}, "loops": {"train": Picky()}}
    with pytest.raises(CallError, match=r"loops\['train'\]: Picky.set_state does not take .*: RuntimeError: no file 5"):
        resume(tmp_path / "run", like)
    with pytest.raises(CallError, match="no file 5") as caught:
        open_run(tmp_path / "run").restore(like=like)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_component_is_forked_by_its_name(tmp_path: Path) -> None:
    save(tmp_path / "run", {"params": {"x": 1}, "ema": {"x": 2}}, step=7)
    open_run(tmp_path / "run").fork(tmp_path / "child", components="params")
    with checkpointer(tmp_path / "child") as child:
        begun = child.restore_or_init(lambda: {"params": {"x": 0}, "ema": {"x": 0}}, like={"params": {"x": 0}, "ema": {"x": 0}})
    assert (begun.step, begun.components) == (0, {"params": {"x": 1}, "ema": {"x": 0}})
