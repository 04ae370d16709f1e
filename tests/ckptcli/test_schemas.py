"""The documented JSON: one schema a command, checked in, and every document that a command prints satisfies its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ckptcli import schemas
from tests.ckptcli.support import Ckpt
from tests.processes import ROOT

FOLDER = ROOT / "docs" / "schema"
RUN = ROOT / "conformance" / "golden" / "1.0-by-jax-0.1.0"
STATE = "generations/000001-000000000001-1/state"
EXAMPLES: dict[str, list[object]] = {
    "ls": ["ls", RUN, "--json"],
    "show": ["show", RUN, "--json"],
    "tree": ["tree", RUN, "--json"],
    "cat": ["cat", RUN, "params", "1", "--json"],
    "diff": ["diff", RUN, "1", "1", "--json"],
    "verify": ["verify", RUN, "--json"],
    "explain": ["explain", RUN, "--json"],
    "report": ["report", RUN, "--json"],
    "status": ["status", RUN, "--json"],
    "interval": ["interval", "--mtbf", "3h", "--blocking", "1s", "--persist", "60s", "--slowdown", "0.05", "--json"],
    "recover": ["recover", "{run}", "--json"],
    "rollback": ["rollback", "{run}", "--to", "1", "--json"],
    "quarantine": ["quarantine", "{run}", "1", "--reason", "diverged", "--json"],
    "tag": ["tag", "{run}", "1", "good", "--json"],
    "pin": ["pin", "{run}", "1", "--reason", "a paper", "--json"],
    "gc": ["gc", "{run}", "--keep-last", "2", "--json"],
    "fork": ["fork", "{run}", "{new}", "--json"],
    "cp": ["cp", "{run}", "{new}", "--json"],
    "mirror": ["mirror", "{run}", "{new}", "--json"],
    "export": ["export", "zarr", "{run}", "{new}", "--json"],
    "import": ["import", "orbax", f"{{run}}/{STATE}", "{new}", "--component", "params", "--json"],
}
"""A call of each command that prints JSON, on a golden run; `{run}` is a copy of it, `{new}` a place where there is none."""


def test_every_document_has_an_example() -> None:
    elsewhere = {"supervise"}  # a line for each event, of a job: tests/ckptsupervise/test_command.py
    assert EXAMPLES.keys() == schemas.DOCUMENTS.keys() - elsewhere


def test_what_is_checked_in_is_what_is_made() -> None:
    """`python -m ckptcli.schemas docs/schema` writes them again."""
    assert {path.stem for path in FOLDER.glob("*.json")} == set(schemas.DOCUMENTS)
    assert all((FOLDER / f"{name}.json").read_text() == schemas.text(name) for name in schemas.DOCUMENTS)


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_document_satisfies_its_schema(ckpt: Ckpt, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a report is written where one stands
    schema = json.loads(ckpt("schema", command).out)
    Draft202012Validator.check_schema(schema)
    shutil.copytree(RUN, tmp_path / "run")
    arguments = [str(argument).format(run=tmp_path / "run", new=tmp_path / "new") for argument in EXAMPLES[command]]
    # Reading commands may say no with their status; the document is the same.
    Draft202012Validator(schema).validate(ckpt(*arguments).json)


def test_an_unknown_command(ckpt: Ckpt) -> None:
    assert "prints no JSON" in ckpt.refused("schema", "nope", status=2)
