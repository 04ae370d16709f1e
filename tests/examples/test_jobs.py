"""The examples of several processes: killed in the middle and started again, they end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcore.run import open_run
from tests.jaxckpt.procs import Job as JaxJob
from tests.spec.checker import check_run
from tests.torchckpt.procs import Job as TorchJob

pytestmark = pytest.mark.slow

JAX = """
import contextlib, hashlib
from examples import multihost_jax
from tests.examples.stopping import stopped

with stopped(hard=True) if ARGS[1:] else contextlib.nullcontext():
    state = multihost_jax.main(ARGS[0])
for name, leaf in state["params"].items():
    for shard in leaf.addressable_shards:
        print("held:", name, shard.index, hashlib.sha256(shard.data).hexdigest())
"""

TORCH = """
import contextlib, hashlib
from examples import fsdp2_torch
from tests.examples.stopping import stopped

with stopped(hard=True) if ARGS[1:] else contextlib.nullcontext():
    model = fsdp2_torch.main(ARGS[0])
for name, parameter in model.named_parameters():
    print("held:", name, hashlib.sha256(parameter.to_local().detach().numpy()).hexdigest())
"""


@pytest.mark.parametrize(("kind", "script"), [(JaxJob, JAX), (TorchJob, TORCH)], ids=["multihost_jax", "fsdp2_torch"])
def test_two_processes(kind: type[JaxJob | TorchJob], script: str, tmp_path: Path) -> None:
    def finished(place: str) -> list[str]:
        with kind(script, size=2, args=[str(tmp_path / place)]) as job:
            return job.wait()

    whole = finished("whole")
    with kind(script, size=2, args=[str(tmp_path / "parts"), "stop"]) as job:
        assert all(rank.wait() != 0 for rank in job.ranks)
        assert all(held(rank.output) == [] for rank in job.ranks)
    parts = finished("parts")
    begun = [line.split("from step ")[1] for output in parts for line in output.splitlines() if "from step" in line]
    assert begun in (["20 to step 40"] * 2, ["10 to step 40"] * 2)  # the last save may not have been whole yet
    assert [held(output) for output in parts] == [held(output) for output in whole]
    assert held(parts[0]) != held(parts[1])
    assert len(held(parts[0])) > 1
    head = open_run(tmp_path / "parts").head()
    assert head is not None
    assert (head.step, head.guarantee.level, head.topology.participants) == (40, "exact", 2)
    check_run(tmp_path / "parts")


def held(output: str) -> list[str]:
    """What a process says that it has of the parameters."""
    return [line for line in output.splitlines() if line.startswith("held:")]
