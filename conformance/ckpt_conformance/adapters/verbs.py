"""The verbs (ADAPTER.md), by the product's public calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from ckpt_conformance.adapters import opening, training
from ckpt_conformance.adapters.answers import kind_of
from ckpt_conformance.adapters.failpoints import MOMENTS
from ckpt_conformance.adapters.framework import Devices, Framework
from ckpt_conformance.adapters.request import Request
from ckpt_conformance.adapters.state import Leaf, State, answer, fixture_value
from ckpt_conformance.adapters.training import Training
from ckptcore.checkpointer import Checkpointer, Restored
from ckptcore.errors import (
    CallError,
    CheckpointError,
    CommitUnknown,
    NotFound,
    SaveAborted,
    SaveFailed,
    Superseded,
)
from ckptcore.handle import SaveHandle
from ckptcore.keep import Keep
from ckptcore.match import is_floating
from ckptcore.names import GenerationId, named_generation
from ckptcore.retention import Collector

Answer = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One process of a job: the framework, its devices, and what is asked."""

    framework: Framework
    devices: Devices
    request: Request


def describe(framework: Framework) -> Answer:
    """What this adapter offers."""
    return {
        "contract": 1,
        "minor": 2,
        "name": framework.library.__name__,
        "version": metadata.version("jaxckpt"),
        "framework": framework.name,
        "format": "1.0",
        "verbs": ["describe", *VERBS],
        "failpoints": list(MOMENTS),
        "features": list(framework.features),
        "dtypes": framework.dtypes(),
        "devices_per_process": framework.devices_per_process,
        "stores": ["file", "s3"],
        "serve": True,
    }


def save(job: Job) -> Answer:
    """Open the run for writing, and save."""
    keep = _keep(job.request["keep"])
    with opening.checkpointer(job.framework, job.request, keep=keep, derived=job.request["derived"]) as checkpointer:
        restored = _go_on(job, checkpointer)
        saves: list[Answer] = []
        for entry in job.request["saves"] or []:
            saves.append(_save(job, checkpointer, entry))
            if saves[-1]["outcome"] == "superseded":
                break
        return {"incarnation": checkpointer.incarnation, "resumed": _text(restored.generation), "saves": saves}


def _go_on(job: Job, checkpointer: Checkpointer) -> Restored:
    """Restore what the request says to go on from, into the state of the request."""
    resume, state = job.request["resume"] or "head", job.request.state()
    options = _resume_options(job)
    if resume == "head":
        return checkpointer.restore_or_init(lambda: _filled(job, state, 0), like=_blank(job, state), **options)
    return checkpointer.restore(like=_blank(job, state), **_named(resume), **options)


def _resume_options(job: Job) -> dict[str, Any]:
    remap = job.request["remap"]
    return {
        "accept_guarantee": job.request["accept"],
        "remap": None if remap is None else {int(new): old for new, old in remap.items()},
    }


def _named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint that was asked for, as an argument."""
    return {name: fields[name] for name in ("step", "generation") if fields.get(name) is not None}


def _save(job: Job, checkpointer: Checkpointer, entry: Mapping[str, Any]) -> Answer:
    """One save of the fixture."""
    unchanged = entry.get("unchanged") or ()
    filled = _filled(job, job.request.state(entry.get("state")), entry["step"])
    components = {name: tree for name, tree in filled.items() if name not in unchanged}
    options = {"guarantee": entry.get("guarantee"), "metrics": entry.get("metrics"), "unchanged": unchanged}
    return _attempt(lambda: checkpointer.save(entry["step"], components, **options))


def _attempt(begin: Callable[[], SaveHandle]) -> Answer:
    """A save, waited for, and what became of it."""
    told: Answer = {"generation": None}
    try:
        handle = begin()
        told["generation"] = str(handle.generation)
        handle.result()
    except CheckpointError as error:
        return {**told, "outcome": _outcome(error), "error": kind_of(error), "message": str(error)}
    return {**told, "outcome": "committed"}


def _outcome(error: CheckpointError) -> str:
    named = {
        SaveAborted: "aborted",
        SaveFailed: "failed",
        CommitUnknown: "unknown",
        Superseded: "superseded",
        CallError: "refused",
    }
    return next((outcome for kind, outcome in named.items() if isinstance(error, kind)), "failed")


def recover(job: Job) -> Answer:
    """Open the run for writing and save nothing."""
    incarnation = opening.recover(job.framework, job.request).incarnation
    base = incarnation.base
    return {
        "incarnation": incarnation.number,
        "base": base.generation,
        "reason": base.reason,
        "settled": [{"generation": item.generation, "decision": item.decision} for item in base.settled],
        "skipped": [item.generation for item in base.skipped],
    }


def latest(job: Job) -> Answer:
    """What a reader uses when none is named."""
    run = opening.reader(job.framework, job.request)
    try:
        generation = run.checkpoint().generation
    except NotFound:
        return {"generation": None, "step": None}
    return {"generation": str(generation), "step": generation.step}


def restore(job: Job) -> Answer:
    """Restore into the state of the request, as a reader or as a job that goes on."""
    state = job.request.state().only(job.request["components"])
    if job.request["mode"] == "resume":
        return _restore_to_go_on(job, state)
    return _read(job, state)


def _restore_to_go_on(job: Job, state: State) -> Answer:
    with opening.checkpointer(job.framework, job.request) as checkpointer:
        restored = checkpointer.restore(
            like=_blank(job, state),
            **_named(job.request.fields),
            components=job.request["components"],
            cast=job.request["cast"],
            **_resume_options(job),
        )
    told = {"generation": _text(restored.generation), "step": restored.step, "guarantee": restored.guarantee}
    return {**told, "leaves": _leaves(job, state.only(_restored(job, state, restored)), restored.components)}


def _restored(job: Job, state: State, restored: Restored) -> list[str]:
    """The components that were restored: rank-scoped ones are left as they were where no rank's copy is this one's."""
    before = restored.manifest.topology.participants if restored.manifest else 0
    has_own = before == job.request.processes or job.request["remap"] is not None
    return [name for name, scope in state.scopes.items() if scope == "global" or has_own]


def _read(job: Job, state: State) -> Answer:
    run = opening.reader(job.framework, job.request)
    step, generation = job.request["step"], job.request["generation"]
    used = _Used(run.checkpoint(step=step, generation=generation).generation)
    with used:
        components = run.restore(
            like=_blank(job, state),
            step=step,
            generation=generation,
            components=job.request["components"],
            cast=job.request["cast"],
            extra="ignore" if state.partial else "error",
            rank=(_resume_options(job)["remap"] or {}).get(job.request.rank, job.request.rank),
        )
    told = {"generation": str(used.generation), "step": used.generation.step, "guarantee": None}
    return {**told, "leaves": _leaves(job, state, components)}


class _Used(logging.Handler):
    """Which generation a read used: the one that it began with, unless the log tells of another that it fell back to."""

    def __init__(self, generation: GenerationId) -> None:
        super().__init__()
        self.generation = generation

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("falling back to") and isinstance(record.args, tuple):
            self.generation = named_generation(record.args[0])

    def __enter__(self) -> None:
        logging.getLogger("ckptcore").addHandler(self)

    def __exit__(self, *_error: object) -> None:
        logging.getLogger("ckptcore").removeHandler(self)


def _leaves(job: Job, state: State, components: Mapping[str, Any], *, elements: bool = False) -> Answer:
    found = state.find(components).items()
    return {name: answer(leaf, held, job.devices.boxes, elements=elements) for name, (leaf, held) in found}


def verify(job: Job) -> Answer:
    """Check one commit."""
    run = opening.reader(job.framework, job.request)
    found = run.verify(generation=job.request["generation"], deep=job.request["depth"] == "deep")
    return {"generation": str(found.generation), "whole": found.ok, "problems": list(found.problems)}


def collect(job: Job) -> Answer:
    """A collection beside the job."""
    dead = frozenset(job.request["vouched"] or ())
    done = Collector(opening.store(job.request), dead_claims=dead).collect(_keep(job.request["keep"]))
    return {name: [str(item) for item in getattr(done, name)] for name in ("retired", "aborted", "deleted")}


def fork(job: Job) -> Answer:
    """A new run whose first state comes from a commit of this one."""
    request = job.request
    run = opening.reader(job.framework, request)
    run_id = run.fork(
        request["target"], generation=request["generation"], components=request["components"], storage=request.storage
    )
    return {"run_id": run_id}


def train(job: Job) -> Answer:
    """The training task, until a step."""
    request, task = job.request, training.state(job.request.axes[0])
    arrays = {leaf: training.beginning(leaf) for leaf in task.leaves if leaf.sharding is not None}
    cursor = training.sampler(job.framework.library.Sampler, request["batch"])
    trained = Training(job.devices.model(arrays, request["batch"]), cursor, rank=request.rank, ranks=request.processes)
    with opening.checkpointer(job.framework, request, keep=_keep(request["keep"])) as checkpointer:
        first = _train_on(job, checkpointer, trained) if request["resume"] else 0
        told: Answer = {"first": first, "losses": {}, "samples": {}, "draws": {}, "saves": []}
        for step in range(first + 1, request["steps"] + 1):
            loss, told["samples"][f"{step}"], draws = _stepped(trained)
            told["losses"][f"{step}"], told["draws"][f"{step}"] = loss.hex(), [draw.hex() for draw in draws]
            if step in (request["save_at"] or []):
                told["saves"].append(_attempt(lambda now=step: checkpointer.save(now, trained.components)))
    return {**told, "leaves": _leaves(job, task, trained.shown, elements=True)}


def _stepped(trained: Training) -> tuple[float, list[int], list[float]]:
    """One step. Both frameworks raise a `RuntimeError` where another process is gone that a sum needs."""
    try:
        return trained.step()
    except RuntimeError as error:
        raise CheckpointError(f"a step of the training failed: {error}") from error


def _train_on(job: Job, checkpointer: Checkpointer, trained: Training) -> int:
    """Restore what there is; the step to go on from."""
    begun = trained.components
    restored = checkpointer.restore_or_init(lambda: begun, like=begun, **_resume_options(job))
    trained.restored(restored.components)
    return restored.step


def _keep(told: Mapping[str, Any] | None) -> Keep | None:
    return None if told is None else Keep(**{name: told[name] for name in ("last", "every") if told.get(name) is not None})


def _filled(job: Job, state: State, step: int) -> dict[str, Any]:
    return state.build(lambda leaf: job.devices.array(leaf, step), lambda leaf: fixture_value(leaf, step))


def _blank(job: Job, state: State) -> dict[str, Any]:
    """What to restore into, of the dtypes that the request casts to."""
    cast = job.request["cast"]

    def blank(leaf: Leaf) -> Any:
        return job.devices.blank(replace(leaf, dtype=cast) if cast and is_floating(leaf.dtype) else leaf)

    return state.build(blank, lambda leaf: fixture_value(leaf, 0))


def _text(generation: GenerationId | None) -> str | None:
    return None if generation is None else str(generation)


VERBS: dict[str, Callable[[Job], Answer]] = {
    "save": save,
    "recover": recover,
    "latest": latest,
    "restore": restore,
    "verify": verify,
    "collect": collect,
    "fork": fork,
    "train": train,
}
