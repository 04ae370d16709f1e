"""One record by itself: its canonical form, its schema, and the rules of its kind that a schema cannot say (spec: chapter 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from ckpt_conformance import data
from ckpt_conformance.oracle import canonical, layouts, values
from ckpt_conformance.oracle.keys import Generation
from ckpt_conformance.oracle.layouts import Fault

_CERTIFIED = ("layout", "values", "receipt", "staged-receipt", "index", "roster")
_SIZE, _CERTIFIED_SIZE = 2**24, 2**30
_FORMATS = {"manifest": "ckpt/decision", "abort": "ckpt/decision"}
_KINDS = (
    "run", "claim", "base", "layout", "values", "receipt", "index", "roster", "manifest", "abort", "retired", "staged", "note",
    "attempt-node", "attempt-plan", "attempt-resumed", "attempt-end",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """What a record's bytes say.

    Attributes:
      kind: as in `keys.named`, but `manifest` or `abort` for a decision that says which, and `receipt` for a staged one.
      value: the record, if it can be understood: None if not even its fields can be relied on.
      faults: what is wrong with it.

    """

    kind: str
    value: Mapping[str, Any] | None
    faults: tuple[Fault, ...]


@lru_cache(maxsize=4096)
def judge(kind: str, content: bytes, *, written: bool = True) -> Judged:
    """Judge a record of a kind; `written`: as what a writer of version 1.0 makes, who leaves nothing out (R-7)."""
    limit = _CERTIFIED_SIZE if kind in _CERTIFIED else _SIZE
    if len(content) > limit:
        return Judged(kind, None, (("R-5", f"has {len(content)} bytes, more than {limit}"),))
    try:
        value = canonical.decode(content)
    except canonical.NotCanonical as error:
        return Judged(kind, None, ((error.clause, str(error)),))
    if not isinstance(value, dict):
        return Judged(kind, None, (("R-1", "is no JSON object"),))
    exact, found = _exact(kind, value)
    found = found or tuple(_schema_faults(exact, value))
    if found:
        return Judged(exact, None, found)
    rest = [*_RULES.get(exact, _no_rules)(value), *(_absent(exact, value) if written else ())]
    if canonical.encode(value) != content:
        rest.insert(0, ("R-1", "is not in canonical form"))
    return Judged(exact, value, tuple(rest))


def _exact(kind: str, value: Mapping[str, Any]) -> tuple[str, tuple[Fault, ...]]:
    """The kind whose schema counts, and what is wrong with the header (R-10 to R-12)."""
    form, version, requires = value.get("format"), value.get("version"), value.get("requires", [])
    if not isinstance(form, str) or not form.startswith("ckpt/"):
        return kind, (("R-10", f"`format` is {form!r}"),)
    if isinstance(version, str) and version.partition(".")[0] not in ("1", ""):
        return kind, (("R-11", f"is of version {version}"),)
    if isinstance(requires, list) and requires:
        return kind, (("R-11", f"requires {', '.join(map(str, requires))}"),)
    if kind == "decision":
        kind = {"commit": "manifest", "abort": "abort"}.get(str(value.get("decision")), "decision")
        if kind == "decision":
            return kind, (("R-66", f"`decision` is {value.get('decision')!r}"),)
    if kind == "staged-receipt":
        kind = "receipt"
    expected = _FORMATS.get(kind, f"ckpt/{kind}")
    return kind, () if form == expected else (("R-12", f"is a {form}, not a {expected}"),)


@cache
def _schema(kind: str) -> dict[str, Any]:
    return json.loads((data.folder("schema") / f"{kind}.json").read_text(encoding="utf-8"))


@cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(_schema(kind))


def schema_accepts(kind: str, value: Any) -> bool:
    """Whether the schema of a kind alone, which is not `decision`, has no objection."""
    return _validator(kind).is_valid(value)


def _schema_faults(kind: str, value: Mapping[str, Any]) -> Iterator[Fault]:
    for error in _validator(kind).iter_errors(value):
        yield _clause(error), f"{error.json_path}: {error.message[:200]}"


def _clause(error: ValidationError) -> str:
    if error.validator == "required":
        return "R-7" if error.parent is None else "R-6"
    return "R-10" if list(error.path)[:1] in (["format"], ["version"], ["requires"]) else "R-6"


def _absent(kind: str, value: Mapping[str, Any]) -> Iterator[Fault]:
    """OPTIONAL fields that a writer left out."""
    schema = _schema(kind)
    for path in _without_default(schema, value, schema.get("$defs", {}), "$"):
        yield "R-7", f"{path} is left out"


def _without_default(schema: Mapping[str, Any], value: Any, defs: Mapping[str, Any], path: str) -> Iterator[str]:
    schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for option in schema.get("anyOf", ()):
        if Draft202012Validator({**option, "$defs": defs}).is_valid(value):
            yield from _without_default(option, value, defs, path)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, item in enumerate(value):
            yield from _without_default(schema["items"], item, defs, f"{path}[{place}]")
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        yield from (f"{path}.{name}" for name, field in fields.items() if "default" in field and name not in value)
        others = schema.get("additionalProperties")
        for name, item in value.items():
            below = fields.get(name, others if isinstance(others, dict) else None)
            if below is not None:
                yield from _without_default(below, item, defs, f"{path}.{name}")


def _no_rules(record: Mapping[str, Any]) -> Iterator[Fault]:  # noqa: ARG001 - the schema says it all
    yield from ()


def _topology(topology: Mapping[str, Any]) -> Iterator[Fault]:
    for mesh in topology.get("meshes", []):
        if len(mesh["axes"]) != len(mesh["shape"]):
            yield "R-6", f"a mesh of {len(mesh['axes'])} axes has {len(mesh['shape'])} sizes"


def _guarantee(guarantee: Mapping[str, Any]) -> Iterator[Fault]:
    if (guarantee["level"] == "replay") != (guarantee.get("replay_samples") is not None):
        yield "G-6", "`replay_samples` is there if and only if the level is `replay`"


def _of_generation(record: Mapping[str, Any]) -> Iterator[Fault]:
    generation = Generation.parse(record["generation"])
    if (record["incarnation"], record["step"]) != generation[:2]:
        yield "R-54", f"incarnation {record['incarnation']} and step {record['step']} are not those of {record['generation']}"


def _claim(record: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _topology(record["topology"])


def _receipt(record: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _of_generation(record)
    if record["rank"] >= record["participants"]:
        yield "R-50", f"rank {record['rank']} of {record['participants']} participants"
    if record.get("guarantee") is not None:
        yield from _guarantee(record["guarantee"])
    lead = record.get("lead")
    if lead is not None:
        yield from _topology(lead["topology"])
        yield from _value("metadata", lead.get("metadata"))
        if (lead["parent"] is None) != (lead["parent_manifest"] is None):
            yield "R-52", "`parent` and `parent_manifest` do not come together"


def _manifest(record: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _of_generation(record)
    yield from _guarantee(record["guarantee"])
    yield from _topology(record["topology"])
    yield from _value("metadata", record.get("metadata"))


def _roster(record: Mapping[str, Any]) -> Iterator[Fault]:
    if [entry["rank"] for entry in record["ranks"]] != list(range(len(record["ranks"]))):
        yield "R-58", "its ranks are not 0, 1, 2, …"


def _staged(record: Mapping[str, Any]) -> Iterator[Fault]:
    if record["decided_by"] != Generation.parse(record["generation"]).incarnation:
        yield "R-69", f"incarnation {record['decided_by']} is not that of {record['generation']}, whose rank 0 puts it"


def _values(record: Mapping[str, Any]) -> Iterator[Fault]:
    for part in ("shared", "own"):
        for leaves in record.get(part, {}).values():
            for name, encoded in leaves.items():
                yield from _value(name, encoded)


def _note(record: Mapping[str, Any]) -> Iterator[Fault]:
    if (record["kind"] == "tag") != (record.get("tag") is not None):
        yield "R-70", "`tag` is there if and only if the kind is `tag`"
    for name, encoded in record.get("metrics", {}).items():
        if not values.is_number(encoded):
            yield "R-70", f"the metric {name!r} is no finite number"


def _plan(record: Mapping[str, Any]) -> Iterator[Fault]:
    places = list(zip(record["nodes"], record["slots"], strict=False))
    if not len(record["slots"]) == len(record["nodes"]) == record["processes"]:
        yield "R-74", f"{len(record['slots'])} slots and {len(record['nodes'])} nodes for {record['processes']} processes"
    if len(set(places)) != len(places):
        yield "R-74", "two ranks have the same slot of a node"
    runs = [node for node, _ in groupby(record["nodes"])]
    members = [member["node"] for member in record.get("members", [])]
    if members and (members != runs or len(set(runs)) != len(runs)):
        yield "R-74", f"the members {members} are not the nodes of the ranks, in their order"


def _value(name: str, encoded: Any) -> Iterator[Fault]:
    found = values.problem(encoded)
    if found:
        yield found[0], f"{name}: {found[1]}"


_RULES: dict[str, Callable[[Mapping[str, Any]], Iterator[Fault]]] = {
    "claim": _claim,
    "layout": layouts.faults,
    "receipt": _receipt,
    "manifest": _manifest,
    "roster": _roster,
    "staged": _staged,
    "values": _values,
    "note": _note,
    "attempt-plan": _plan,
}
KINDS = _KINDS
"""Kinds of records that have a schema."""
