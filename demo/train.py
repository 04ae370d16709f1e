"""One process of the training job: `python -m demo.train RANK PORT JOB`.

This is all that a training script needs to survive being killed. What the demo adds are a log of
every step (loss, random key, sample IDs), the final state, and the hook by which it kills itself.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

import jaxckpt
from demo.data import digits
from demo.faults import killer
from demo.job import BATCH, SAVE_EVERY, TRAIN_SAMPLES, Job
from demo.model import Trainer, make_mesh
from demo.run_log import write_line

HEARTBEAT_SECONDS = 10


def train(job: Job, rank: int, log: TextIO) -> None:
    """Train from the newest proven checkpoint, or from scratch, to `job.total` steps."""
    (images, labels), test = digits()
    trainer = Trainer(make_mesh(job.mesh), total=job.total)
    sampler = jaxckpt.Sampler(TRAIN_SAMPLES, BATCH, seed=job.seed)

    def init() -> dict[str, Any]:
        return {**trainer.init(job.seed), "data": sampler}

    with jaxckpt.Checkpointer(
        job.url, interval=SAVE_EVERY, derived={"schedule": "optimizer"}, on_event=killer(job, rank, log)
    ) as checkpointer:
        restored = checkpointer.restore_or_init(init, like={**trainer.abstract, "data": sampler}, accept_guarantee=job.accept)
        components = dict(restored.components)
        write_line(log, start=restored.step)
        for step in range(restored.step + 1, job.total + 1):
            data = components.pop("data")
            samples = data.next(rank, job.ranks)
            batch = trainer.to_devices(images[samples]), trainer.to_devices(labels[samples])
            components, loss = trainer.step(components, *batch)
            components["data"] = data
            write_line(log, step=step, loss=float(loss).hex(), rng=_key_data(components["rng"]), samples=samples.tolist())
            if checkpointer.should_save(step):
                checkpointer.save(step, components)
    data = components.pop("data")
    np.savez(job.final(rank), allow_pickle=False, **dict(_shards(components)))
    write_line(log, accuracy=trainer.accuracy(components["params"], *test), cursor=data.get_state())


def _shards(components: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Every shard that this process holds, named by its leaf and its box in the whole array."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(components):
        array = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for shard in array.addressable_shards:
            box = ",".join(f"{part.start or 0}:{'' if part.stop is None else part.stop}" for part in shard.index)
            yield f"{jax.tree_util.keystr(path)}[{box}]", np.asarray(shard.data)


def _key_data(key: jax.Array) -> list[int]:
    return np.asarray(jax.random.key_data(key).addressable_shards[0].data).tolist()


@contextmanager
def _distributed(job: Job, rank: int, port: int) -> Iterator[None]:
    """This process's place in the job: CPU devices, one another's addresses, a shared compilation cache."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", job.devices)
    jax.config.update("jax_compilation_cache_dir", job.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if job.ranks == 1:
        yield
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", job.ranks, rank, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    yield
    jax.distributed.shutdown()


def _exit_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught error ends this process now: JAX's own exit waits for the other ranks, and they may wait for this one."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def main(rank: int, port: int, job: Job) -> None:
    """Run one process of the job."""
    sys.excepthook = _exit_at_once
    with job.log(rank).open("w") as log, _distributed(job, rank, port):
        train(job, rank, log)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Job.from_json(sys.argv[3]))
