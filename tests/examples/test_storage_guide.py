"""What `docs/storage.md` says of objects, sizes and permissions is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckptcore import names
from ckptcore.keep import Keep
from tests.ckptcore.support import Job, checkpointer, contents, file_store, state
from tests.examples.guides import DOCS, blocks
from tests.processes import ROOT

TEXT = (DOCS / "storage.md").read_text()
JOB, PROTECTION = (json.loads(block) for block in blocks("storage.md", "json"))


def test_the_job_may_do_what_the_specification_asks_for_and_no_more() -> None:
    (clause,) = re.findall(r"^\*\*S-26\*\*.*", (ROOT / "spec/v1/02-store.md").read_text(), re.MULTILINE)
    granted = [
        action
        for statement in JOB["Statement"]
        for action in [*([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])]
    ]
    assert sorted(granted) == sorted(re.findall(r"s3:\w+", clause))


def test_what_is_protected_is_what_is_never_deleted() -> None:
    (clause,) = re.findall(r"^\*\*L-5\*\*.*", (ROOT / "spec/v1/03-layout.md").read_text(), re.MULTILINE)
    kept = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", clause)}
    for statement in PROTECTION["Statement"]:
        assert {re.sub(r"^.*/runs/\*/|/\*$", "", resource) for resource in statement["Resource"]} == kept


def test_the_tree_has_every_place_of_the_layout() -> None:
    (tree,) = blocks("storage.md", "text")
    spec = (ROOT / "spec/v1/03-layout.md").read_text()
    places = {line.split("/")[0] for line in spec.split("```")[1].splitlines() if line and not line.startswith(" ")}
    assert {line.split("/")[0].split()[0] for line in tree.splitlines()} == {place.split()[0] for place in places}
    inside = {re.split(r"[-/]", line.split("/")[2])[0] for line in spec.splitlines() if line.startswith("generations/<G>/")}
    assert inside == {word.strip() for word in tree.split("save: ")[2].splitlines()[0].split(",")}


@pytest.mark.parametrize(("ranks", "objects"), [(1, 14), (4, 23)])
def test_how_many_objects_a_save_has(ranks: int, objects: int, tmp_path: Path) -> None:
    job = Job(file_store(tmp_path / "run"), ranks)
    job.open()
    before = len(contents(tmp_path / "run"))
    assert len(job.state_of(10, 0, ranks)) == 4
    job.save(10)
    assert len(contents(tmp_path / "run")) - before == objects
    assert re.search(rf"{objects} with {'one rank' if ranks == 1 else 'four'}", TEXT)


def test_what_stays_of_a_checkpoint_that_was_retired(tmp_path: Path) -> None:
    with checkpointer(tmp_path / "run", keep=Keep(last=2)) as saver:
        for step in range(10, 60, 10):
            saver.save(step, state(step)).result()
    held = [key for key in contents(tmp_path / "run") if "000000000010-1" in key]
    assert sorted(held) == ["ledger/000001-000000000010-1.json", "ledger/000001-000000000010-1.retired.json"]
    assert len(list((tmp_path / "run" / names.INCARNATIONS).rglob("*.json"))) == 2
