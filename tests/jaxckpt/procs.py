"""Jobs of several JAX processes for tests.

A script is Python source. In it `RANK`, `SIZE` and `ARGS` are set, and `jax.distributed` is
initialized with gloo collectives.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from textwrap import dedent

from tests import processes
from tests.processes import ROOT, free_port

_PREAMBLE = """\
import sys
import jax
RANK, SIZE, ARGS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[5:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[4]))
if SIZE > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[3], SIZE, RANK, heartbeat_timeout_seconds=10, initialization_timeout=60)
"""


class Job(processes.Job):
    """`size` processes of one script. Leaving the context kills what still runs."""

    def __init__(
        self, script: str, *, size: int = 2, devices: int = 2, args: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        source = _PREAMBLE + dedent(script)
        address = f"127.0.0.1:{free_port()}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "XLA_FLAGS": "", **(env or {})}
        super().__init__(
            [
                subprocess.Popen(
                    [sys.executable, "-c", source, str(rank), str(size), address, str(devices), *args],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment,
                    cwd=ROOT,
                )
                for rank in range(size)
            ]
        )


def run_job(
    script: str,
    *,
    size: int = 2,
    devices: int = 2,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 90,
) -> list[str]:
    """Run a job to its end; the outputs in rank order. Fails unless every rank ends with status 0."""
    with Job(script, size=size, devices=devices, args=args, env=env) as job:
        return job.wait(timeout=timeout)
