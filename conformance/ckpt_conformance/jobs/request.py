"""Requests: what the processes of a job are told (ADAPTER.md, "The request")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckpt_conformance.cases.states import State
from ckpt_conformance.cases.steps import Job

CONTRACT = 1
DESCRIBE = {"contract": CONTRACT, "verb": "describe", "rank": 0, "processes": 1}


def requests(
    job: Job,
    *,
    processes: int,
    rendezvous: str,
    storage: Mapping[str, str],
    url_of: Callable[[str], str],
    node_of: Callable[[str], str],
    states: Mapping[str, State],
) -> list[dict[str, Any]]:
    """One request a rank. They differ in `rank` and `local` only.

    `url_of` gives the URL of a run by its name in the scenario, `node_of` the directory of a node.
    """
    common = {
        "contract": CONTRACT,
        "verb": job.verb,
        "store": url_of(job.run),
        "storage": dict(storage),
        "processes": processes,
        "rendezvous": rendezvous,
        "mesh": {"axes": list(job.mesh), "shape": list(job.mesh.values())},
        "state": _state(states[job.state]) if job.state else None,
        "deadline": job.deadline,
        "failpoint": _failpoint(job),
        **_fields(job, url_of, states),
    }
    return [{**common, "rank": rank, **_local(job, rank, node_of)} for rank in range(processes)]


def _local(job: Job, rank: int, node_of: Callable[[str], str]) -> dict[str, Any]:
    """The directory of the rank's node, for verbs that may have one, and whether there are copies, for those that make some."""
    if "nodes" not in job.fields:
        return {}
    nodes = job.fields["nodes"]
    copies = {"copies": int(job.fields["copies"])} if "copies" in job.fields else {}
    return {"local": node_of(nodes[rank]) if nodes else None, **copies}


def _failpoint(job: Job) -> dict[str, Any] | list[dict[str, Any]] | None:
    """None, the only one, or all of them."""
    told = [dict(point) for point in job.failpoints]
    return told if len(told) > 1 else told[0] if told else None


def _fields(job: Job, url_of: Callable[[str], str], states: Mapping[str, State]) -> dict[str, Any]:
    """The fields of the verb itself."""
    fields = {name: value for name, value in job.fields.items() if name not in ("nodes", "copies")}
    if job.verb == "fork":
        fields["target"] = url_of(fields["target"])
    if job.verb == "save":
        fields["saves"] = [
            {**save, "state": _state(states[save["state"]])} if "state" in save else dict(save) for save in fields["saves"]
        ]
        if fields["derived"] is None:
            fields["derived"] = dict(states[job.state]["derived"]) if job.state else {}
    return fields


def _state(state: State) -> dict[str, Any]:
    return {"components": state["components"], "leaves": state["leaves"]}
