"""`initialize`: `jax.distributed`, set up by what this process's launcher says."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax
from jax._src import cloud_tpu_init, distributed  # jax.distributed shows neither

from ckptcore.launch import Launch, launch
from jaxckpt import ending

_EXPLICIT = ("supervise", "elastic")
"""Who has told each process its rank; on a TPU what others tell of pods says less than JAX finds out."""


def initialize(*, heartbeat_seconds: int = 10, local_device_ids: Sequence[int] | None = None) -> Launch:
    """Make this process one of its JAX job, and say which. Call it before anything else of JAX.

    It goes by the environment that `ckpt supervise`, torchrun, Slurm's `srun`, a Kubernetes Job or a JobSet gives to each
    process; on TPU pods by JAX's own detection. For a job of one process nothing is set up. A process that ends with an exception
    that nobody catches does not wait for the others at its end (`jaxckpt.ending`). `heartbeat_seconds`: how long
    JAX waits for a sign of life of a process until it ends the others. `local_device_ids`: the GPUs of this process; by
    default one if its node has several processes. Raises `CallError` when the environment contradicts itself.
    """
    place = launch(os.environ)
    if cloud_tpu_init.running_in_cloud_tpu_vm and place.source not in _EXPLICIT:
        return _on_tpu(heartbeat_seconds)
    devices = local_device_ids if local_device_ids is not None or place.device is None else [place.device]
    if place.size == 1:
        _restrict(devices)
        return place
    jax.distributed.initialize(
        place.coordinator,
        place.size,
        place.rank,
        local_device_ids=devices,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=heartbeat_seconds,
    )
    ending.end_when_failed()
    return place


def _on_tpu(heartbeat_seconds: int) -> Launch:
    """One process a host, of as many hosts as the slices have."""
    jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_seconds)
    ending.end_when_failed()
    state = distributed.global_state
    return Launch(rank=state.process_id, size=state.num_processes, coordinator=state.coordinator_address, source="tpu")


def _restrict(devices: Sequence[int] | None) -> None:
    if devices is not None:
        for option in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
            jax.config.update(option, ",".join(map(str, devices)))
