"""A run that is killed and resumed is, bit for bit and on every rank, the run that never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torchckpt.procs import Job, run_job

pytestmark = pytest.mark.slow

COMMON = """
import os, signal
from tests.torchckpt import models, training
MAKE = getattr(training, ARGS[0])
"""

UNINTERRUPTED = (
    COMMON
    + """
run = MAKE(models.fsdp, None, salt=0)
for step in range(1, 11):
    run.step(step)
"""
)

KILLED = (
    COMMON
    + """
from torchckpt import Checkpointer, rng_state
run = MAKE(models.fsdp, rng_state(), salt=0)
with Checkpointer(ARGS[1], interval=5, on_preemption="ignore") as saver:
    restored = saver.restore_or_init(run.components, like=run.components())
    for step in range(1, 8):
        run.step(step)
        if saver.should_save(step):
            handle = saver.save(step, run.components())
    assert handle.result(60).guarantee.level == "exact"
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
"""
)

RESUMED = (
    COMMON
    + """
from torchckpt import Checkpointer, rng_state
run = MAKE(models.fsdp, rng_state(), salt=1)
with Checkpointer(ARGS[1], interval=100, on_preemption="ignore") as saver:
    restored = saver.restore_or_init(lambda: 1 / 0, like=run.components())
    assert (restored.step, restored.guarantee) == (5, "exact"), restored
    for step in range(6, 11):
        run.step(step)
"""
)


def steps_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize(("size", "feed"), [(4, "fed_by_loader"), (2, "fed_by_sampler")])
def test_a_resumed_run_is_the_run_that_never_stopped(size: int, feed: str, tmp_path: Path) -> None:
    args = [feed, str(tmp_path / "run")]
    whole = [steps_of(output) for output in run_job(UNINTERRUPTED, size=size, args=args)]
    with Job(KILLED, size=size, args=args) as job:
        assert [rank.wait() for rank in job.ranks] == [-9] * size, job.ranks[0].output
        killed = [steps_of(rank.output) for rank in job.ranks]
    resumed = [steps_of(output) for output in run_job(RESUMED, size=size, args=args)]
    assert [len(lines) for lines in whole] == [10] * size
    assert killed == [lines[:7] for lines in whole]
    assert resumed == [lines[5:] for lines in whole]
    # Ranks differ from each other, and steps from each other: there is something to mix up.
    assert len({line for lines in whole for line in lines}) == 10 * size
