"""What a step needs of an adapter, and whether the adapter offers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckpt_conformance.cases.boxes import divides
from ckpt_conformance.cases.states import State
from ckpt_conformance.cases.steps import Job

Describe = Mapping[str, Any]
Need = tuple[str, str]
"""A list of the `describe` answer, and the word that it must hold: `("dtypes", "int4")`."""

LISTS = ("verbs", "failpoints", "features", "dtypes", "stores")


def processes_of(job: Job, describe: Describe) -> int:
    """In how many processes an adapter runs a job: in `processes`, or one a device; one where a restore would need too many."""
    wanted = job.processes if describe["devices_per_process"] == "any" else job.devices
    return 1 if job.verb == "restore" and _too_many(wanted, describe) else wanted


def missing(job: Job, describe: Describe, states: Mapping[str, State]) -> list[str]:
    """What the job needs and the adapter does not offer: texts like `feature uneven`."""
    found = [
        f"{kind.removesuffix('s')} {word}" for kind, word in sorted(needs_of(job, describe, states)) if word not in describe[kind]
    ]
    if _too_many(processes := processes_of(job, describe), describe):
        found.append(f"a job of {processes} processes")
    return found


def needs_of(job: Job, describe: Describe, states: Mapping[str, State]) -> set[Need]:
    """Everything that follows from a step. What never has more than one process takes arrays whole: nothing is uneven."""
    needs = {("verbs", job.verb)}
    needs |= {("failpoints", point["name"]) for point in job.failpoints}
    mesh = {} if describe.get("max_processes") == 1 else job.mesh
    for name in job.states:
        needs |= {("dtypes", leaf["dtype"]) for leaf in states[name]["leaves"] if "dtype" in leaf}
        needs |= {("features", feature) for feature in features_of(states[name], mesh)}
    return needs | {("features", feature) for feature in _features_of_fields(job.fields)}


def features_of(state: State, mesh: Mapping[str, int]) -> set[str]:
    """The features (ADAPTER.md, `describe`) that an adapter needs to have a state on a mesh; without a mesh, whole."""
    leaves = state["leaves"]
    asked = {
        "rank-scope": any(component["scope"] == "rank" for component in state["components"].values()),
        "unequal-rank-shapes": any("shapes" in leaf for leaf in leaves),
        "pipeline": any("ranks" in leaf for leaf in leaves),
        "aliases": any("alias" in leaf for leaf in leaves),
        "prng": any("prng_impl" in leaf for leaf in leaves),
        "values": any("value" in leaf for leaf in leaves),
        "uneven": bool(mesh) and any(_uneven(leaf, mesh) for leaf in leaves),
    }
    return {feature for feature, is_needed in asked.items() if is_needed}


def lacking(words: Iterable[str], describe: Describe) -> list[str]:
    """Those of the words of `needs` that are in none of the adapter's lists."""
    offered = {word for kind in LISTS for word in describe[kind]}
    return [word for word in words if word not in offered]


def _features_of_fields(fields: Mapping[str, Any]) -> set[str]:
    saves = fields.get("saves", [])
    asked = {
        "references": any("unchanged" in save for save in saves),
        "metrics": any("metrics" in save for save in saves),
        "remap": bool(fields.get("remap")),
        "cast": fields.get("cast") is not None,
        "rollback": isinstance(fields.get("resume"), Mapping),
        "single-writer": bool(fields.get("single_writer")),
        "vouching": bool(fields.get("vouched")),
        "nodes": bool(fields.get("nodes")),
        "copies": bool(fields.get("copies")),
    }
    return {feature for feature, is_needed in asked.items() if is_needed}


def _uneven(leaf: Mapping[str, Any], mesh: Mapping[str, int]) -> bool:
    return leaf.get("sharding") is not None and not divides(leaf["shape"], leaf["sharding"], mesh)


def _too_many(processes: int, describe: Describe) -> bool:
    most = describe.get("max_processes")
    return most is not None and processes > most
