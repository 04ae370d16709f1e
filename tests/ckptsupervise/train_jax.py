"""A JAX job under supervision: `python train_jax.py RUN STEPS FAULTS [NODES]`.

FAULTS as {"attempt:rank:step": "SIGKILL"}; NODES as `local_tier` has them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jaxckpt

place = jaxckpt.initialize()

import jax  # noqa: E402 - after `initialize`
import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from tests.ckptsupervise.local_tier import LocalTier  # noqa: E402

RUN, STEPS, FAULTS = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
NODES = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
DERIVED: dict[str, Any] = dict.fromkeys(("optimizer", "schedule", "rng", "data"), "step")


def main() -> None:
    tier = LocalTier(Path(RUN), NODES, place.rank, place.size)
    spread = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))
    update = jax.jit(lambda x: x + 1 + 0 * jnp.sum(x), out_shardings=spread)
    like = {"params": jax.ShapeDtypeStruct((12,), jnp.float32, sharding=spread)}
    with jaxckpt.Checkpointer(RUN, interval=10, derived=DERIVED, **tier.options()) as ckpt:
        init = jax.jit(lambda: jnp.zeros(12), out_shardings=spread)
        restored = tier.restored(lambda: ckpt.restore_or_init(lambda: {"params": init()}, like=like, accept_guarantee="coverage"))
        params = restored.components["params"]
        saving = None
        for step in range(restored.step + 1, STEPS + 1):
            fault = FAULTS.get(f"{os.environ['CKPT_ATTEMPT']}:{place.rank}:{step}")
            if fault is not None:
                if saving is not None:
                    saving.result()  # how far the job has come does not depend on who is faster
                os.kill(os.getpid(), getattr(signal, fault))
            params = jax.block_until_ready(update(params))
            if ckpt.should_save(step):
                saving = ckpt.save(step, {"params": params})
    assert params.addressable_shards[0].data[0] == STEPS


main()
