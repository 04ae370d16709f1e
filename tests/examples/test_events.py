"""The hooks for experiment trackers, on a real job, with stand-ins for their libraries."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ckptcore.events import Event
from examples import mlflow_events, wandb_events
from tests.ckptcore.support import checkpointer, memory_directory, state


class WandbRun:
    """What `wandb.init` returns, as far as the hook knows it."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.alerts: list[tuple[str, str, str]] = []

    def log(self, values: dict[str, Any], *, commit: bool) -> None:
        assert not commit
        self.logged |= values

    def alert(self, *, title: str, text: str, level: str) -> None:
        self.alerts.append((title, text, level))


def standing_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def one_save(on_event: Any) -> str:
    with memory_directory() as place, checkpointer(place / "run", on_event=on_event) as saver:
        return saver.save(10, state(10)).result().generation


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, "wandb", AlertLevel=SimpleNamespace(WARN="WARN"))
    run = WandbRun()
    listen = wandb_events.listener(run)
    generation = one_save(listen)
    assert run.summary == {"checkpoint/newest": generation}
    assert {"checkpoint/staged/seconds", "checkpoint/written/bytes", "checkpoint/committed/seconds"} <= run.logged.keys()
    assert run.logged["checkpoint/committed/bytes"] > 3072
    assert run.alerts == []
    listen(Event("aborted", 0, None, "no receipt from rank 7"))
    assert run.alerts == [("checkpoint aborted: run", "no receipt from rank 7", "WARN")]


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics: dict[tuple[str, int], float] = {}
    tags: dict[str, str] = {}
    threads: set[str] = set()

    class Client:
        def log_metric(self, run_id: str, key: str, value: float, *, step: int) -> None:
            assert run_id == "r1"
            threads.add(threading.current_thread().name)
            metrics[key, step] = value

        def set_tag(self, run_id: str, key: str, value: str) -> None:
            assert run_id == "r1"
            tags[key] = value

    standing_in(monkeypatch, "mlflow", MlflowClient=Client)
    listen = mlflow_events.listener("r1")
    generation = one_save(listen)
    assert tags == {"checkpoint.newest": generation}
    assert ("checkpoint.committed.seconds", 10) in metrics
    assert len(threads) == 2  # the main thread and that of the save
    listen(Event("damaged", 0, None, "a chunk differs"))
    assert tags["checkpoint.damaged"] == "None: a chunk differs"
