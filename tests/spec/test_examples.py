"""Schemas and examples: both the schema and the parser accept the valid and refuse the invalid ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ckptcore import canonical, schemas
from ckptcore.errors import CallError, CheckpointError, DamageError
from ckptcore.records import RECORDS
from tests.spec import checker

V1 = checker.SPEC
VALID = sorted((V1 / "examples" / "valid").glob("*/*.json"))
INVALID = json.loads((V1 / "examples" / "index.json").read_text(encoding="utf-8"))


def _kind(path: Path) -> str:
    return path.parent.name


def _schema_refuses(kind: str, data: bytes) -> bool:
    """What a schema validator can see: a document that is not JSON never gets to it."""
    try:
        value = json.loads(data)
    except ValueError:
        return False
    return not checker.validator(kind).is_valid(value)


def test_checked_in_schemas_are_the_generated_ones() -> None:
    files = {path.stem: path.read_text(encoding="utf-8") for path in (V1 / "schema").glob("*.json")}
    assert files == {name: schemas.text(name) for name in RECORDS}


@pytest.mark.parametrize("name", RECORDS)
def test_schema_is_a_schema_that_demands_the_header(name: str) -> None:
    schema = schemas.schema(name)
    Draft202012Validator.check_schema(schema)
    assert {"format", "version"} <= set(schema["required"])
    assert schema["additionalProperties"] is True


def test_schema_of_an_unknown_record() -> None:
    with pytest.raises(CallError, match="no record is called"):
        schemas.schema("checkpoint")


def test_writing_the_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schemas.main([str(tmp_path / "schema")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RECORDS)
    assert (tmp_path / "schema" / "run.json").read_text(encoding="utf-8") == schemas.text("run")
    assert schemas.main([]) == 2


def test_corpus_covers_every_record() -> None:
    valid = Counter(_kind(path) for path in VALID)
    invalid = Counter(entry["file"].split("/")[1] for entry in INVALID)
    assert set(valid) == set(invalid) == set(RECORDS)
    assert min(valid.values()) >= 2
    assert min(invalid.values()) >= 4


def test_every_invalid_example_is_listed_with_a_reason() -> None:
    listed = [entry["file"] for entry in INVALID]
    there = [str(path.relative_to(V1 / "examples")) for path in (V1 / "examples" / "invalid").glob("*/*.json")]
    assert sorted(listed) == sorted(there)
    assert all(entry["why"] and "parser" in entry["refused_by"] for entry in INVALID)


@pytest.mark.parametrize("path", VALID, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_valid_example(path: Path) -> None:
    data = path.read_bytes()
    assert checker.check_record(_kind(path), data, path.stem) == []
    assert canonical.encode(json.loads(data)) == data


@pytest.mark.parametrize("entry", INVALID, ids=lambda entry: entry["file"].removeprefix("invalid/").removesuffix(".json"))
def test_invalid_example(entry: dict) -> None:
    path = V1 / "examples" / entry["file"]
    kind, data = _kind(path), path.read_bytes()
    with pytest.raises(DamageError) as refused:
        checker.parse(kind, data, entry["file"])
    assert entry["file"] in str(refused.value)
    assert _schema_refuses(kind, data) == ("schema" in entry["refused_by"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("version-2", "unsupported-format"), ("requires-unknown", "unsupported-format"), ("no-version", "invalid-record")],
)
def test_unsupported_is_told_from_invalid(name: str, kind: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        checker.parse("run", (V1 / "examples" / "invalid" / "run" / f"{name}.json").read_bytes(), name)
    assert refused.value.kind == kind


def test_checker_finds_what_is_wrong_with_a_run(tmp_path: Path) -> None:
    assert checker.check_run(tmp_path) == [f"{tmp_path}: no run.json"]
    examples = V1 / "examples"
    (tmp_path / "run.json").write_bytes((examples / "valid" / "run" / "fresh.json").read_bytes())
    (tmp_path / ".tmp-0123").write_bytes(b"half")
    assert checker.check_run(tmp_path) == []
    layouts = tmp_path / "generations" / "000001-000000000100-1" / "layouts"
    layouts.mkdir(parents=True)
    (layouts / f"blake3-{'0' * 64}.json").write_bytes((examples / "valid" / "layout" / "small-model.json").read_bytes())
    (tmp_path / "latest").write_text("100", encoding="utf-8")
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "000001-000000000100-1.json").write_bytes(b'{"format": "ckpt/decision", "version": "1.0"}')
    problems = checker.check_run(tmp_path)
    wanted = ("latest: not a place", "not what its name says", "not in canonical form", "schema manifest", "`decision` is")
    assert [text for text in wanted if not any(text in problem for problem in problems)] == []
