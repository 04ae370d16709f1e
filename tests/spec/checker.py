"""Check every record below a run's directory against its schema and the parser.

`check_run(directory)` is for tests that save for real: `from tests.spec.checker import check_run`. It returns problems, none if
all is well; a directory without a run is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from blake3 import blake3
from jsonschema import Draft202012Validator

from ckptcore import canonical, names, records
from ckptcore.errors import CheckpointError

SPEC = Path(__file__).parents[2] / "spec" / "v1"

_GENERATION = r"[0-9]{6}-[0-9]{12}-[1-9][0-9]{0,5}"
_DIGEST = r"(blake3|sha256)-[0-9a-f]{64}"
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("run", r"run\.json"),
        ("claim", r"incarnations/[0-9]{6}/claim\.json"),
        ("base", r"incarnations/[0-9]{6}/base\.json"),
        ("layout", rf"generations/{_GENERATION}/layouts/{_DIGEST}\.json"),
        ("values", rf"generations/{_GENERATION}/values/[0-9]{{5}}\.json"),
        ("receipt", rf"generations/{_GENERATION}/(?:receipts|staged)/[0-9]{{5}}\.json"),
        ("index", rf"generations/{_GENERATION}/index/[A-Za-z0-9_\-]+-{_DIGEST}\.json"),
        ("roster", rf"generations/{_GENERATION}/roster-{_DIGEST}\.json"),
        ("decision", rf"ledger/{_GENERATION}\.json"),
        ("retired", rf"ledger/{_GENERATION}\.retired\.json"),
        ("staged", rf"ledger/{_GENERATION}\.staged\.json"),
        ("note", rf"notes/{_GENERATION}/[A-Za-z0-9_][A-Za-z0-9_.\-]*\.json"),
        ("attempt-node", r"supervision/[0-9]{8}/nodes/[0-9a-f]{8,64}\.json"),
        ("attempt-plan", r"supervision/[0-9]{8}/plan\.json"),
        ("attempt-resumed", r"supervision/[0-9]{8}/resumed\.json"),
        ("attempt-end", r"supervision/[0-9]{8}/end\.json"),
    )
)
"""Record → what its key looks like. `decision` stands for `manifest` and `abort`."""


def check_run(directory: str | Path) -> list[str]:
    """Every problem of the records below `directory`, the root of a run."""
    root = Path(directory)
    found = list(_records(root))
    if not any(kind == "run" for _, kind in found):
        return [f"{root}: no run.json"]
    problems = [f"{key}: not a place of this format" for key in _strangers(root)]
    for key, kind in found:
        problems.extend(f"{key}: {problem}" for problem in check_record(kind, (root / key).read_bytes(), key))
    return problems


def check_record(kind: str, data: bytes, key: str) -> list[str]:
    """The problems of one record: canonical form, schema, parser, and the digest in its key."""
    problems = []
    try:
        value = json.loads(data)
        if canonical.encode(canonical.decode(data, what=key)) != data:
            problems.append("not in canonical form")
    except (ValueError, CheckpointError) as error:
        return [f"not JSON of this format: {error}"]
    name = _name(kind, value)
    problems += [f"schema {name}: {error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(value)]
    try:
        parse(name, data, key)
    except CheckpointError as error:
        problems.append(f"parser: {error}")
    if (named := re.search(_DIGEST, key)) and named[0] != names.digest_name(_digest(data)):
        problems.append("its bytes are not what its name says")
    return problems


@cache
def validator(name: str) -> Draft202012Validator:
    """The checked-in schema of a record."""
    return Draft202012Validator(json.loads((SPEC / "schema" / f"{name}.json").read_text(encoding="utf-8")))


def parse(name: str, data: bytes, key: str) -> records.Record:
    """Decode with the parser that a reader of this kind of record uses."""
    if name in ("manifest", "abort"):
        record = records.decode_decision(data, key=key)
        return record if isinstance(record, records.RECORDS[name]) else records.decode(data, records.RECORDS[name], key=key)
    return records.decode(data, records.RECORDS[name], key=key)


def _digest(data: bytes) -> str:
    """The object digest, computed without the code under test."""
    return f"blake3:{blake3(data).hexdigest()}"


def _name(kind: str, value: Any) -> str:
    if kind != "decision":
        return kind
    return "abort" if isinstance(value, dict) and value.get("decision") == "abort" else "manifest"


def _records(root: Path) -> Iterator[tuple[str, str]]:
    for key in _files(root):
        for kind, pattern in KINDS:
            if pattern.fullmatch(key):
                yield key, kind


def _strangers(root: Path) -> Iterator[str]:
    """Files that are neither records, nor part of the arrays, nor left by a killed probe (temporary files are hidden)."""
    for key in _files(root):
        unchecked = re.match(rf"(generations/{_GENERATION}/state/|probe/)", key)
        if not unchecked and not any(pattern.fullmatch(key) for _, pattern in KINDS):
            yield key


def _files(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        key = path.relative_to(root).as_posix()
        if path.is_file() and not any(segment.startswith(".") for segment in key.split("/")):
            yield key
