"""One JSON Schema (draft 2020-12) a record, made from the typed records (spec: records).

The checked-in files under `spec/v1/schema/` are this module's output; a test compares them.
`python -m ckptcore.schemas DIRECTORY` writes them again. A schema says what a single record
looks like; what it cannot say (sorted names, sums, other records) is the parser's to refuse.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ckptcore.errors import CallError
from ckptcore.records import RECORDS, VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HEADER = ("format", "version")
_VERSION_PATTERN = rf"^{VERSION.split('.', maxsplit=1)[0]}\.[0-9]{{1,4}}$(?!\n)"


def schema(name: str) -> dict[str, Any]:
    """The schema of the record `name`, one of `records.RECORDS`. Raises `CallError` for another name."""
    if name not in RECORDS:
        raise CallError(f"no record is called {name!r}; there are {', '.join(RECORDS)}")
    generated = msgspec.json.schema(RECORDS[name])
    definitions = {key: _definition(value) for key, value in generated["$defs"].items()}
    body = definitions.pop(RECORDS[name].__name__)
    _require_header(body)
    rules = _RULES.get(name, [])
    return {
        "$schema": DIALECT,
        "$id": f"urn:ckpt:{VERSION}:{name}",
        **body,
        "title": f"ckpt {name} record, version {VERSION}",
        **({"allOf": rules} if rules else {}),
        **({"$defs": definitions} if definitions else {}),
    }


def write(directory: Path) -> list[Path]:
    """Write every schema as `<record>.json` below `directory`; returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.json" for name in RECORDS]
    for path in paths:
        path.write_text(text(path.stem), encoding="utf-8")
    return paths


def text(name: str) -> str:
    """The checked-in text of a schema."""
    return json.dumps(schema(name), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _definition(body: dict[str, Any]) -> dict[str, Any]:
    """A generated definition, open to unknown fields and without what only generators read."""
    cleaned = _without_discriminators(body)
    cleaned["additionalProperties"] = True
    rules = _RULES.get(body.get("title", ""), [])
    return {**cleaned, "allOf": rules} if rules else cleaned


def _without_discriminators(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_discriminators(value) for key, value in node.items() if key != "discriminator"}
    return [_without_discriminators(item) for item in node] if isinstance(node, list) else node


def _require_header(body: dict[str, Any]) -> None:
    """Make the header mandatory: the typed records have defaults for it, stored ones do not."""
    properties = body["properties"]
    properties["format"] = {"const": properties["format"]["enum"][0]}
    properties["version"] = {"type": "string", "pattern": _VERSION_PATTERN}
    header = [*HEADER, "decision"] if "decision" in properties else list(HEADER)
    body["required"] = [*header, *(field for field in body["required"] if field not in header)]


def _absent(*fields: str) -> dict[str, Any]:
    """Every one of `fields` is null or not there."""
    return {"properties": {field: {"type": "null"} for field in fields}}


def _present(*fields: str) -> dict[str, Any]:
    """Every one of `fields` is there and not null."""
    return {"required": list(fields), "properties": {field: {"not": {"type": "null"}} for field in fields}}


def _together(first: str, second: str) -> dict[str, Any]:
    return {"if": _present(first), "then": _present(second), "else": _absent(second)}


def _when(field: str, value: Any, then: dict[str, Any], otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
    rule = {"if": {"properties": {field: {"const": value}}, "required": [field]}, "then": then}
    return rule if otherwise is None else {**rule, "else": otherwise}


_RULES: Mapping[str, list[dict[str, Any]]] = {
    "base": [_together("generation", "manifest")],
    "manifest": [_together("parent", "parent_manifest")],
    "run": [{"if": _present("parent"), "then": _absent("origin")}],
    "receipt": [
        _when("status", "failed", _present("reason"), _present("guarantee", "topology", "layout")),
        {
            "if": {"properties": {"status": {"const": "complete"}, "rank": {"const": 0}}},
            "then": _present("lead"),
        },
        {
            "if": {"properties": {"status": {"const": "complete"}, "rank": {"not": {"const": 0}}}},
            "then": _absent("lead"),
        },
    ],
    "attempt-plan": [{"properties": {"slots": {"minItems": 1}, "nodes": {"minItems": 1}}}],
    "attempt-end": [
        _when("outcome", "failed", _present("incident")),
        _when("outcome", "finished", _absent("incident")),
    ],
    "roster": [{"properties": {"ranks": {"minItems": 1}}}],
    "ArrayLeaf": [
        {
            "if": _present("alias"),
            "then": _absent("chunk_shape", "cuts"),
            "else": {
                "oneOf": [
                    {"allOf": [_present("chunk_shape"), _absent("cuts")]},
                    {"allOf": [_present("cuts"), _absent("chunk_shape")]},
                ]
            },
        },
        {
            "properties": {
                "chunk_shape": {"items": {"minimum": 1}},
                "path": {
                    "items": {
                        "oneOf": [
                            {"prefixItems": [{"const": "key"}, {"type": ["string", "integer"]}]},
                            {"prefixItems": [{"const": "index"}, {"type": "integer"}]},
                            {"prefixItems": [{"const": "attr"}, {"type": "string"}]},
                        ]
                    }
                },
            }
        },
    ],
}
"""What the types do not say and a schema can: fields that come together or exclude each other."""


def main(arguments: list[str]) -> int:
    """Write the schemas into the directory named; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m ckptcore.schemas DIRECTORY\n")
        return 2
    for path in write(Path(arguments[0])):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
