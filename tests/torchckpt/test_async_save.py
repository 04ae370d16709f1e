"""Training goes on while a save is in flight: nothing of a later step gets in, and nothing that fails there is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ckptcore import writer
from ckptcore.errors import CallError, SaveFailed, StagingLimit, UnsupportedLeaf
from tests.spec.checker import check_run
from tests.torchckpt.models import Tiny, adamw, assert_expected, expected, local_bytes, with_moments
from tests.torchckpt.procs import Job, run_job
from tests.torchckpt.runs import checkpointer, resume
from torchckpt import Event, open_run


class Gate:
    """Holds the background half of every save until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._write = writer.write

    def write(self, *args: Any, **options: Any) -> Any:
        assert self._open.wait(30)
        return self._write(*args, **options)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(writer, "write", gate.write)
    yield gate
    gate.open()


def known(key: str = "value") -> Tiny:
    """A model of expected values."""
    model = Tiny()
    fill(model, key)
    return model


def fill(model: nn.Module, key: str) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(expected(name, key, parameter.shape)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step that changes every parameter, every moment and the buffer, all in place."""
    model(torch.arange(9).reshape(3, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_steps_beside_a_save_do_not_get_in(tmp_path: Path, gate: Gate) -> None:
    model = known()
    optimizer = adamw(model)
    with_moments(optimizer, model, known)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    components = {"model": model, "optimizer": optimizer, "schedule": scheduler, "rng": {"draws": torch.get_rng_state()}}
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, components)
        for _ in range(3):
            train(model, optimizer)
            scheduler.step()
        optimizer.state.clear()
        optimizer.param_groups[0]["betas"] = (0.0, 0.0)
        assert not handle.done()
        gate.open()
        handle.result(30)
    # The memory that was saved from is the memory that training has changed.
    assert {parameter.data_ptr() for parameter in model.parameters()} == pointers
    for name, parameter in model.named_parameters():
        assert not np.array_equal(parameter.detach().numpy(), expected(name, "value", parameter.shape)), name
    resumed = Tiny()
    again = adamw(resumed, lr=9.0)
    like = {"model": resumed, "optimizer": again, "schedule": torch.optim.lr_scheduler.ExponentialLR(again, 0.1)}
    resume(tmp_path / "run", {**like, "rng": {"draws": torch.zeros_like(torch.get_rng_state())}})
    assert_expected(resumed, again)
    assert int(resumed.calls) == 0
    assert [group["lr"] for group in again.param_groups] == [1e-2, 1e-2 / 3]
    assert again.param_groups[0]["betas"] == (0.8, 0.9)
    assert (like["schedule"].gamma, like["schedule"].last_epoch) == (0.5, 0)


DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int8, torch.int64, torch.float64]


def test_no_tensor_of_any_kind_is_saved_from_memory_that_may_change(tmp_path: Path, gate: Gate) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        **{str(dtype).removeprefix("torch."): base.clone().to(dtype) for dtype in DTYPES},
        "view": base[1:3, ::2],
        "transposed": base.clone().T,
        "scalar": torch.tensor(3.0),
        "shared with numpy": torch.from_numpy(np.arange(5)),
        "host": np.arange(6.0),
    }
    wanted = {name: local_bytes(torch.as_tensor(tensor)) for name, tensor in state.items()}
    like = {name: torch.zeros_like(tensor) if isinstance(tensor, torch.Tensor) else np.zeros(6) for name, tensor in state.items()}
    with checkpointer(tmp_path / "run") as saver:
        handle = saver.save(1, {"model": {"w": torch.ones(1)}, "extra": state})
        for tensor in (base, *state.values()):
            torch.as_tensor(tensor).zero_()
        gate.open()
        handle.result(30)
    restored = resume(tmp_path / "run", {"model": {"w": torch.ones(1)}, "extra": like}).components["extra"]
    for name, content in wanted.items():
        assert local_bytes(torch.as_tensor(restored[name])) == content, name
        assert local_bytes(torch.as_tensor(state[name])) != content, name


def test_many_steps_beside_many_saves(tmp_path: Path) -> None:
    """The staging memory is reused from save to save: what one holds is not what the next one finds."""
    model = known()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken: dict[int, dict[str, torch.Tensor]] = {}
    with checkpointer(tmp_path / "run") as saver:
        for step in range(1, 9):
            fill(model, f"step {step}")
            saver.save(step, {"model": model, "optimizer": optimizer})
            taken[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            train(model, optimizer)
    run = open_run(tmp_path / "run")
    for step in taken:
        found = run.restore(components="model", step=step)
        for name, parameter in model.named_parameters():
            np.testing.assert_array_equal(found[name], expected(name, f"step {step}", parameter.shape))


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`fail_at("written")` makes the next save fail when it gets there."""
    tell = writer.tell

    def arm(kind: str) -> None:
        armed = [kind]

        def fail(listener: Any, event: Event) -> None:
            tell(listener, event)
            if event.kind in armed:
                armed.clear()
                raise OSError("the disk is on fire")

        monkeypatch.setattr(writer, "tell", fail)

    return arm


@pytest.mark.parametrize("kind", ["chunk-written", "written"])
def test_a_failed_save_is_told_once_and_leaves_nothing_behind(kind: str, tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    model = known()
    with checkpointer(tmp_path / "run") as saver:
        fail_at(kind)
        handle = saver.save(1, {"model": model})
        with pytest.raises(SaveFailed, match="rank 0 could not write its part of 000001-000000000001-1: the disk is on fire"):
            handle.result(30)
        fill(model, "second")
        assert saver.save(2, {"model": model}).result(30).step == 2
        fail_at(kind)
        saver.save(3, {"model": model})
        with pytest.raises(SaveFailed, match="on fire"):
            saver.save(4, {"model": model})
        saver.save(5, {"model": model})
    resumed = Tiny()
    assert resume(tmp_path / "run", {"model": resumed}).step == 5
    np.testing.assert_array_equal(resumed.state_dict()["head.weight"], expected("embed.weight", "second", (9, 10)))


def test_a_failed_save_is_told_by_close(tmp_path: Path, fail_at: Callable[[str], None]) -> None:
    fail_at("written")
    saver = checkpointer(tmp_path / "run")
    saver.save(1, {"model": known()})
    with pytest.raises(SaveFailed, match="on fire"):
        saver.close()


def test_a_call_that_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    model = known()
    with checkpointer(tmp_path / "run", max_staging_bytes=8000) as saver:
        with pytest.raises(UnsupportedLeaf, match=r"extra\['f'\]"):
            saver.save(1, {"model": model, "extra": {"f": len}})
        with pytest.raises(StagingLimit, match="max_staging_bytes allows 8000"):
            saver.save(1, {"model": model, "extra": {"x": torch.ones(10_000)}})
        with pytest.raises(CallError, match="step is a float"):
            saver.save(1.0, {"model": model})  # pyright: ignore[reportArgumentType]
        assert saver.save(1, {"model": model}).result(30).step == 1
    resumed = Tiny()
    resume(tmp_path / "run", {"model": resumed})
    assert_expected(resumed)


COMMON = """
import os, signal, time
from ckptcore.errors import SaveAborted
from tests.torchckpt.models import adamw, assert_expected, filled, tensors_of, whole, with_moments
from tests.torchckpt.runs import checkpointer, resume


def made(key="value"):
    model = filled("fsdp", key)
    optimizer = adamw(model)
    with_moments(optimizer, model, lambda moment: filled("fsdp", moment))
    return {"model": model, "optimizer": optimizer}
"""

BESIDE = (
    COMMON
    + """
import threading
from ckptcore import writer
write, opened = writer.write, threading.Event()


def held(*args, **options):
    assert opened.wait(60)
    return write(*args, **options)


writer.write = held
state = made()
with checkpointer(ARGS[0], chunk_bytes=256) as saver:
    handle = saver.save(1, state)
    for _ in range(2):
        state["model"](torch.arange(RANK, RANK + 4).reshape(2, 2)).square().sum().backward()
        state["optimizer"].step()
    for _, _, tensor in tensors_of(state["model"], state["optimizer"]):
        tensor.detach().fill_(0.5)
    assert not handle.done()
    opened.set()
    handle.result(60)
    again = saver.restore(like=state).components
    assert_expected(again["model"], again["optimizer"])
    print("as it was")
"""
)


@pytest.mark.slow
def test_sharded_steps_beside_a_save_do_not_get_in(tmp_path: Path) -> None:
    for output in run_job(BESIDE, size=2, args=[str(tmp_path / "run")]):
        assert "as it was" in output


KILLED = (
    COMMON
    + """
def die(event):
    if event.kind == ARGS[1] and event.generation.step == 2 and RANK == int(ARGS[2]):
        print("dying", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


state = made()
with checkpointer(ARGS[0], chunk_bytes=256, coordinator_timeout=60.0, on_event=die) as saver:
    saver.save(1, state).result(60)
    saver._timeout = 2.0  # here one never comes
    for _, _, tensor in tensors_of(state["model"], state["optimizer"]):
        tensor.detach().fill_(0.5)
    handle = saver.save(2, state)
    try:
        handle.result(30)
    except SaveAborted as error:
        print("late:", error.missing, error, flush=True)
os._exit(0)
"""
)

AFTER = (
    COMMON
    + """
model = filled("fsdp", "other")
like = {"model": model, "optimizer": adamw(model)}
with checkpointer(ARGS[0], chunk_bytes=256) as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=like)
    print("restored:", restored.step, restored.reason, restored.guarantee)
    if restored.step == 1:
        assert_expected(model, like["optimizer"])
    else:
        assert all((whole(tensor) == 0.5).all() for _, _, tensor in tensors_of(model, like["optimizer"]))
    saver.save(restored.step + 1, like).result(60)
"""
)


@pytest.mark.slow
def test_a_rank_that_is_killed_in_its_write_hangs_nobody(tmp_path: Path) -> None:
    url = tmp_path / "run"
    with Job(KILLED, args=[str(url), "chunk-written", "1"]) as job:
        survivor, victim = job.ranks
        assert victim.wait() == -9
        line = survivor.wait_for("late:")
        assert "(1,)" in line
        assert "no receipt from rank 1 of 2 within 2 s" in line
        survivor.wait()
    for output in run_job(AFTER, args=[str(url)]):
        assert "restored: 1 newest exact" in output
    assert check_run(url) == []


@pytest.mark.slow
def test_a_coordinator_that_is_killed_after_all_receipts(tmp_path: Path) -> None:
    url = tmp_path / "run"
    with Job(KILLED, args=[str(url), "receipts-complete", "0"]) as job:
        coordinator, survivor = job.ranks
        assert coordinator.wait() == -9
        survivor.end()
    assert [known.state for known in open_run(url).generations()] == ["committed", "undecided"]
    for output in run_job(AFTER, args=[str(url)]):
        assert "restored: 2 rolled-forward exact" in output
    assert check_run(url) == []
