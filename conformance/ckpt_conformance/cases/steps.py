"""The steps of a scenario, and what each may say. `step_of` reads one; nothing here knows a scenario by name."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_conformance.cases.texts import ScenarioError

_NODE = re.compile(r"[a-z0-9]+")
REQUIRED = object()
"""Stands for the default of a field that a scenario has to give."""

VERBS: Mapping[str, Mapping[str, Any]] = {
    "save": {
        "resume": "head", "saves": REQUIRED, "derived": None, "keep": None, "run_id": None, "accept": None, "remap": None,
        "single_writer": False, "nodes": [], "copies": False,
    },
    "recover": {"nodes": []},
    "latest": {},
    "restore": {
        "mode": "read", "generation": None, "step": None, "components": None, "cast": None, "accept": None, "remap": None,
        "nodes": [],
    },
    "verify": {"generation": None, "depth": "deep"},
    "collect": {"keep": None, "vouched": []},
    "fork": {"target": REQUIRED, "generation": None, "components": None},
    "train": {
        "steps": REQUIRED, "save_at": [], "resume": False, "accept": None, "batch": 8, "keep": None, "nodes": [], "copies": False,
    },
}  # fmt: skip
"""The fields of each verb's request (ADAPTER.md) with their defaults. `derived` is by default what the state declares; `nodes`
are names, from which each rank gets its own `local`; `copies` is 1 in a request where it is true here."""
SAVE_FIELDS = {"step", "state", "guarantee", "metrics", "unchanged"}
WITH_STATE = {"save", "restore"}
COMMON = {"do", "adapter", "run", "processes", "mesh", "state", "deadline", "failpoint", "background", "expect", "keep_as"}
_AS_GIVEN = ("adapter", "run", "state", "deadline", "background", "keep_as")
OTHERS: Mapping[str, tuple[set[str], set[str]]] = {
    "release": ({"job", "expect"}, set()),
    "kill": ({"job"}, set()),
    "damage": ({"ops"}, {"run", "damaged", "node"}),
    "lose": ({"node"}, set()),
    "note": ({"generation", "kind"}, {"run", "text", "tag", "metrics", "depth", "created", "name"}),
    "copy": ({"from", "to"}, set()),
    "golden": ({"name"}, {"run"}),
    "wait": ({"key"}, {"run", "node"}),
    "store": (set(), {"run", "node", "incarnations", "generations"}),
}
"""The keys of each other step: those it must have, those it may have."""
EXITS = {"done", "refused", "done-or-refused", "killed", "gone"}
FAILPOINTS = {
    "before-data", "during-data", "before-receipt", "after-receipt", "before-index", "before-merge", "before-fence",
    "before-decision", "after-decision", "after-claim", "during-settle", "before-base", "after-retired", "during-delete",
    "after-staged", "on-nodes", "during-upload", "during-copy",
}  # fmt: skip
ACTIONS = {"kill", "stop", "error", "hold"}
FACTS = {"decision", "retired", "complete", "failed", "missing", "data", "derived", "reason", "staged", "on_nodes"}
NODE_FACTS = {"whole", "half", "gone"}
TRAINED = ("losses", "samples", "draws", "leaves")
DEADLINE = 60.0
"""Seconds that a coordinator waits for receipts, where the scenario says nothing."""


@dataclass(frozen=True, kw_only=True)
class Like:
    """What a `train` answer is compared with: the answer kept under `name`, bit for bit or closely, in the fields `of`."""

    name: str
    exactly: bool
    of: tuple[str, ...] = TRAINED


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What the processes of a job must answer.

    Attributes:
      exit: how they must end: all of them, or each rank.
      error: the kinds that are accepted of those that refuse.
      step: the step that a restore must give back.
      content: component → the step whose content it has, where that is not `step` (saved by reference).

    """

    exit: str | tuple[str, ...]
    answer: Any = None
    error: tuple[str, ...] = ()
    step: int | None = None
    content: Mapping[str, int] = field(default_factory=dict)
    like: Like | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A step that runs a verb on an adapter. `fields` are those of the request, with their defaults."""

    verb: str
    fields: Mapping[str, Any]
    adapter: str = "a"
    run: str = "main"
    processes: int = 1
    mesh: Mapping[str, int] = field(default_factory=dict)
    state: str | None = None
    deadline: float = DEADLINE
    failpoints: tuple[Mapping[str, Any], ...] = ()
    background: str | None = None
    expect: Expect | None = None
    keep_as: str | None = None

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.mesh.values())

    @property
    def states(self) -> list[str]:
        """Names of all states that the job holds."""
        named = [save["state"] for save in self.fields.get("saves", []) if "state" in save]
        return [*([self.state] if self.state else []), *named]


@dataclass(frozen=True, kw_only=True)
class Act:
    """A step of the suite itself: `release`, `kill`, `damage`, `lose`, `note`, `copy`, `golden`, `wait` or `store`."""

    do: str
    fields: Mapping[str, Any]
    expect: Expect | None = None


Step = Job | Act


def step_of(table: Mapping[str, Any]) -> Step:
    """The step that a table of a scenario describes, its parameters filled in. Raises `ScenarioError`."""
    do = str(table.get("do"))
    if do in VERBS:
        return _job(do, table)
    if do in OTHERS:
        return _act(do, table)
    raise ScenarioError(f"do = {do!r}: expected one of {', '.join([*VERBS, *OTHERS])}")


def known(what: str, table: Any, allowed: Collection[str], required: Collection[str] = ()) -> None:
    """Refuse what is no table, unknown keys, and the absence of required ones."""
    if not isinstance(table, Mapping):
        raise ScenarioError(f"{what} is {table!r}: expected a table")
    if unknown := sorted(set(table) - set(allowed)):
        raise ScenarioError(f"{what}: unknown key {unknown[0]!r}; known: {', '.join(sorted(allowed))}")
    if missing := sorted(set(required) - set(table)):
        raise ScenarioError(f"{what}: {missing[0]!r} is missing")


def one_of(what: str, value: Any, allowed: Collection[Any]) -> None:
    """Refuse a value that is not allowed."""
    if value not in allowed:
        raise ScenarioError(f"{what} is {value!r}: expected one of {', '.join(sorted(map(str, allowed)))}")


def whole(what: str, value: Any, at_least: int = 0) -> int:
    """Refuse what is no integer, and smaller ones."""
    if type(value) is not int or value < at_least:
        raise ScenarioError(f"{what} is {value!r}: expected an integer of at least {at_least}")
    return value


def _job(verb: str, table: Mapping[str, Any]) -> Job:
    fields = VERBS[verb]
    required = {name for name, default in fields.items() if default is REQUIRED}
    known(verb, table, COMMON | set(fields), required | ({"state"} if verb in WITH_STATE else set()))
    processes = whole("processes", table.get("processes", 1), 1)
    given = {name: table.get(name, default) for name, default in fields.items()}
    if verb == "save":
        given["saves"] = [_save(entry) for entry in given["saves"]]
    job = Job(
        verb=verb,
        fields=given,
        processes=processes,
        mesh=table.get("mesh", {"x": processes}),
        expect=_expect(table["expect"]) if "expect" in table else None,
        failpoints=_failpoints(table.get("failpoint")),
        **{name: table[name] for name in _AS_GIVEN if name in table},
    )
    _check(job)
    return job


def _save(entry: Any) -> Mapping[str, Any]:
    if type(entry) is int:
        return {"step": entry}
    known("an entry of saves", entry, SAVE_FIELDS, {"step"})
    return entry


def _check(job: Job) -> None:
    one_of("adapter", job.adapter, {"a", "b"})
    if not isinstance(job.mesh, Mapping) or not job.mesh:
        raise ScenarioError(f"mesh is {job.mesh!r}: expected axes with their sizes, like {{ x = 2 }}")
    for axis, size in job.mesh.items():
        whole(f"mesh.{axis}", size, 1)
    if job.devices % job.processes:
        raise ScenarioError(f"{job.devices} devices cannot be shared evenly by {job.processes} processes")
    if (job.expect is None) == (job.background is None):
        raise ScenarioError("a step has either expect, or background")
    if job.verb != "train" and job.keep_as is not None:
        raise ScenarioError("keep_as: only train has an answer to keep")
    _check_nodes(job)
    _check_failpoints(job)
    _check_expect(job)


def _check_nodes(job: Job) -> None:
    nodes = job.fields.get("nodes", [])
    for name in nodes:
        if not isinstance(name, str) or not _NODE.fullmatch(name):
            raise ScenarioError(f"nodes has {name!r}: expected names of lower-case letters and digits")
    if nodes and len(nodes) != job.processes:
        raise ScenarioError(f"nodes has {len(nodes)} entries, and there are {job.processes} processes")
    if type(job.fields.get("copies", False)) is not bool or (job.fields.get("copies") and not nodes):
        raise ScenarioError("copies is true or false, and goes with nodes")
    if nodes and job.verb == "restore" and job.fields["mode"] != "resume":
        raise ScenarioError('nodes: a restore reads from nodes only with mode = "resume"')


def _failpoints(given: Any) -> tuple[Any, ...]:
    """One, or several of different ranks."""
    return tuple(given) if isinstance(given, list) else () if given is None else (given,)


def _check_failpoints(job: Job) -> None:
    for point in job.failpoints:
        known("failpoint", point, {"name", "rank", "action", "step"}, {"name", "rank", "action"})
        one_of("failpoint.name", point["name"], FAILPOINTS)
        one_of("failpoint.action", point["action"], ACTIONS)
        if whole("failpoint.rank", point["rank"]) >= job.processes:
            raise ScenarioError(f"failpoint.rank is {point['rank']}, and there are {job.processes} processes")
    if len({point["rank"] for point in job.failpoints}) != len(job.failpoints):
        raise ScenarioError("failpoint: a rank has one only")
    actions = {point["action"] for point in job.failpoints}
    if (len(job.failpoints) > 1 or "hold" in actions) and not job.fields.get("copies"):
        raise ScenarioError("failpoint: several, and the action hold, are known to adapters that make copies only")
    if job.background is not None and not actions & {"stop", "hold"}:
        raise ScenarioError(
            "background: the step waits for a process that stops itself, and no failpoint has the action stop, or hold"
        )
    if job.background is None and "hold" in actions:
        raise ScenarioError("failpoint.action is 'hold': a step without background would wait for the end of the job")


def _check_expect(job: Job) -> None:
    expect = job.expect
    if expect is None:
        return
    by_rank = [("exit", expect.exit)] if isinstance(expect.exit, tuple) else []
    if isinstance(expect.answer, Mapping) and "ranks" in expect.answer:
        by_rank.append(("answer.ranks", expect.answer["ranks"]))
    for what, values in by_rank:
        if len(values) != job.processes:
            raise ScenarioError(f"{what} has {len(values)} entries, and there are {job.processes} processes")
    ranks_matter = bool(by_rank or job.failpoints or job.fields.get("remap") or job.fields.get("nodes"))
    if ranks_matter and job.devices != job.processes:
        raise ScenarioError("what is said by rank needs as many devices as processes, for a process may have one device only")
    _check_ends(job, expect)
    if expect.step is not None and job.verb != "restore":
        raise ScenarioError("expect.step: only restore answers with the content of a step")
    if expect.like is not None and expect.exit != "done":
        raise ScenarioError("expect.like compares what all processes computed: all must be done")
    if expect.content and expect.step is None:
        raise ScenarioError("expect.content goes with expect.step")
    if expect.like is not None and job.verb != "train":
        raise ScenarioError("expect.like: only train has an answer that is compared")


def _check_ends(job: Job, expect: Expect) -> None:
    """Only a process that the case itself kills may die, and beside it those that lose a peer by it."""
    killed = {point["rank"] for point in job.failpoints if point["action"] == "kill"}
    exits = expect.exit if isinstance(expect.exit, tuple) else (expect.exit,) * job.processes
    for rank, wanted in enumerate(exits):
        if wanted == "killed" and rank not in killed:
            raise ScenarioError(f"rank {rank} is expected to be killed, and no failpoint kills it")
        if wanted == "gone" and not killed - {rank}:
            raise ScenarioError(f"rank {rank} is expected to be gone, and no failpoint kills another")


def _expect(table: Any) -> Expect:
    known("expect", table, {"exit", "answer", "error", "step", "content", "like"}, {"exit"})
    exits = table["exit"]
    for name in exits if isinstance(exits, list) else [exits]:
        one_of("expect.exit", name, EXITS)
    error = table.get("error", [])
    if not error and {"refused", "done-or-refused"} & set(exits if isinstance(exits, list) else [exits]):
        raise ScenarioError("expect.error: whoever may refuse does it with an error of a kind that is named")
    return Expect(
        exit=tuple(exits) if isinstance(exits, list) else exits,
        answer=table.get("answer"),
        error=(error,) if isinstance(error, str) else tuple(error),
        step=table.get("step"),
        content=table.get("content", {}),
        like=_like(table["like"]) if "like" in table else None,
    )


def _like(table: Any) -> Like:
    known("expect.like", table, {"exactly", "closely", "of"})
    if len(set(table) & {"exactly", "closely"}) != 1:
        raise ScenarioError("expect.like has either exactly or closely")
    for name in table.get("of", []):
        one_of("expect.like.of", name, TRAINED)
    exactly = "exactly" in table
    return Like(name=table["exactly" if exactly else "closely"], exactly=exactly, of=tuple(table.get("of", TRAINED)))


def _act(do: str, table: Mapping[str, Any]) -> Act:
    required, optional = OTHERS[do]
    known(do, table, {"do"} | required | optional, required)
    if do == "store":
        known("generations", table.get("generations", {}), table.get("generations", {}))
        for name, facts in table.get("generations", {}).items():
            known(f"generations.{name}", facts, NODE_FACTS if "node" in table else FACTS)
        if "node" in table and "incarnations" in table:
            raise ScenarioError("store: nodes have no incarnations")
    fields = {key: value for key, value in table.items() if key not in ("do", "expect")}
    return Act(do=do, fields=fields, expect=_expect(table["expect"]) if "expect" in table else None)
