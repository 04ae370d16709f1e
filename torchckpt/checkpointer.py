"""`Checkpointer` and `open_run` for PyTorch: the core's, with the torch backend."""

from __future__ import annotations

import os
from typing import Literal

from ckptcore import checkpointer, run
from ckptcore.events import Listener
from ckptcore.formats.foreign import Start
from ckptcore.geometry import CHUNK_BYTES
from ckptcore.guarantees import Derived
from ckptcore.keep import Keep
from ckptcore.nodes import Local
from ckptcore.records import Level
from ckptcore.schedule import Every, Optimal
from ckptcore.store import Storage
from torchckpt.backend import TorchBackend
from torchckpt.preemption import Preemption


class Checkpointer(checkpointer.Checkpointer):
    """Saves and restores one run of a PyTorch program, on every rank. Use it as a context manager.

    Make it after `torch.distributed.init_process_group`, on every rank alike. Components are modules (plain, DDP, FSDP2,
    tensor parallel), optimizers, tensors, objects with `state_dict`/`load_state_dict` or `get_state`/`set_state`, and
    dicts, lists and tuples of these. A restore fills them in place.

    Attributes:
      url: where the run lies: a path, `file://`, `s3://`, `gs://` or `memory://`; the same on every rank.
      storage: what a URL cannot say: endpoint, credentials, time-outs, file modes.
      local: a directory of each node (NVMe, `/dev/shm`) where data is kept first and uploaded from in the background, or
        `Local(path, upload_limit=…, copies=1)`: a job whose ranks die goes on from there, one that loses a node from the
        newest commit, or from the copy that another node keeps until the upload has ended.
      keep: which checkpoints stay, such as `Keep(last=3, every=10_000, best=Best("loss", 2))`; None deletes none.
      interval: when `should_save` says yes: steps between saves, `Every(steps=…, seconds=…)`, or `Optimal(mtbf=…)`, which
        goes by what saves cost; by default every 600 seconds.
      require: the least guarantee that a save must give: `exact`, `coverage`, `replay` or `weights`.
      derived: needs of the guarantee that are met inside another component, or by the step:
        `{"schedule": "step"}`, `{"data": Approximate(samples)}`.
      start_from: URL of a run whose weights a new run starts from, at step 0, or a foreign checkpoint
        (`Safetensors`, `DcpCheckpoint`). Used only while this run has no checkpoint of its own.
      run_id: the ID of the run that has to be at `url`; another one, or none, is refused.
      on_preemption: `save` saves, after SIGTERM, at a step that all ranks agree on, and raises `Preempted`;
        `ignore` leaves the signal alone.
      coordinator_timeout: seconds that a save waits for every rank's receipt before it is aborted.
      max_staging_bytes: the most host memory that one rank's snapshot may take; None: no bound.
      chunk_bytes: the most bytes of one stored chunk; smaller ones suit other meshes better.
      fetch_once: whether, in a restore, each chunk that several ranks need whole is read from the store by one of them,
        and passed on to the others over TCP; what does not come that way, they read from the store themselves.
      verify_rate: bytes a second at which rank 0 reads each checkpoint back, in the background and between saves, to note
        whether it is whole; every byte is read once more. None: nobody does.
      metrics_port: the port at which rank 0 serves Prometheus metrics (the extra `metrics`); None: no metrics.
      on_event: called with an `Event` for everything that happens, some of it in background threads.

    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        local: str | os.PathLike[str] | Local | None = None,
        keep: Keep | None = None,
        interval: int | Every | Optimal | None = None,
        require: Level | None = None,
        derived: Derived | None = None,
        start_from: Start | None = None,
        run_id: str | None = None,
        on_preemption: Literal["save", "ignore"] = "save",
        coordinator_timeout: float = 600.0,
        max_staging_bytes: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        fetch_once: bool = False,
        verify_rate: float | None = None,
        metrics_port: int | None = None,
        on_event: Listener | None = None,
    ) -> None:
        super().__init__(
            url,
            backend=TorchBackend(label=os.fspath(url)),
            watch=Preemption,
            storage=storage,
            local=local,
            keep=keep,
            interval=interval,
            require=require,
            derived=derived,
            start_from=start_from,
            run_id=run_id,
            on_preemption=on_preemption,
            coordinator_timeout=coordinator_timeout,
            max_staging_bytes=max_staging_bytes,
            chunk_bytes=chunk_bytes,
            fetch_once=fetch_once,
            verify_rate=verify_rate,
            metrics_port=metrics_port,
            on_event=on_event,
        )


def open_run(url: str | os.PathLike[str], *, storage: Storage | None = None) -> run.Run:
    """Open a run for reading, beside a live job: nothing is claimed and nothing changed. Raises `NotFound`.

    `Run.restore(like=…)` fills `like`'s tensors and objects in place; without `like`, nested host arrays.
    """
    return run.open_run(url, storage=storage, backend=TorchBackend(label=os.fspath(url)))
