"""What supervisors have recorded, as the oracle sees it: each rule of chapter 17 that a store can show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_conformance.oracle import checker, keys
from ckpt_conformance.place import FilePlace
from tests.ckptcore.supervised import Supervised, supervised
from tests.ckptcore.support import memory_directory
from tests.conformance.changes import Change, change, delete


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """A run with five attempts."""
    with memory_directory() as folder:
        supervised(folder)
        yield folder


@pytest.fixture
def place(whole: Path) -> Iterator[FilePlace]:
    with memory_directory() as folder:
        shutil.copytree(whole, folder / "run")
        yield FilePlace(folder / "run")


STRANGER = {"node": "b", "nonce": "00ab00ab", "address": "b:1", "token": "0b" * 32}


def of(number: int, what: str, **fields: object) -> Change:
    return change(keys.attempt(number, what), **fields)


def waiting(number: int, **changes: object) -> Callable[[FilePlace], None]:
    """A node that has announced itself for an attempt."""

    def write(place: FilePlace) -> None:
        plan = json.loads(place.read(keys.attempt(1, "plan")) or b"")
        supervisor = {**plan["supervisor"], "nonce": "00ab00ab"}
        told = {name: plan[name] for name in ("version", "requires", "run_id", "created")}
        own = {
            "format": "ckpt/attempt-node",
            "attempt": number,
            "supervisor": supervisor,
            "node": "b",
            "address": "b:1",
            "token": "0b" * 32,
            "slots": 2,
        }
        record = {**told, **own, "started": plan["created"], "since": 1, **changes}
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        place.write(keys.announcement(number, "00ab00ab"), text.encode())

    return write


def oldest_is_gone(place: FilePlace) -> None:
    for what in ("plan", "resumed", "end"):
        place.delete(keys.attempt(1, what))


def test_a_supervised_run_has_no_problem(place: FilePlace) -> None:
    assert checker.check(place) == []


@pytest.mark.parametrize(
    "made",
    [
        oldest_is_gone,
        delete(keys.attempt(5, "resumed")),
        delete(keys.attempt(2, "resumed")),
        of(3, "plan", run_id=None),
        waiting(6),
    ],
)
def test_what_the_rules_allow(place: FilePlace, made: Callable[[FilePlace], object]) -> None:
    made(place)
    assert checker.check(place) == []


@pytest.mark.parametrize(
    ("made", "key", "clause"),
    [
        (delete(keys.attempt(3, "plan")), keys.attempt(3, "plan"), "U-3"),
        (delete(keys.attempt(2, "end")), keys.attempt(2, "end"), "U-4"),
        (of(4, "plan", attempt=2), keys.attempt(4, "plan"), "R-12"),
        (of(4, "plan", slots=[0, 1]), keys.attempt(4, "plan"), "R-74"),
        (of(4, "plan", slots=[0, 1, 1]), keys.attempt(4, "plan"), "R-74"),
        (of(4, "end", run_id="00000000-0000-4000-8000-000000000000"), keys.attempt(4, "end"), "R-12"),
        (of(4, "plan", members=[STRANGER]), keys.attempt(4, "plan"), "R-74"),
        (waiting(6, attempt=7), keys.announcement(6, "00ab00ab"), "R-12"),
        (waiting(6, slots=0), keys.announcement(6, "00ab00ab"), "R-6"),
        (waiting(6, supervisor={"nonce": "00cd00cd", "host": "b", "pid": 1}), keys.announcement(6, "00ab00ab"), "R-12"),
        (of(1, "end", incident=None), keys.attempt(1, "end"), "R-6"),
        (of(1, "end", format="ckpt/attempt-plan"), keys.attempt(1, "end"), "R-12"),
        (of(2, "resumed", restored=7), keys.attempt(2, "resumed"), "R-6"),
    ],
)
def test_what_breaks_a_rule_is_found(place: FilePlace, made: Callable[[FilePlace], object], key: str, clause: str) -> None:
    made(place)
    assert (key, clause) in {(problem.key, problem.clause) for problem in checker.check(place)}


def test_what_was_damaged_from_outside_is_excused(place: FilePlace) -> None:
    key = keys.attempt(3, "plan")
    place.delete(key)
    assert checker.check(place, damaged=[key]) == []


def test_a_supervisor_begins_before_the_run_does(tmp_path: Path) -> None:
    run = Supervised(tmp_path)
    run.plan(0, "start")
    assert checker.check(FilePlace(tmp_path)) == []
    run.train(1, 1, {})
    assert checker.check(FilePlace(tmp_path)) == []
    FilePlace(tmp_path).delete("run.json")
    assert ("run.json", "P-5") in {(problem.key, problem.clause) for problem in checker.check(FilePlace(tmp_path))}
    assert json.loads((tmp_path / keys.attempt(1, "plan")).read_bytes())["run_id"] is None
