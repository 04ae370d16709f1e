"""SIGTERM: every rank saves at one step and leaves with 143; a second signal ends the process at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jaxckpt import open_run
from tests.jaxckpt.procs import Job

LOOP = """
import threading
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxckpt import Checkpointer
from tests.jaxckpt.runs import DERIVED

mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
whole = NamedSharding(mesh, P())
# A sum over all devices keeps the ranks in step.
step_of = jax.jit(lambda x: x + jnp.sum(x) * 0 + 1, out_shardings=NamedSharding(mesh, P("d")))
x = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("d")))
blocks = "block" in ARGS


def listen(event):
    if event.kind == "written" and blocks:
        print("blocked", flush=True)
        threading.Event().wait()


with Checkpointer(ARGS[0], interval=1_000_000, derived=DERIVED, on_event=listen) as saver:
    for step in range(1, 500_000):
        x = step_of(x)
        float(x.addressable_shards[0].data[0])
        if step == 5:
            print("running", flush=True)
        if saver.should_save(step):
            saver.save(step, {"params": {"x": x}})
print("not stopped", flush=True)
"""


def stopped_at(url: Path) -> int:
    run = open_run(url)
    (only,) = run.generations()
    x = run.restore(components="params")["x"]
    assert only.state == "committed"
    assert x.tolist() == [float(only.id.step)] * 8
    return only.id.step


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_ranks_save_one_step_and_leave(size: int, tmp_path: Path) -> None:
    with Job(LOOP, size=size, devices=2, args=[str(tmp_path / "run")]) as job:
        for rank in job.ranks:
            rank.wait_for("running")
        job.ranks[-1].send(signal.SIGTERM)
        statuses = [rank.wait() for rank in job.ranks]
        shown = [rank.output for rank in job.ranks]
    assert statuses == [143] * size, shown
    assert stopped_at(tmp_path / "run") >= 5


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_signal_ends_at_once(size: int, tmp_path: Path) -> None:
    with Job(LOOP, size=size, devices=2, args=[str(tmp_path / "run"), "block"]) as job:
        for rank in job.ranks:
            rank.wait_for("running")
        job.ranks[-1].send(signal.SIGTERM)
        for rank in job.ranks:
            rank.wait_for("blocked")
        for rank in job.ranks:
            rank.send(signal.SIGTERM)
        # The other rank may notice the death first, and abort.
        statuses = {rank.wait() for rank in job.ranks}
    assert statuses <= {-signal.SIGTERM, -signal.SIGABRT}
    assert -signal.SIGTERM in statuses
    assert open_run(tmp_path / "run").head() is None
