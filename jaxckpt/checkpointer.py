"""`Checkpointer` and `open_run` for JAX: the core's, with the JAX backend."""

from __future__ import annotations

import os
from typing import Literal

from ckptcore import checkpointer, run
from ckptcore.events import Listener
from ckptcore.geometry import CHUNK_BYTES
from ckptcore.guarantees import Derived
from ckptcore.keep import Keep
from ckptcore.records import Level
from ckptcore.schedule import Every
from ckptcore.store import Storage
from jaxckpt.backend import JaxBackend
from jaxckpt.preemption import Preemption


class Checkpointer(checkpointer.Checkpointer):
    """Saves and restores one run of a JAX program, on every process. Use it as a context manager.

    Make it after `jax.distributed.initialize`, on every process alike. The arguments are those of
    `ckptcore.checkpointer.Checkpointer`. Components are pytrees (Flax and optax states, `nnx` modules and
    states, dataclasses, …) or objects with `get_state`/`set_state` or `state_dict`/`load_state_dict`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        keep: Keep | None = None,
        interval: int | Every | None = None,
        require: Level | None = None,
        derived: Derived | None = None,
        start_from: str | os.PathLike[str] | None = None,
        on_preemption: Literal["save", "ignore"] = "save",
        coordinator_timeout: float = 600.0,
        max_staging_bytes: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        on_event: Listener | None = None,
    ) -> None:
        super().__init__(
            url,
            backend=JaxBackend(label=os.fspath(url)),
            watch=Preemption,
            storage=storage,
            keep=keep,
            interval=interval,
            require=require,
            derived=derived,
            start_from=start_from,
            on_preemption=on_preemption,
            coordinator_timeout=coordinator_timeout,
            max_staging_bytes=max_staging_bytes,
            chunk_bytes=chunk_bytes,
            on_event=on_event,
        )


def open_run(url: str | os.PathLike[str], *, storage: Storage | None = None) -> run.Run:
    """Open a run for reading, beside a live job: nothing is claimed and nothing changed. Raises `NotFound`.

    `Run.restore(like=…)` gives JAX arrays in `like`'s shardings; without `like`, nested host arrays.
    """
    return run.open_run(url, storage=storage, backend=JaxBackend(label=os.fspath(url)))
