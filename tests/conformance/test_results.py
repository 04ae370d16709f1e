from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from ckpt_conformance import results
from ckpt_conformance.results import OUTCOMES, Result, Run, StepResult, from_json, result_from, to_json
from tests.conformance import fake_run


def schema() -> dict[str, Any]:
    return json.loads(files("ckpt_conformance").joinpath("results.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", [fake_run.fake_run(), fake_run.hostile_run()], ids=["plain", "hostile"])
def test_a_run_comes_back_from_its_json(run: Run) -> None:
    text = to_json(run)
    assert text.isascii()
    assert from_json(text) == run


def test_the_json_is_as_the_schema_says() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(fake_run.fake_run())))


@pytest.mark.parametrize(
    ("path", "wrong"), [(("results", 0, "outcome"), "fine"), (("results", 0, "seconds"), -1), (("extra",), 1), (("version",), 2)]
)
def test_the_schema_refuses_anything_else(path: tuple[str | int, ...], wrong: object) -> None:
    value = json.loads(to_json(fake_run.fake_run()))
    place = value
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = wrong
    assert not jsonschema.Draft202012Validator(schema()).is_valid(value)


def test_the_schema_names_every_field_and_outcome() -> None:
    definitions = schema()["$defs"]
    for name, kind in {"step": StepResult, "result": Result, "column": results.Column}.items():
        assert set(definitions[name]["properties"]) == {field.name for field in dataclasses.fields(kind)}
    assert {*schema()["properties"]} == {field.name for field in dataclasses.fields(Run)} | {"version"}
    assert tuple(definitions["result"]["properties"]["outcome"]["enum"]) == OUTCOMES


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 1"):
        from_json(to_json(fake_run.fake_run()).replace('"version": 1', '"version": 2', 1))


def test_one_cell_comes_back_from_its_object() -> None:
    cell = fake_run.fake_run().results[3]
    assert result_from(json.loads(json.dumps(dataclasses.asdict(cell)))) == cell


def test_what_makes_a_run_fail() -> None:
    run = fake_run.fake_run()
    assert {cell.outcome for cell in run.bad} == {"failed", "error", "unexpected-pass"}
    assert {cell.outcome for cell in run.results if not cell.bad} == {"passed", "expected-failure", "not-offered"}
