"""Who this process is in its job, by the environment that its launcher gave it. Pure: nothing is looked up elsewhere.

A launcher that says more goes before one that says less: `ckpt supervise`, then RANK and WORLD_SIZE as torchrun sets them, then
a Kubernetes Job's index, then Slurm. Variables that contradict each other are refused, for a process that takes itself
for the whole job would fence off the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ckptcore.errors import CallError

ATTEMPT = "CKPT_ATTEMPT"
"""The environment variable with the number of this attempt of a supervised job."""
SLOT = "CKPT_SLOT"
"""The environment variable with the slot of this rank: the place on its node where it runs, a GPU's index."""
SLOTS = "CKPT_SLOTS"
"""The environment variable with the number of slots of this node, used or not; without it, as many as there are ranks on it."""
COORDINATOR = "CKPT_COORDINATOR"
"""The environment variable with `host:port` for `jax.distributed`, free at the start of the attempt."""

POD_PORT = 29500
"""The coordinator's port in a pod, which has its own network, where nothing else is said."""
_SLURM_PORTS = range(61440, 65536)
"""Above those that Linux gives to connections. The choice among them is JAX's own."""

Source = Literal["supervise", "elastic", "slurm", "jobset", "kubernetes", "tpu", "single"]
Environment = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of one process in its job.

    `rank` of `size` in the job, `local_rank` of `local_size` on its node. `slot` of `slots` is the place on the node that it
    runs at. `device` is the index of its GPU among those that it sees, None when all of them are its own. `coordinator` is
    `host:port` where rank 0 can listen, None in a job of one process. `source` is who said so; `tpu`: JAX itself has found out.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    slot: int = 0
    slots: int = 1
    device: int | None = None
    coordinator: str | None = None
    source: Source = "single"

    def __post_init__(self) -> None:
        pairs = (
            ("rank", self.rank, self.size),
            ("local rank", self.local_rank, self.local_size),
            ("slot", self.slot, self.slots),
        )
        for what, number, count in pairs:
            if not 0 <= number < count:
                raise CallError(f"{self._said}: {what} {number} of {count}; they are counted from 0")
        if self.local_size > self.size:
            raise CallError(f"{self._said}: {self.local_size} processes on this node, {self.size} in the whole job")
        if self.size > 1 and self.coordinator is None and self.source != "tpu":
            raise CallError(f"{self._said}: {self.size} processes, but no place to meet: set MASTER_ADDR and MASTER_PORT")

    @property
    def _said(self) -> str:
        return f"the environment ({self.source}) contradicts itself"


def launch(environ: Environment) -> Launch:
    """Who this process is. Raises `CallError` when the variables are no numbers, or contradict each other."""
    for place in (_supervised, _elastic, _indexed, _slurm):
        found = place(environ)
        if found is not None:
            return replace(found, device=_device(found, environ))
    if environ.get("WORLD_SIZE", "1") != "1":
        raise CallError(f"WORLD_SIZE is {environ['WORLD_SIZE']}, but RANK is not set")
    return Launch()


def _supervised(environ: Environment) -> Launch | None:
    if ATTEMPT not in environ:
        return None
    local_rank, local_size = _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    slot = _number(environ, SLOT, local_rank)
    return Launch(
        rank=_number(environ, "RANK"),
        size=_number(environ, "WORLD_SIZE"),
        local_rank=local_rank,
        local_size=local_size,
        slot=slot,
        slots=_number(environ, SLOTS, max(local_size, slot + 1)),
        coordinator=environ.get(COORDINATOR),
        source="supervise",
    )


def _elastic(environ: Environment) -> Launch | None:
    """By the variables that torchrun, the Kubeflow operators and many a script set."""
    if "RANK" not in environ:
        return None
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    own, task = "TORCHELASTIC_RUN_ID" in environ, environ.get("SLURM_PROCID", str(rank))
    if not own and task != str(rank) and environ.get("SLURM_NTASKS") == str(size):
        raise CallError(
            f"RANK is {rank}, but this is task {task} of {size}: Slurm gives all tasks the RANK that a script exports"
        )
    local = _slurm_local(environ) if "LOCAL_RANK" not in environ and task == str(rank) else None
    local = local or (_number(environ, "LOCAL_RANK", 0), _elastic_local_size(environ))
    return _one_a_slot(rank=rank, size=size, local=local, coordinator=_elastic_coordinator(environ, own=own), source="elastic")


def _elastic_local_size(environ: Environment) -> int:
    if "LOCAL_RANK" in environ and "LOCAL_WORLD_SIZE" not in environ:
        raise CallError(f"LOCAL_RANK is {environ['LOCAL_RANK']}, but LOCAL_WORLD_SIZE is not set: which of how many?")
    return _number(environ, "LOCAL_WORLD_SIZE", 1)


def _elastic_coordinator(environ: Environment, *, own: bool) -> str | None:
    """`own`: torchrun's agent listens at MASTER_PORT itself. JAX then takes the next port."""
    if not own or "JAX_COORDINATOR_ADDRESS" in environ:
        return _told(environ)
    port = _number(environ, "MASTER_PORT")
    return _address(environ.get("MASTER_ADDR", ""), port + 1 if port < 65535 else port - 1)


def _indexed(environ: Environment) -> Launch | None:
    """By the index of a pod in a Kubernetes Job of which the total is told, alone or in a JobSet.

    Kubernetes sets JOB_COMPLETION_INDEX; the manifest the rest. A Job without the total is one of processes that have nothing
    to do with each other.
    """
    jobset, totals = environ.get("JOBSET_NAME"), {name for name in ("JAX_PROCESS_COUNT", "WORLD_SIZE") if name in environ}
    if "JOB_COMPLETION_INDEX" not in environ or not (jobset or totals):
        return None
    sizes = {_number(environ, name) for name in totals}
    if len(sizes) != 1:
        raise CallError(
            f"the JobSet {jobset} does not say how many processes it has: set WORLD_SIZE"
            if not sizes
            else f"JAX_PROCESS_COUNT is {environ['JAX_PROCESS_COUNT']}, WORLD_SIZE {environ['WORLD_SIZE']}: set one of them"
        )
    (size,) = sizes
    if jobset is None:
        index = _number(environ, "JOB_COMPLETION_INDEX")
        return _one_a_slot(rank=index, size=size, local=(0, 1), coordinator=_told(environ), source="kubernetes")
    first = f"{jobset}-{_text(environ, 'REPLICATED_JOB_NAME')}-0-0.{jobset}"
    coordinator = _told(environ) or _address(first, _number(environ, "MASTER_PORT", POD_PORT))
    return _one_a_slot(rank=_in_jobset(environ, size), size=size, local=(0, 1), coordinator=coordinator, source="jobset")


def _in_jobset(environ: Environment, size: int) -> int:
    """The rank of a pod: the jobs of a replicated job one after the other."""
    index, each = _number(environ, "JOB_COMPLETION_INDEX"), _number(environ, "PROCESSES_IN_JOB", size)
    if index >= each or each < 1 or size % each:
        raise CallError(f"JOB_COMPLETION_INDEX is {index}, PROCESSES_IN_JOB {each}, and there are {size} processes in all")
    return (_number(environ, "JOB_INDEX") if each < size else 0) * each + index


def _slurm(environ: Environment) -> Launch | None:
    """By what `srun` tells each task. The script of a batch job, which is no task, is a job of one process."""
    local = _slurm_local(environ)
    if local is None:
        return None
    size = _number(environ, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS")
    port = _SLURM_PORTS[_number(environ, "SLURM_JOB_ID") % len(_SLURM_PORTS)]
    coordinator = _told(environ) or _address(first_host(environ["SLURM_STEP_NODELIST"]), port)
    return _one_a_slot(rank=_number(environ, "SLURM_PROCID"), size=size, local=local, coordinator=coordinator, source="slurm")


def _slurm_local(environ: Environment) -> tuple[int, int] | None:
    """The rank of a task on its node, and the number of tasks there; None if this is no task."""
    if not {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= environ.keys():
        return None
    counts = tasks_per_node(_text(environ, "SLURM_STEP_TASKS_PER_NODE"))
    node = _number(environ, "SLURM_NODEID")
    if node >= len(counts):
        raise CallError(f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE is {environ['SLURM_STEP_TASKS_PER_NODE']}")
    return _number(environ, "SLURM_LOCALID"), counts[node]


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts: `gpu[003-017,020],login` begins with `gpu003`."""
    host = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", host[0] if host else nodes)


def tasks_per_node(counts: str) -> list[int]:
    """The number of tasks on each node, from Slurm's text: `8(x2),4` is 8, 8, 4."""
    runs = [re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", run) for run in counts.split(",")]
    return [int(run[1]) for run in runs if run for _ in range(int(run[2] or 1))]


def _device(place: Launch, environ: Environment) -> int | None:
    """A GPU a slot, unless the launcher has divided them already, by showing each process its own.

    A supervisor that leaves out slots shows the GPUs of the others, in the order of local ranks.
    """
    seen = environ.get("CUDA_VISIBLE_DEVICES")
    shown = None if seen is None else len(seen.split(","))
    if place.source == "supervise" and shown == place.local_size < place.slots:
        return place.local_rank
    divided = shown is not None and shown < place.slots
    return None if place.slots == 1 or divided else place.slot


def _one_a_slot(*, rank: int, size: int, local: tuple[int, int], coordinator: str | None, source: Source) -> Launch:
    """One of several launchers that know of no slots: each rank has the one of its number on the node."""
    return Launch(
        rank=rank,
        size=size,
        local_rank=local[0],
        local_size=local[1],
        slot=local[0],
        slots=local[1],
        coordinator=coordinator if size > 1 else None,
        source=source,
    )


def _told(environ: Environment) -> str | None:
    """Where to meet, if the environment says it outright."""
    jax = environ.get("JAX_COORDINATOR_ADDRESS")
    host = environ.get("MASTER_ADDR")
    return jax or (_address(host, _number(environ, "MASTER_PORT", POD_PORT)) if host else None)


def _address(host: str, port: int) -> str | None:
    if not host:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(environ: Environment, name: str, default: int | None = None) -> int:
    if default is not None and name not in environ:
        return default
    value = _text(environ, name)
    if not value.isdecimal():
        raise CallError(f"{name}={value!r} in the environment: expected a number")
    return int(value)


def _text(environ: Environment, name: str) -> str:
    value = environ.get(name)
    if not value:
        raise CallError(f"the environment says that this process is one of a job, but {name} is not set")
    return value
