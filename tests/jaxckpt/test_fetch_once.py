"""Processes of a JAX job that read each chunk once between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jaxckpt.procs import run_job
from tests.reading import stored_bytes

pytestmark = pytest.mark.slow

COMMON = """
import threading
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.jaxckpt.runs import assert_same, checkpointer
from tests.reading import bytes_read

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
HOST = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)


def put(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def state(offset=0):
    whole = put(HOST + offset)
    return {
        "whole": whole,
        "tied": whole,
        "by model": put(HOST + offset + 1, None, "model"),  # each process has all of it, on its two devices
        "by data": put(HOST + offset + 2, "data"),
        "half": put((HOST + offset).astype(jnp.bfloat16), None, "model"),
        "scalar": put(np.float32(offset)),
        "count": offset,
    }
"""

SAVE = (
    COMMON
    + """
with checkpointer(ARGS[0], chunk_bytes=512 << 10) as saver:
    saver.save(1, {"params": state(3)}).result(60)
"""
)

RESTORE = (
    COMMON
    + """
with bytes_read() as read, checkpointer(ARGS[0], fetch_once=ARGS[1] == "once") as saver:
    assert saver._channel.coordinator == "127.0.0.1"
    restored = saver.restore(like={"params": state()})
assert_same(restored.components["params"], state(3))
assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("share")]
print("bytes:", read.bytes)
"""
)


def read(outputs: list[str]) -> list[int]:
    return [int(output.partition("bytes: ")[2].split()[0]) for output in outputs]


def test_a_job_reads_each_chunk_once(tmp_path: Path) -> None:
    run_job(SAVE, args=[str(tmp_path / "run")])
    stored = stored_bytes(tmp_path / "run")
    alone = read(run_job(RESTORE, args=[str(tmp_path / "run"), "each"]))
    assert all(nbytes < 1.1 * stored for nbytes in alone)  # no chunk twice
    outputs = run_job(RESTORE, args=[str(tmp_path / "run"), "once"])
    assert "other ranks" not in "".join(outputs)  # all of them came
    together = read(outputs)
    assert sum(together) < 1.2 * stored
    assert max(together) < 0.7 * stored
