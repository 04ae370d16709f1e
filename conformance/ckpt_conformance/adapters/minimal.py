"""The adapter of a minimal reader: `describe`, `latest`, `restore` for reading, `verify` (conformance/ADAPTER.md).

It and its two parts, `minimal_format` and `minimal_reader`, import nothing else of the suite nor of an implementation: copied
into one folder, they are the beginning of a reader of one's own. GUIDE.md walks through them. One process reads all arrays whole.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckpt_conformance.adapters.minimal_format import STORED, Refused, Store, digest, logical_bytes
from ckpt_conformance.adapters.minimal_reader import Checkpoint, Component, Run, say

Json = Any
DONE, FAILED, REFUSED, CANNOT = 0, 1, 10, 11


def describe(request: Mapping[str, Json]) -> Json:  # noqa: ARG001 - every verb is called alike
    """What is offered."""
    return {
        "contract": 1,
        "name": "minimal",
        "version": "1",
        "framework": "numpy",
        "format": "1.0",
        "verbs": list(VERBS),
        "failpoints": [],
        "features": ["uneven", "rank-scope", "unequal-rank-shapes", "pipeline", "aliases", "prng", "values"],
        "dtypes": sorted(STORED),
        "devices_per_process": "any",
        "max_processes": 1,
        "stores": ["file", "s3"],
        "serve": True,
    }


def latest(request: Mapping[str, Json]) -> Json:
    """The head."""
    generation = next(_run(request).usable(), None)
    return {"generation": generation, "step": None if generation is None else int(generation.split("-")[1])}


def restore(request: Mapping[str, Json]) -> Json:
    """Read the generation that is named, or the newest that is whole (O-15, O-16)."""
    run = _run(request)
    last = Refused("not-found", "the run has no generation to read")
    for generation in _wanted(run, request):
        try:
            leaves = _guarded(run, generation, lambda chosen: _leaves(Checkpoint(run, chosen), request))
        except Refused as error:
            last = error
            if error.kind not in ("damaged", "invalid-record", "foreign-record", "retired", "unsupported-format"):
                break
            say(f"{generation} is passed over: {error}")
        else:
            return {"generation": generation, "step": int(generation.split("-")[1]), "guarantee": None, "leaves": leaves}
    raise last


def verify(request: Mapping[str, Json]) -> Json:
    """Say everything that is wrong with a checkpoint (O-8)."""
    run = _run(request)
    generation = next(_wanted(run, request), None)
    if generation is None:
        raise Refused("not-found", "the run has no head")
    problems = _guarded(run, generation, lambda chosen: list(_problems(Checkpoint(run, chosen), deep=request["depth"] == "deep")))
    if problems and run.is_retired_now(generation):
        raise Refused("retired", f"{generation} was retired meanwhile (O-14)")
    return {"generation": generation, "whole": not problems, "problems": problems}


VERBS: dict[str, Callable[[Mapping[str, Json]], Json]] = {
    "describe": describe,
    "latest": latest,
    "restore": restore,
    "verify": verify,
}


def _run(request: Mapping[str, Json]) -> Run:
    return Run(Store(request["store"], request.get("storage", {})))


def _wanted(run: Run, request: Mapping[str, Json]) -> Iterator[str]:
    """The one generation that the request names, or the head and what comes after it."""
    generation, step = request.get("generation"), request.get("step")
    return run.usable() if generation is None and step is None else iter([run.named(generation, step)])


def _guarded(run: Run, generation: str, read: Callable[[str], Json]) -> Json:
    """Read a generation; what is missing because retention took it is not called damaged (K-17, O-14)."""
    if run.is_retired(generation):
        raise Refused("retired", f"{generation} was retired")
    try:
        return read(generation)
    except Refused as error:
        if error.kind in ("damaged", "invalid-record") and run.is_retired_now(generation):
            raise Refused("retired", f"{generation} was retired meanwhile: {error}") from error
        raise


def _leaves(checkpoint: Checkpoint, request: Mapping[str, Json]) -> Json:
    """The leaves of the target, each as it is stored: by layout name, a digest of the whole or the value."""
    state, rank = request["state"], request["rank"]
    names = list(state["components"]) if request.get("components") is None else request["components"]
    absent = [name for name in names if name not in checkpoint.manifest["components"] or name not in state["components"]]
    if absent:
        raise Refused("structure-mismatch", f"no component of target and checkpoint: {', '.join(absent)} (O-12)")
    found = {name: checkpoint.component(name) for name in names}
    target = {leaf["name"]: leaf for leaf in state["leaves"] if leaf["component"] in found}
    differences = [text for name in names for text in _differences(found[name], target, rank)]
    if differences:
        raise Refused("structure-mismatch", f"target and checkpoint differ (O-12): {'; '.join(differences)}")
    own = {name: leaf for name, leaf in target.items() if rank in leaf.get("ranks", [rank])}
    read = {name: _leaf(found[leaf["component"]], name, rank) for name, leaf in own.items()}
    untied = [name for name, leaf in own.items() if leaf.get("alias") is not None and read[name] != read[leaf["alias"]]]
    if untied:
        raise Refused("structure-mismatch", f"one array in the target, several in the checkpoint (O-12): {', '.join(untied)}")
    return read


def _differences(component: Component, target: Mapping[str, Json], rank: int) -> Iterator[str]:
    """Whatever is not equal in target and checkpoint, leaf by leaf (O-12)."""
    own = {leaf["name"]: leaf for leaf, of in component.leaves.values() if component.scope == "global" or of == rank}
    if component.scope == "rank" and rank >= len(component.held.ranks):
        yield f"{component.name} is kept per rank, and rank {rank} has not saved (O-13)"
    wanted = {name: leaf for name, leaf in target.items() if leaf["component"] == component.name}
    yield from (f"{name} is in the target only" for name in wanted if name not in own)
    yield from (f"{name} is in the checkpoint only" for name in own if name not in wanted)
    for name in wanted.keys() & own.keys():
        if _facts(wanted[name], target, rank) != _facts(own[name], own, rank):
            yield f"{name} is {_facts(own[name], own, rank)}, not {_facts(wanted[name], target, rank)}"


def _facts(leaf: Mapping[str, Json], leaves: Mapping[str, Json], rank: int) -> list[Json]:
    """What may not change silently: sort, dtype, shape, and the implementation of random keys."""
    if "value" in leaf or leaf.get("kind") == "value":
        return ["value"]
    array = leaves[leaf["alias"]] if leaf.get("alias") is not None else leaf
    shape = array.get("shapes", {}).get(str(rank), array["shape"])
    return ["array", array["dtype"], shape, array.get("prng_impl")]


def _leaf(component: Component, name: str, rank: int) -> Json:
    stored = component.stored(name, rank)
    _, leaf, _ = component.origin(stored)
    if leaf["kind"] == "value":
        return {"value": component.value(stored)}
    found = digest(logical_bytes(component.array(stored), leaf["dtype"]))
    return {"dtype": leaf["dtype"], "boxes": [{"start": [0] * len(leaf["shape"]), "stop": leaf["shape"], "digest": found}]}


def _problems(checkpoint: Checkpoint, *, deep: bool) -> Iterator[str]:
    """Every record on the chain, every file, and if `deep` every cell and value."""
    holders = {checkpoint.folder: checkpoint}
    for name in checkpoint.manifest["components"]:
        found: list[Component] = []
        yield from _trouble(lambda name=name, found=found: found.append(checkpoint.component(name)))
        for component in found:
            holders[component.held.folder] = component.held
            for stored, (leaf, _) in component.leaves.items() if deep else ():
                read = component.value if leaf["kind"] == "value" else component.array
                yield from _trouble(lambda read=read, stored=stored: read(stored))
    for holder in holders.values():
        missing: list[str] = []
        yield from _trouble(lambda holder=holder, missing=missing: missing.extend(holder.absent_files()))
        yield from missing


def _trouble(check: Callable[[], object]) -> Iterator[str]:
    """What is wrong, if anything is. What this reader does not know is no fault of the checkpoint."""
    try:
        check()
    except Refused as error:
        if error.kind == "unsupported-format":
            raise
        yield str(error)


def main(given: str) -> int:
    """Answer one request (its JSON text) on standard output. The exit status is that of the contract."""
    request = json.loads(given)
    status, answer = CANNOT, {"message": f"{request['verb']} is not offered"}
    try:
        if request["verb"] in VERBS and request.get("mode", "read") == "read" and request.get("cast") is None:
            status, answer = DONE, VERBS[request["verb"]](request)
    except Refused as error:
        status, answer = REFUSED, {"error": error.kind, "message": str(error)}
    except (ValueError, TimeoutError) as error:  # TensorStore's words for a store that does not answer
        status, answer = REFUSED, {"error": "store-unavailable", "message": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return status


def serve(lines: Iterator[str] | Sequence[str]) -> None:
    """Answer requests in processes of their own until there are no more (ADAPTER.md, "Serving")."""
    for line in lines:
        order = json.loads(line)
        if os.fork() == 0:  # this one waits for the process of the request and tells of it
            worker = os.fork()
            if worker == 0:
                _work(order)
            _tell({"id": order["id"], "pid": worker})
            _tell({"id": order["id"], "status": os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])})
            os._exit(DONE)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _work(order: Mapping[str, Json]) -> None:
    """Be the process of one request, and end."""
    for number, (name, flags) in enumerate((("request", os.O_RDONLY), ("output", os.O_WRONLY), ("log", os.O_WRONLY))):
        os.dup2(os.open(order[name], flags | (os.O_CREAT | os.O_TRUNC if number else 0)), number)
    os.environ.update(order.get("env", {}))
    status = FAILED
    try:
        status = main(Path(order["request"]).read_text(encoding="utf-8"))
    except BaseException:  # noqa: BLE001 - whatever it is, it must not go on in the server's code
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _tell(message: Json) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())  # one write: lines of several processes do not mix


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(sys.stdin)
    else:
        sys.exit(main(sys.stdin.read()))
