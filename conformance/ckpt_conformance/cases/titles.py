"""What a step does, in one line for people."""

from __future__ import annotations

from typing import Any

from ckpt_conformance.cases.steps import Act, Job, Step

_DEEDS = {"kill": "is killed", "stop": "stops itself", "error": "has an I/O error", "hold": "is held"}


def title_of(step: Step) -> str:
    """`save step 2 on 2 processes, rank 0 is killed at before-index`."""
    return _act(step) if isinstance(step, Act) else _job(step)


def _job(job: Job) -> str:
    parts = [f"{job.verb}{_object(job)}{_place(job)}"]
    parts += [f"rank {point['rank']} {_DEEDS[point['action']]} at {point['name']}" for point in job.failpoints]
    if job.background:
        parts.append(f"in the background as {job.background}")
    return ", ".join(parts)


def _object(job: Job) -> str:
    fields = job.fields
    if job.verb == "save":
        steps = [str(save["step"]) for save in fields["saves"]]
        return f" step{'s' if len(steps) > 1 else ''} {', '.join(steps)}"
    if job.verb == "train":
        return f" to step {fields['steps']}{', resumed' if fields['resume'] else ''}"
    wanted = fields.get("generation") or (f"step {fields['step']}" if fields.get("step") is not None else "")
    mode = f" ({fields['mode']})" if job.verb == "restore" else ""
    return f" {wanted}{mode}".rstrip() if wanted else mode


def _place(job: Job) -> str:
    """Where it runs, as far as that is not one device of the first adapter on the run `main`."""
    mesh = " × ".join(f"{axis}={size}" for axis, size in job.mesh.items())
    parts = [f" on {job.processes} processes"] if job.processes > 1 else []
    parts += [f" with the mesh {mesh}"] if job.devices != job.processes or len(job.mesh) > 1 else []
    parts += [" by the second adapter"] if job.adapter == "b" else []
    parts += [f" in the run {job.run}"] if job.run != "main" else []
    nodes = job.fields.get("nodes", [])
    parts += [f" with data on the node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"] if nodes else []
    parts += [", with copies"] if job.fields.get("copies") else []
    return "".join(parts)


def _act(act: Act) -> str:
    fields = act.fields
    run = f" of the run {fields['run']}" if fields.get("run", "main") != "main" else ""
    where = f"the node {fields['node']}" if "node" in fields else f"the store{run}"
    texts: dict[str, str] = {
        "release": f"let {fields.get('job')} go on",
        "kill": f"kill {fields.get('job')}",
        "lose": f"lose the node {fields.get('node')}",
        "damage": f"damage {where}: {', '.join(_op(op) for op in fields.get('ops', []))}",
        "note": f"note {fields.get('kind')} on {fields.get('generation')}{run}",
        "copy": f"copy the run {fields.get('from')} to {fields.get('to')}",
        "golden": f"take the golden checkpoint {fields.get('name')}{run}",
        "wait": f"wait for {fields.get('key')}{run}{' on ' + where if 'node' in fields else ''}",
        "store": f"look at {where}",
    }
    return texts[act.do]


def _op(op: dict[str, Any]) -> str:
    name = next(iter(op))
    return f"{name} {op[name] if isinstance(op[name], str) else 'a chunk'}"
